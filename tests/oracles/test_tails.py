"""CReFF, Ratio Loss and FedRoD's hypernetwork against numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedquilt.core.exchange import Context, Reply
from fedquilt.core.net import Net
from fedquilt.core.seed import Seed
from fedquilt.core.table import Batch, Table
from fedquilt.data import Federation
from fedquilt.errors import InputError
from fedquilt.methods.fedavg import FedAvg
from fedquilt.methods.long_tailed.creff import CReFF
from fedquilt.methods.long_tailed.ratio_loss import RatioLoss, ratios
from fedquilt.methods.personalised.fedrod import FedRoDHyper
from fedquilt.models.small import LogisticRegression
from fedquilt.pieces.class_gradients import BIAS, WEIGHT, ClassGradients, GradientUpload, class_gradients, head_of
from fedquilt.pieces.objectives import class_weighted
from fedquilt.pieces.optimizers import SGD
from helpers.toy import last

DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(12, 3)).astype(np.float32)
Y = np.array([0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 2, 2])
LINE = Net.of(LogisticRegression, features=3, classes=4)
ROWS = {"x": torch.tensor(X), "y": torch.tensor(Y)}
TWO = Federation.from_rows(ROWS, {0: {"train": range(8)}, 1: {"train": range(8, 12)}}, classes=4)
STEPS = {"optimizer": SGD(0.5), "steps": 2, "batch_size": 12}
TURN = Context(0, None, Seed(3), 2)


def softmax(scores):
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def gradient_by_hand(w, b, z, c):
    """Mean over rows of (p - e_c) z' and p - e_c."""
    off = softmax(z @ w.T + b) - np.eye(len(w))[c]
    return off.T @ z / len(z), off.mean(0)


def array(tensor):
    return tensor.double().numpy()


def server(method, seed=0):
    state = method.init_server(Seed(seed))
    return state, array(state.shared[WEIGHT]), array(state.shared[BIAS])


def test_gradients_are_those_of_the_mean_loss_of_a_class():
    """Against central differences of -mean log softmax over the rows of the class; class 3 has none."""
    head = head_of(LINE.init(Seed(1)))
    found = class_gradients(LINE, head, Table(ROWS), head)
    w, b = array(head[WEIGHT]), array(head[BIAS])
    for c in range(3):
        for at in np.ndindex(*w.shape):
            step = np.zeros_like(w)
            step[at] = 1e-5
            up, down = (-np.log(softmax(X[c == Y] @ (w + s).T + b)[:, c]).mean() for s in (step, -step))
            assert float(found.gradients[WEIGHT][(c, *at)]) == pytest.approx((up - down) / 2e-5, abs=1e-5)
    assert found.shown.tolist() == [True, True, True, False]
    assert not any(t[3].any() for t in found.gradients.values())


def distance(w, b, features, wanted):
    """Sum over classes, of rows of the weight's gradient and of the bias's, of 1 - cosine."""
    total = 0.0
    for c, (want_w, want_b) in wanted.items():
        got_w, got_b = gradient_by_hand(w, b, features[c], c)
        for got, want in [*zip(got_w, want_w, strict=True), (got_b, want_b)]:
            total += 1 - got @ want / np.linalg.norm(got) / np.linalg.norm(want)
    return total


def creff_by_hand(w, b, features, wanted, fresh_w, fresh_b):
    """Two steps of 0.1 on the features, by central differences; three full-batch steps of 0.2 on a fresh head."""
    for _ in range(2):
        gradient = np.zeros_like(features)
        for at in np.ndindex(*features.shape):
            step = np.zeros_like(features)
            step[at] = 1e-5
            up, down = (distance(w, b, features + s, wanted) for s in (step, -step))
            gradient[at] = (up - down) / 2e-5
        features = features - 0.1 * gradient
    for _ in range(3):
        parts = [gradient_by_hand(fresh_w, fresh_b, features[c], c) for c in range(len(features))]
        fresh_w = fresh_w - 0.2 * np.mean([p[0] for p in parts], 0)
        fresh_b = fresh_b - 0.2 * np.mean([p[1] for p in parts], 0)
    return features, fresh_w, fresh_b


def test_creff_s_server_step():
    """Clients hold classes {0, 1} and {1, 2}: class 1's gradients are averaged evenly; class 3's features stay."""
    options = {"features": 2, "match_steps": 2, "match_lr": 0.1, "retrain_epochs": 3, "retrain_lr": 0.2}
    method = CReFF(LINE, **options, **STEPS)
    state = method.init_server(Seed(0))
    w, b = array(state.head[WEIGHT]), array(state.head[BIAS])
    clients = [TWO.site(c, 0).train for c in (0, 1)]
    uploads = [class_gradients(LINE, {**state.shared, **state.head}, t, state.head) for t in clients]
    zeros = {n: torch.zeros_like(t) for n, t in state.shared.items()}
    after = method.up(state, [Reply(i, 4, GradientUpload(zeros, u)) for i, u in enumerate(uploads)], TURN)
    per_client = [{c: gradient_by_hand(w, b, X[r][Y[r] == c], c) for c in set(Y[r])} for r in (range(8), range(8, 12))]
    wanted = {c: [np.mean([p[c][i] for p in per_client if c in p], 0) for i in (0, 1)] for c in range(3)}
    fresh = head_of(LINE.init(TURN.seed.fold("head")))
    features, new_w, new_b = creff_by_hand(
        w, b, array(state.features), wanted, array(fresh[WEIGHT]), array(fresh[BIAS])
    )
    assert np.allclose(array(after.features), features, atol=1e-5)
    assert torch.equal(after.features[3], state.features[3])
    assert np.allclose(array(after.head[WEIGHT]), new_w, atol=1e-5)
    assert np.allclose(array(after.head[BIAS]), new_b, atol=1e-5)


def test_creff_trains_as_fedavg_and_serves_the_other_head():
    method = CReFF(LINE, features=2, match_steps=1, retrain_epochs=1, **STEPS)
    found, plain = last(method, TWO), last(FedAvg(objective=LINE, **STEPS), TWO)
    assert all(torch.equal(found.state.shared[n], t) for n, t in plain.state.shared.items())
    assert torch.equal(method.global_model(found.state)[WEIGHT], found.state.head[WEIGHT])
    assert torch.equal(found.personal_model(1)[BIAS], found.state.head[BIAS])
    assert not hasattr(method.down(found.state, 0), "features")


def ratios_by_hand(pushes):
    """Weight by weight, as the paper's code goes through them."""
    classes, found = len(pushes), []
    mine, others = np.zeros(classes), np.zeros(classes)
    for at in np.ndindex(*pushes.shape[1:]):
        values = np.array([p[at] for p in pushes])
        top = int(values.argmax())
        if values[top] > 0 and (np.abs(values) / abs(values[top]) > 0.8).sum() < 2:
            mine[top] += values[top]
            others[top] += np.delete(values, top).sum() / (classes - 1)
    for m, o in zip(mine, others, strict=True):
        found.append(10.0 if o == 0 else min(abs(m) / abs(o), 5000.0))
    return found


def test_ratios():
    """By hand: weight 0 speaks for class 0 (4 against mean -1.5), weight 1 for nobody (-0.9 is too near 1)."""
    pushes = torch.tensor([[4.0, 1.0], [-1.0, -0.9], [-2.0, 0.0]], dtype=torch.float64)
    assert ratios(pushes).tolist() == pytest.approx([4 / 1.5, 10.0, 10.0])
    drawn = np.random.default_rng(1).normal(size=(4, 4, 9))
    assert ratios(torch.tensor(drawn)).tolist() == pytest.approx(ratios_by_hand(drawn))


def test_class_weights_multiply_the_loss_of_a_row():
    """Scores 0, 0: each row costs log 2; classes weigh 1 and 3, rows of classes 0, 1, 1: (1 + 3 + 3)/3 log 2."""
    batch = Batch({"y": torch.tensor([0, 1, 1])})
    found = class_weighted(torch.zeros(3, 2), {}, {"weights": torch.tensor([1.0, 3.0])}, batch)
    assert float(found) == pytest.approx(7 / 3 * np.log(2))


def test_ratio_loss_begins_as_fedavg_and_then_weighs():
    """Round 1 is FedAvg; the weights made of it are alpha + beta R, and class 3, which nobody has, keeps 1."""
    method = RatioLoss(LINE, alpha=0.7, beta=0.2, **STEPS)
    first, plain = last(method, TWO, rounds=1), last(FedAvg(objective=LINE, **STEPS), TWO, rounds=1)
    assert all(torch.allclose(first.state.shared[n], t, atol=1e-7) for n, t in plain.state.shared.items())
    w, b = (array(method.init_server(Seed(0).fold("server")).shared[n]) for n in (WEIGHT, BIAS))
    per_client = [{c: gradient_by_hand(w, b, X[r][Y[r] == c], c) for c in set(Y[r])} for r in (range(8), range(8, 12))]
    pushes = np.stack([-np.mean([p[c][0] for p in per_client if c in p], 0) for c in range(3)])
    expected = [0.7 + 0.2 * r for r in ratios_by_hand(pushes)]
    assert first.state.weights.tolist() == pytest.approx([*expected, 1.0], rel=1e-4)
    later, unweighed = last(method, TWO), last(FedAvg(objective=LINE, **STEPS), TWO)
    assert not torch.allclose(later.state.shared[WEIGHT], unweighed.state.shared[WEIGHT], atol=1e-4)


def test_gradients_that_do_not_fit_are_refused():
    method = RatioLoss(LINE, **STEPS)
    state, _, _ = server(method)
    zeros = {n: torch.zeros_like(t) for n, t in state.shared.items()}
    good = {WEIGHT: torch.zeros(4, 4, 3), BIAS: torch.zeros(4, 4)}
    method.check(state, GradientUpload(zeros, ClassGradients(good, torch.ones(4) > 0)))
    every = torch.ones(4) > 0
    for gradients, shown in (({**good, BIAS: torch.zeros(4)}, every), (good, every[:3]), (good, every.long())):
        with pytest.raises(InputError, match="upload"):
            method.check(state, GradientUpload(zeros, ClassGradients(gradients, shown)))


def test_impossible_settings_are_refused():
    with pytest.raises(InputError, match="at least 1"):
        CReFF(LINE, features=0)
    with pytest.raises(InputError, match="alpha > 0"):
        RatioLoss(LINE, alpha=0.0)
    with pytest.raises(InputError, match="linear layer called head"):
        CReFF(Net.of(torch.nn.Linear, 3, 4)).init_server(Seed(0))


def test_fedrod_hyper_learns_a_matrix_that_makes_heads_from_shares():
    """P = H a with a = (7, 3, 2, 0)/12: the gradient along H is (gradient along P) a'; G as in FedRoD."""
    alone = Federation.from_rows(ROWS, {0: {"train": range(12)}}, classes=4)
    method, ones = FedRoDHyper(LINE, **STEPS), np.hstack([X, np.ones((12, 1))])
    start = method.init_server(Seed(0).fold("server")).shared
    g = np.hstack([array(start[WEIGHT]), array(start[BIAS])[:, None]])
    h, a, hot = np.zeros((16, 4)), np.array([7, 3, 2, 0]) / 12, np.eye(4)[Y]
    for _ in range(2):
        both = softmax(ones @ (g + (h @ a).reshape(4, 4)).T)
        with np.errstate(divide="ignore"):
            generic = softmax(ones @ g.T + np.log(12 * a))
        g = g - 0.5 * (generic - hot).T @ ones / 12
        h = h - 0.5 * np.outer(((both - hot).T @ ones / 12).ravel(), a)
    snapshot = last(method, alone, rounds=1)
    model, rows = snapshot.personal_model(0), Batch({"x": torch.tensor(X)})
    assert np.allclose(array(snapshot.state.shared["hyper.weight"]), h, atol=1e-5)
    assert model["shares"].tolist() == pytest.approx(a.tolist())
    assert "shares" not in snapshot.state.shared
    assert np.allclose(array(method.predict(model, rows)), ones @ (g + (h @ a).reshape(4, 4)).T, atol=1e-4)
    assert np.allclose(array(method.predict(method.global_model(snapshot.state), rows)), ones @ g.T, atol=1e-4)
