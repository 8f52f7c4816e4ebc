"""FedAvgM, FedAdam, FedAdagrad and FedYogi against Reddi et al. 2021, algorithm 2, written in plain Python."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch

from fedquilt.core.net import Net
from fedquilt.core.seed import Seed
from fedquilt.errors import InputError
from fedquilt.methods.averaging.fedopt import FedAdagrad, FedAdam, FedAvgM, FedYogi
from fedquilt.pieces.optimizers import SGD
from helpers.scalar import LOSS, START, N, descend, mean, weight
from helpers.toy import Normed, digits, last

WORK = {"optimizer": SGD(0.1), "steps": 3, "batch_size": 4}
LR, B1, B2, TAU = 0.3, 0.8, 0.95, 0.01


def change(x):
    """Delta_t: the mean over clients, weighted by examples, of x_i - x after three steps."""
    return mean({k: descend(k, x, 0.1, 3) - x for k in N})


def adaptive(rounds, second, b1):
    x, m, v = START, 0.0, TAU**2
    for _ in range(rounds):
        d = change(x)
        m = b1 * m + (1 - b1) * d
        v = second(v, d * d)
        x = x + LR * m / (math.sqrt(v) + TAU)
    return x


def adam(v, dd):
    return B2 * v + (1 - B2) * dd


def yogi(v, dd):
    return v - (1 - B2) * dd * math.copysign(1, v - dd)


def adagrad(v, dd):
    return v + dd


@pytest.mark.parametrize("rounds", [1, 2, 5])
@pytest.mark.parametrize(
    ("method", "second"),
    [(partial(FedAdam, beta2=B2), adam), (partial(FedYogi, beta2=B2), yogi), (FedAdagrad, adagrad)],
    ids=["adam", "yogi", "adagrad"],
)
def test_adaptive_servers(method, second, rounds):
    ours = method(LOSS, server_lr=LR, beta1=B1, tau=TAU, **WORK)
    assert weight(ours, rounds) == pytest.approx(adaptive(rounds, second, B1), rel=1e-4)


def test_yogi_and_adam_differ():
    """The first change is far above tau, so both grow v alike; in later rounds only Adam forgets."""
    assert abs(adaptive(5, yogi, B1) - adaptive(5, adam, B1)) > 1e-3


@pytest.mark.parametrize("rounds", [1, 2, 4])
def test_server_momentum(rounds):
    x, v = START, 0.0
    for _ in range(rounds):
        v = 0.7 * v + change(x)
        x = x + 0.5 * v
    assert weight(FedAvgM(LOSS, server_lr=0.5, beta=0.7, **WORK), rounds) == pytest.approx(x, rel=1e-5)


def test_the_optimiser_leaves_batch_norm_statistics_to_the_mean():
    """With an enormous lr only trained weights fly off; the running statistics equal FedAvg's after one round."""
    net, work = Net(partial(Normed, width=8)), {"optimizer": SGD(0.1), "steps": 1}
    far = last(FedAdam(net, server_lr=100.0, **work), digits(), rounds=1).state
    near = last(FedAvgM(net, beta=0.0, **work), digits(), rounds=1).state
    for name in ("bn.running_mean", "bn.running_var", "bn.num_batches_tracked"):
        assert torch.equal(far.shared[name], near.shared[name])
        assert name not in far.memory[0]
    assert not torch.equal(far.shared["bn.weight"], near.shared["bn.weight"])
    assert set(FedAdam(net).init_server(Seed(0)).memory[1]) == set(net.trainable)


@pytest.mark.parametrize("wrong", [{"server_lr": 0.0}, {"beta1": 1.0}, {"beta2": -0.1}, {"tau": 0.0}])
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(InputError, match=next(iter(wrong)).removeprefix("server_")):
        FedAdam(LOSS, **wrong)
