"""MOON's contrast against eq. (3) of the paper in numpy, and its rounds."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from fedquilt.core.net import Net
from fedquilt.core.seed import Seed
from fedquilt.core.table import Batch
from fedquilt.errors import InputError
from fedquilt.methods.averaging.moon import Moon
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


def test_the_first_update_has_no_contrast():
    """Global = previous makes the term the constant mu log 2, so one round equals FedAvg's; the second does not."""
    net, work = Net.of(MLP, features=64, classes=10, hidden=(8,)), {"optimizer": SGD(0.1), "batch_size": 32}
    for rounds, equal in ((1, True), (2, False)):
        ours = last(Moon(net, mu=5.0, **work), digits(), rounds=rounds).state.shared
        plain = last(fedavg(objective=net, **work), digits(), rounds=rounds).state.shared
        close = all(torch.allclose(ours[n], plain[n], atol=1e-6) for n in plain)
        assert close is equal


SMALL = Net.of(MLP, features=2, classes=2, hidden=(3,))
SHAPES = {"features.1.weight": (3, 2), "features.1.bias": (3,), "head.weight": (2, 3), "head.bias": (2,)}


def unrolled(flat):
    """A dict of arrays from one vector."""
    ends = np.cumsum([np.prod(s) for s in SHAPES.values()])
    return {n: v.reshape(s) for (n, s), v in zip(SHAPES.items(), np.split(flat, ends[:-1]), strict=True)}


def by_hand(x, flat):
    model = unrolled(flat)
    return np.maximum(x @ model["features.1.weight"].T + model["features.1.bias"], 0)


def whole_loss(x, y, flat, near, far, mu, tau):
    """Cross-entropy + mu * eq. (3), of one client's samples."""
    z, model = by_hand(x, flat), unrolled(flat)
    scores = z @ model["head.weight"].T + model["head.bias"]
    fit = np.log(np.exp(scores).sum(1)) - scores[np.arange(len(y)), y]
    pull, push = (np.exp(cosine(z, by_hand(x, other)) / tau) for other in (near, far))
    return float(np.mean(fit - mu * np.log(pull / (pull + push))))


def descended(x, y, start, previous, steps):
    """Plain descent by central differences; mu 10, tau 1/2, lr 0.2."""
    w = start.copy()
    for _ in range(steps):
        around = [
            [whole_loss(x, y, w + h * e, start, previous, 10.0, 0.5) for h in (1e-6, -1e-6)] for e in np.eye(len(w))
        ]
        w = w - 0.2 * np.array([(up - down) / 2e-6 for up, down in around])
    return w


def test_rounds_of_moon():
    """The previous model is the client's own after its last client update, the global one that of this round."""
    sizes, rounds, steps = (6, 8), 3, 2
    start = SMALL.init(Seed(4))
    start = {**start, "features.1.bias": torch.full((3,), 1.0)}  # every unit answers: no row of zeros
    x = np.concatenate([start[n].double().numpy().ravel() for n in SHAPES])
    rows = [points(*sizes).site(k, 0).train.whole() for k in range(2)]
    previous: list = [None, None]
    for _ in range(rounds):
        before = x
        previous = [
            descended(b.x.double().numpy(), b.y.numpy(), before, before if p is None else p, steps)
            for b, p in zip(rows, previous, strict=True)
        ]
        x = sum(n * w for n, w in zip(sizes, previous, strict=True)) / sum(sizes)
    method = Moon(replace(SMALL, build=partial(_from, start)), mu=10.0, optimizer=SGD(0.2), steps=steps, batch_size=100)
    found = last(method, points(*sizes), rounds=rounds).state.shared
    ours = np.concatenate([found[n].double().numpy().ravel() for n in SHAPES])
    assert ours == pytest.approx(x, abs=2e-5)


def _from(start):
    module = MLP(features=2, classes=2, hidden=(3,))
    module.load_state_dict(start)
    return module


def test_a_network_in_one_piece_is_refused():
    with pytest.raises(Exception, match="not in two parts"):
        last(Moon(linear()), points(6, 8), rounds=1)
    with pytest.raises(InputError, match="tau > 0"):
        Moon(NET, tau=0.0)
