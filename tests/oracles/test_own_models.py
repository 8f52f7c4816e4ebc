"""APFL, pFedMe and Per-FedAvg against their papers' algorithms, in plain Python on a model with one weight."""

from __future__ import annotations

import pytest
import torch

from fedquilt.data import Federation
from fedquilt.errors import InputError
from fedquilt.methods.personalised.apfl import APFL
from fedquilt.methods.personalised.perfedavg import PerFedAvg, PerFedAvgHF
from fedquilt.methods.personalised.pfedme import PFedMe
from fedquilt.pieces.optimizers import SGD
from helpers.scalar import DATA, LOSS, START, N, gradient, mean
from helpers.toy import last

LR, K = 0.1, 3
WORK = {"optimizer": SGD(LR), "steps": K, "batch_size": 4}


def own(snapshot, clients=N):
    return [float(snapshot.personal_model(k)["w"]) for k in clients]


def apfl_by_hand(rounds, rate):
    x, v, alpha = START, dict.fromkeys(N, START), dict.fromkeys(N, 0.5)
    for _ in range(rounds):
        ws = {}
        for k in N:
            a = alpha[k]
            a -= rate * LR * (v[k] - x) * gradient(k, a * v[k] + (1 - a) * x)
            alpha[k] = a = min(1.0, max(0.0, a))
            w = x
            for _ in range(K):
                mixed = a * v[k] + (1 - a) * w
                w, v[k] = w - LR * gradient(k, w), v[k] - LR * a * gradient(k, mixed)  # chain rule: a
            ws[k] = w
        x = mean(ws)
    return x, alpha, [alpha[k] * v[k] + (1 - alpha[k]) * x for k in N]


@pytest.mark.parametrize(("rounds", "rate"), [(1, 1.0), (4, 1.0), (4, 0.0), (6, 40.0)])
def test_apfl(rounds, rate):
    snapshot = last(APFL(LOSS, alpha_rate=rate, **WORK), DATA, rounds=rounds)
    x, alpha, models = apfl_by_hand(rounds, rate)
    assert float(snapshot.state.shared["w"]) == pytest.approx(x, rel=1e-5)
    assert own(snapshot) == pytest.approx(models, rel=1e-4)
    assert (rate == 0 or rounds == 1) == all(a == 0.5 for a in alpha.values())
    assert rate < 40 or {0.0, 1.0} & set(alpha.values())  # the bounds were met


def pfedme_by_hand(rounds, lam, lr, steps, beta):
    def theta(k, w):
        t = w
        for _ in range(steps):
            t -= lr * (gradient(k, t) + lam * (t - w))
        return t

    x, models = START, {}
    for _ in range(rounds):
        ws = {}
        for k in N:
            w = x
            for _ in range(K):
                w -= LR * lam * (w - theta(k, w))
            ws[k], models[k] = w, theta(k, w)
        x = (1 - beta) * x + beta * sum(ws.values()) / len(ws)
    return x, list(models.values())


@pytest.mark.parametrize(("rounds", "beta"), [(1, 1.0), (3, 1.0), (3, 0.5)])
def test_pfedme(rounds, beta):
    method = PFedMe(LOSS, lam=2.0, inner_lr=0.2, inner_steps=4, beta=beta, **WORK)
    snapshot = last(method, DATA, rounds=rounds)
    x, models = pfedme_by_hand(rounds, 2.0, 0.2, 4, beta)
    assert float(snapshot.state.shared["w"]) == pytest.approx(x, rel=1e-5)
    assert own(snapshot) == pytest.approx(models, rel=1e-5)


# Rows of a client are alike, so that every part of a batch has the same gradient a (w - t), a = x^2, t = y / x.
ALIKE = Federation.from_rows(
    {"x": torch.tensor([1.0] * 6 + [0.5] * 12), "y": torch.tensor([4] * 6 + [1] * 12)},
    {0: {"train": range(6)}, 1: {"train": range(6, 18)}},
)
CURVE, TARGET = {0: 1.0, 1: 0.25}, {0: 4.0, 1: 2.0}


def meta_by_hand(rounds, alpha, hessian):
    """F(w) = f(w - alpha f'(w)):  F' = (1 - alpha f'') f'(w'), of which first order drops the factor."""
    x = START
    for _ in range(rounds):
        ws = []
        for k, a in CURVE.items():
            w = x
            for _ in range(K):
                moved = w - alpha * a * (w - TARGET[k])
                w -= LR * (1 - alpha * a * hessian) * a * (moved - TARGET[k])
            ws.append(w)
        x = sum(ws) / len(ws)  # every client counts the same, though one has twice the rows
    return x, [x - alpha * a * (x - TARGET[k]) for k, a in CURVE.items()]


@pytest.mark.parametrize(("method", "hessian"), [(PerFedAvg, 0), (PerFedAvgHF, 1)], ids=["FO", "HF"])
@pytest.mark.parametrize("rounds", [1, 3])
def test_perfedavg(method, hessian, rounds):
    snapshot = last(method(LOSS, alpha=0.3, **{**WORK, "batch_size": 6}), ALIKE, rounds=rounds)
    x, models = meta_by_hand(rounds, 0.3, hessian)
    assert float(snapshot.state.shared["w"]) == pytest.approx(x, rel=1e-4)
    assert own(snapshot, CURVE) == pytest.approx(models, rel=1e-4)


def test_impossible_settings_are_refused():
    for method, wrong in (
        (APFL, {"alpha": 1.1}),
        (PFedMe, {"lam": 0.0}),
        (PFedMe, {"beta": 0.0}),
        (PerFedAvg, {"alpha": 0.0}),
        (PerFedAvgHF, {"delta": 0.0}),
    ):
        with pytest.raises(InputError, match=next(iter(wrong))):
            method(LOSS, **wrong)
