"""FedProto, FedRoD, balanced softmax and FedLC against numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedquilt.core.exchange import Context, Reply
from fedquilt.core.net import Net
from fedquilt.core.objective import Objective
from fedquilt.core.seed import Seed
from fedquilt.core.table import Batch
from fedquilt.data import Federation
from fedquilt.methods.long_tailed.losses import FedAvgBalanced, FedLC
from fedquilt.methods.personalised.fedproto import MEANS, ROWS, FedProto, Prototypes, near_prototypes
from fedquilt.methods.personalised.fedrod import FedRoD
from fedquilt.models.small import MLP, LogisticRegression
from fedquilt.pieces.objectives import balanced_softmax, calibrated
from fedquilt.pieces.optimizers import SGD
from helpers.toy import digits, last

DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(12, 3)).astype(np.float32)
Y = np.array([0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 2, 2])
ALONE = Federation.from_rows({"x": torch.tensor(X), "y": torch.tensor(Y)}, {0: {"train": range(12)}}, classes=4)
LINE = Net.of(LogisticRegression, features=3, classes=4)
COUNTS = np.array([7.0, 3.0, 2.0, 0.0])


def softmax(scores):
    e = np.exp(scores - scores.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def with_ones(x):
    return np.hstack([x, np.ones((len(x), 1))])


def weights(params, name):
    return np.hstack([params[f"{name}.weight"].double().numpy(), params[f"{name}.bias"].double().numpy()[:, None]])


def test_balanced_softmax_by_hand():
    """logits 1, 2, 0, counts 100, 10, 1, y = 1: -log(10 e^2 / (100 e + 10 e^2 + 1)) = 1.545929; plain: .407606."""
    logits, batch = torch.tensor([[1.0, 2.0, 0.0]]), Batch({"y": torch.tensor([1])})
    counts = torch.tensor([100, 10, 1])
    assert float(balanced_softmax(logits, {}, {"counts": counts}, batch)) == pytest.approx(1.545929, abs=1e-6)
    assert float(balanced_softmax(logits, {}, {"counts": torch.ones(3)}, batch)) == pytest.approx(0.407606, abs=1e-6)


def test_calibration_by_hand():
    """FedLC, tau = 2: scores s - 2 n^(-1/4); a class without rows, also one beyond the counts, does not count."""
    s, n = np.array([1.0, 2.0, 0.0, 5.0, 6.0]), np.array([16.0, 1.0, 81.0])
    shifted = s[:3] - 2 * n**-0.25
    expected = -np.log(np.exp(shifted[1]) / np.exp(shifted).sum())
    batch = Batch({"y": torch.tensor([1])})
    found = calibrated(2.0)(torch.tensor(s)[None], {}, {"counts": torch.tensor([16, 1, 81, 0])}, batch)
    assert float(found) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("kind", ["balanced", "calibrated", "plain"])
def test_long_tailed_descent(kind):
    """Two full-batch steps of softmax regression with shifted scores: gradient (softmax(s + shift) - onehot)' x / n."""
    with np.errstate(divide="ignore"):
        shift = {"balanced": np.log(COUNTS), "calibrated": -0.7 * COUNTS**-0.25, "plain": np.zeros(4)}[kind]
    method = {"balanced": FedAvgBalanced(LINE, **STEPS), "calibrated": FedLC(LINE, tau=0.7, **STEPS)}.get(kind)
    if method is None:
        method = FedLC(LINE, tau=0.0, **STEPS)
        shift[3] = -np.inf
    w, ones = weights(method.init_server(Seed(0).fold("server")).shared, "head"), with_ones(X)
    for _ in range(2):
        w = w - 0.5 * (softmax(ones @ w.T + shift) - np.eye(4)[Y]).T @ ones / len(X)
    assert np.allclose(weights(last(method, ALONE, rounds=1).state.shared, "head"), w, atol=1e-5)


STEPS = {"optimizer": SGD(0.5), "steps": 2, "batch_size": 12}


def test_fedrod_moves_each_head_by_its_own_loss():
    """G by balanced softmax of G alone, P by plain cross-entropy of G + P with G as it was before the step."""
    method = FedRoD(LINE, **STEPS)
    g, p, ones = weights(method.init_server(Seed(0).fold("server")).shared, "head"), np.zeros((4, 4)), with_ones(X)
    for _ in range(2):
        both = softmax(ones @ (g + p).T)
        with np.errstate(divide="ignore"):
            generic = softmax(ones @ g.T + np.log(COUNTS))
        g = g - 0.5 * (generic - np.eye(4)[Y]).T @ ones / len(X)
        p = p - 0.5 * (both - np.eye(4)[Y]).T @ ones / len(X)
    snapshot = last(method, ALONE, rounds=1)
    model = snapshot.personal_model(0)
    assert np.allclose(weights(model, "head"), g, atol=1e-5)
    assert np.allclose(weights(model, "own"), p, atol=1e-5)
    assert not any(n.startswith("own") for n in snapshot.state.shared)
    rows = Batch({"x": torch.tensor(X)})
    assert np.allclose(method.predict(model, rows).numpy(), ones @ (g + p).T, atol=1e-4)
    stranger = method.global_model(snapshot.state)
    assert np.allclose(method.predict(stranger, rows).numpy(), ones @ g.T, atol=1e-4)


def test_fedrod_s_own_head_does_not_move_the_body():
    net = Net.of(MLP, features=64, classes=10, hidden=(6,))
    rod, other = (FedRoD(net, optimizer=SGD(0.1), steps=3) for _ in range(2))
    vars(other)["loss"] = Objective(rod.net, rod.loss.terms[:1])  # without the own head's term
    a, b = (last(m, digits(), rounds=2).state.shared for m in (rod, other))
    assert all(torch.allclose(a[n], b[n], atol=1e-6) for n in a)


def test_prototypes_are_class_means_weighed_by_rows():
    """Server, class 0: (2 [1,1] + 6 [5,1]) / 8 = [4,1]; class 1 shown by one client; class 2 by none: as before."""
    method, context = FedProto(Net.of(MLP, features=3, classes=3, hidden=(2,))), Context(0, None, Seed(0))
    before = Prototypes({MEANS: torch.tensor([[9.0, 9], [9, 9], [7, 8]]), ROWS: torch.tensor([1.0, 1, 5])})
    one = Prototypes({MEANS: torch.tensor([[1.0, 1], [2, 3], [0, 0]]), ROWS: torch.tensor([2.0, 4, 0])})
    two = Prototypes({MEANS: torch.tensor([[5.0, 1], [0, 0], [0, 0]]), ROWS: torch.tensor([6.0, 0, 0])})
    after = method.up(before, [Reply(0, 6, one), Reply(1, 6, two)], context).classes
    assert after[MEANS].tolist() == [[4, 1], [2, 3], [7, 8]]
    assert after[ROWS].tolist() == [8, 4, 5]


def test_fedproto_sends_the_features_means_and_predicts_by_the_nearest():
    net = Net.of(MLP, features=3, classes=4, hidden=(5,))
    method = FedProto(net, **STEPS)
    snapshot = last(method, ALONE, rounds=2)
    model = snapshot.personal_model(0)
    z = np.maximum(with_ones(X) @ weights(model, "features.1").T, 0)
    means = np.stack([z[c == Y].mean(0) for c in range(3)])
    assert np.allclose(snapshot.state.classes[MEANS][:3].numpy(), means, atol=1e-5)
    assert snapshot.state.classes[ROWS].tolist() == COUNTS.tolist()
    found = method.predict(model, Batch({"x": torch.tensor(X)}))
    apart = ((z[:, None] - means) ** 2).sum(2)
    assert np.allclose(found[:, :3].numpy(), -apart, atol=1e-4)
    assert found.argmax(1).tolist() == apart.argmin(1).tolist()


def test_the_pull_towards_prototypes():
    """Mean over rows and features of (z - prototype)^2; the row of the unknown class counts as zero."""
    z = torch.tensor([[1.0, 2.0], [0.0, 0.0], [3.0, 3.0]])
    known = {MEANS: torch.tensor([[0.0, 0.0], [2.0, 4.0]]), ROWS: torch.tensor([5.0, 0.0])}
    batch = Batch({"y": torch.tensor([0, 0, 1])})
    out = type("Out", (), {"features": z})
    assert float(near_prototypes(0.5)(out, {}, {"prototypes": known}, batch)) == pytest.approx(0.5 * (2.5 + 0 + 0) / 3)
