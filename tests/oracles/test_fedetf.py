"""FedETF's classifier and loss against numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedquilt.core.net import Net
from fedquilt.core.seed import Seed
from fedquilt.engines.local import Local
from fedquilt.errors import InputError
from fedquilt.methods.long_tailed.fedetf import FedETF
from fedquilt.models.small import LogisticRegression
from fedquilt.pieces.etf import simplex
from fedquilt.pieces.optimizers import SGD
from fedquilt.rounds.rounds import Rounds
from helpers.toy import points

LINE = Net.of(LogisticRegression, features=2, classes=2)


@pytest.mark.parametrize("classes", [2, 3, 100])
def test_the_class_vectors_are_an_equiangular_frame(classes):
    """Gram matrix: 1 on the diagonal, -1/(C-1) off it. For C = 3 the first column is .816497, -.408248, -.408248."""
    v = simplex(classes)
    expected = np.full((classes, classes), -1 / (classes - 1)) + np.eye(classes) * (1 + 1 / (classes - 1))
    assert np.allclose((v @ v.T).numpy(), expected, atol=1e-6)
    if classes == 3:
        assert v[:, 0].tolist() == pytest.approx([0.816497, -0.408248, -0.408248], abs=1e-6)


def loss_by_hand(w, b, scale, x, y):
    """Balanced softmax of scale * normalised projection times the simplex of two classes."""
    p = x @ w.T + b
    z = p / np.linalg.norm(p, axis=1, keepdims=True)
    v = np.sqrt(2) * (np.eye(2) - 0.5)
    s = scale * z @ v.T + np.log(np.bincount(y, minlength=2))
    return np.mean(np.log(np.exp(s).sum(1)) - s[np.arange(len(y)), y])


def test_one_step_goes_down_the_gradient_of_that_loss():
    """Gradients by central differences of the numpy loss; lr 0.1, all rows in one batch, one client."""
    method, data = FedETF(LINE, scale=2.0, optimizer=SGD(0.1), steps=1, batch_size=9), points(9)
    rounds = Rounds(method, data, Local(), Seed(0))
    start = rounds.state.shared
    assert set(start) == {"head.projection.weight", "head.projection.bias", "head.scale"}  # the simplex never travels
    rounds.play()
    rows = data.site(0, 0).train.whole()
    x, y = rows.x.double().numpy(), rows.y.numpy()
    flat = np.concatenate([t.double().numpy().ravel() for t in start.values()])
    order = list(start)

    def value(vector):
        parts, at = {}, 0
        for n in order:
            parts[n] = vector[at : at + start[n].numel()].reshape(start[n].shape)
            at += start[n].numel()
        return loss_by_hand(parts["head.projection.weight"], parts["head.projection.bias"], parts["head.scale"], x, y)

    gradients = np.array([(value(flat + e) - value(flat - e)) / 2e-5 for e in np.eye(len(flat)) * 1e-5])
    found = np.concatenate([rounds.state.shared[n].double().numpy().ravel() for n in order])
    assert np.allclose(found, flat - 0.1 * gradients, atol=1e-5)


def test_impossible_settings_are_refused():
    with pytest.raises(InputError, match="scale > 0"):
        FedETF(LINE, scale=0.0)
    with pytest.raises(InputError, match="linear head"):
        FedETF(Net.of(torch.nn.Linear, 2, 2)).init_server(Seed(0))
