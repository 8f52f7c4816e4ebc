"""MOON's contrast against eq. (3) of the paper in numpy, and its rounds."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedquilt.core.errors import InputError
from fedquilt.core.net import Net
from fedquilt.core.seed import Seed
from fedquilt.core.table import Batch
from fedquilt.methods.moon import moon
from fedquilt.models.small import MLP
from fedquilt.pieces.objectives import contrast
from fedquilt.pieces.optimizers import SGD
from helpers.toy import digits, fedavg, last, linear, points

NET = Net.of(MLP, features=5, classes=3, hidden=(16,))
X = torch.randn(6, 5, generator=torch.Generator().manual_seed(1))
ROWS = Batch({"x": X, "y": torch.zeros(6, dtype=torch.long)})


def features(params):
    weight, bias = params["features.1.weight"].double().numpy(), params["features.1.bias"].double().numpy()
    return np.maximum(X.double().numpy() @ weight.T + bias, 0)


def cosine(a, b):
    return (a * b).sum(1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))


def test_contrast_is_equation_3():
    local, whole, previous = (NET.init(Seed(k)) for k in range(3))
    z, near, far = features(local), features(whole), features(previous)
    pull, push = np.exp(cosine(z, near) / 0.5), np.exp(cosine(z, far) / 0.5)
    expected = 2.0 * np.mean(-np.log(pull / (pull + push)))
    found = contrast(NET, mu=2.0, tau=0.5)(NET.split(local, ROWS), local, {"global": whole, "previous": previous}, ROWS)
    assert float(found) == pytest.approx(expected, rel=1e-5)


def test_the_first_visit_has_no_contrast():
    """Global = previous makes the term the constant mu log 2, so one round equals FedAvg's; the second does not."""
    net, work = Net.of(MLP, features=64, classes=10, hidden=(8,)), {"optimizer": SGD(0.1), "batch_size": 32}
    for rounds, equal in ((1, True), (2, False)):
        ours = last(moon(net, mu=5.0, **work), digits(), rounds=rounds).state.shared
        plain = last(fedavg(objective=net, **work), digits(), rounds=rounds).state.shared
        close = all(torch.allclose(ours[n], plain[n], atol=1e-6) for n in plain)
        assert close is equal


def test_a_network_in_one_piece_is_refused():
    with pytest.raises(Exception, match="not in two parts"):
        last(moon(linear()), points(6, 8), rounds=1)
    with pytest.raises(InputError, match="tau > 0"):
        moon(NET, tau=0.0)
