"""SCAFFOLD, FedNova and FedDyn against their papers' algorithms, written in plain Python on a model with one weight."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedquilt.core.exchange import at_random
from fedquilt.core.seed import Seed
from fedquilt.data import Federation
from fedquilt.errors import InputError
from fedquilt.methods.averaging.feddyn import FedDyn
from fedquilt.methods.averaging.fednova import FedNova, pace
from fedquilt.methods.averaging.scaffold import Scaffold
from fedquilt.pieces.optimizers import SGD, Adam
from helpers.scalar import DATA, LOSS, START, N, gradient, weight
from helpers.toy import last

LR, K = 0.1, 4
WORK = {"optimizer": SGD(LR), "steps": K, "batch_size": 4}


def cohort(round, count):
    """Who is asked: the documented draw, Seed(0).fold('cohort', round)."""
    return at_random(count)(None, (0, 1, 2), Seed(0).fold("cohort", round))


def scaffold_by_hand(rounds, server_lr, count):
    x, c, own = START, 0.0, dict.fromkeys(N, 0.0)
    for r in range(rounds):
        asked = cohort(r, count)
        moves, shifts = [], []
        for i in asked:
            y = x
            for _ in range(K):
                y -= LR * (gradient(i, y) - own[i] + c)
            new = own[i] - c + (x - y) / (K * LR)  # option II
            moves.append(y - x)
            shifts.append(new - own[i])
            own[i] = new
        x += server_lr * sum(moves) / len(asked)
        c += sum(shifts) / len(N)  # |S|/N times the mean
    return x, c, own


@pytest.mark.parametrize(("rounds", "server_lr", "count"), [(1, 1.0, 3), (4, 1.0, 3), (5, 0.5, 2)])
def test_scaffold(rounds, server_lr, count):
    method = Scaffold(LOSS, server_lr=server_lr, cohort=at_random(count), **WORK)
    state = last(method, DATA, rounds=rounds).state
    x, c, own = scaffold_by_hand(rounds, server_lr, count)
    assert float(state.shared["w"]) == pytest.approx(x, rel=1e-5)
    assert float(state.control["w"]) == pytest.approx(c, rel=1e-4)
    assert c == pytest.approx(sum(own.values()) / len(N))  # c stays the mean of all c_i, also of those not asked


def test_scaffold_converges_to_the_minimum_of_the_mean_loss():
    """With unlike clients and many local steps, FedAvg stops elsewhere: the drift is what c takes out."""
    a = {k: gradient(k, 1.0) - gradient(k, 0.0) for k in N}
    best = -sum(gradient(k, 0.0) for k in N) / sum(a.values())
    assert weight(Scaffold(LOSS, **{**WORK, "steps": 8}), 60) == pytest.approx(best, abs=1e-3)


def test_scaffold_refuses_optimisers_whose_distance_is_no_gradient():
    for optimizer in (SGD(0.1, momentum=0.9), Adam(0.1)):
        with pytest.raises(InputError, match="without momentum"):
            Scaffold(LOSS, optimizer=optimizer)


def nova_by_hand(rounds, momentum):
    """p_i = n_i / n; a_i from the paper's closed form; epochs of batch 1, so tau_i = 2 n_i and clients differ.

    Rows of a client come in any order, so all of a client's samples must be alike here; see ``alike``.
    """
    x, n = START, sum(ROWS.values())
    for _ in range(rounds):
        gradients, steps = 0.0, 0.0
        for i, count in ROWS.items():
            tau = 2 * count
            a = np.array([(1 - momentum ** (tau - k)) / (1 - momentum) for k in range(tau)])
            y, v, grads = x, 0.0, []
            for _ in range(tau):
                grads.append(y - TARGET[i])
                v = momentum * v + grads[-1]
                y -= LR * v
            assert x - y == pytest.approx(LR * a @ np.array(grads))  # the definition of a_i
            gradients += count / n * (a @ np.array(grads)) / a.sum()  # p_i d_i
            steps += count / n * a.sum()  # tau_eff
        x -= steps * LR * gradients
    return x


ROWS, TARGET = {0: 1, 1: 3}, {0: 4, 1: 0}


def alike():
    """Client 0 has one row (1, 4), client 1 three rows (1, 0)."""
    columns = {"x": torch.ones(4), "y": torch.tensor([4, 0, 0, 0])}
    return Federation.from_rows(columns, {0: {"train": [0]}, 1: {"train": [1, 2, 3]}})


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("rounds", [1, 3])
def test_fednova(rounds, momentum):
    method = FedNova(LOSS, optimizer=SGD(LR, momentum), epochs=2, batch_size=1)
    found = float(last(method, alike(), rounds=rounds).state.shared["w"])
    assert found == pytest.approx(nova_by_hand(rounds, momentum), rel=1e-5)


def test_pace_is_the_sum_of_the_weights_of_the_gradients():
    """|a|_1 = (t - m (1 - m^t) / (1 - m)) / (1 - m) with momentum, t without; by hand for nesterov.

    nesterov, m = 1/2, 2 steps: v = 1, step 1 + 1/2; v = 3/2, step 1 + 3/4; sum 3.25
    """
    assert pace(SGD(0.1), 7) == 7
    assert pace(SGD(0.1, 0.9), 7) == pytest.approx((7 - 0.9 * (1 - 0.9**7) / 0.1) / 0.1)
    assert pace(SGD(0.1, 0.5, nesterov=True), 2) == 3.25
    with pytest.raises(InputError, match="FedNova needs SGD"):
        FedNova(LOSS, optimizer=Adam(0.1))


def feddyn_by_hand(rounds, alpha, count):
    x, h, g = START, 0.0, dict.fromkeys(N, 0.0)
    for r in range(rounds):
        asked, models = cohort(r, count), []
        for k in asked:
            y = x
            for _ in range(K):
                y -= LR * (gradient(k, y) - g[k] + alpha * (y - x))
            g[k] -= alpha * (y - x)
            models.append(y)
        h -= alpha / len(N) * sum(y - x for y in models)
        x = sum(models) / len(asked) - h / alpha
    return x, h


@pytest.mark.parametrize(("rounds", "alpha", "count"), [(1, 0.5, 3), (4, 0.5, 3), (5, 1.0, 2)])
def test_feddyn(rounds, alpha, count):
    state = last(FedDyn(LOSS, alpha=alpha, cohort=at_random(count), **WORK), DATA, rounds=rounds).state
    x, h = feddyn_by_hand(rounds, alpha, count)
    assert float(state.shared["w"]) == pytest.approx(x, rel=1e-4)
    assert float(state.h["w"]) == pytest.approx(h, rel=1e-4)
