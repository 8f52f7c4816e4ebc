"""FedAvg and its kin, worked by hand on a model with one weight: out = w x, loss = mean (w x - y)^2 / 2."""

from __future__ import annotations

import pytest
import torch
from torch import tensor

from fedquilt.core.exchange import Context, Reply
from fedquilt.core.net import Net
from fedquilt.core.objective import Objective
from fedquilt.core.seed import Seed
from fedquilt.data import Federation
from fedquilt.methods.averaging.centralised import Centralised
from fedquilt.methods.averaging.fedavg_noise import FedAvgNoise
from fedquilt.methods.averaging.fedprox import FedProx
from fedquilt.methods.averaging.local_only import LocalOnly
from fedquilt.methods.fedavg import FedAvg, Upload
from fedquilt.pieces.aggregators import noised, uniform_mean
from fedquilt.pieces.optimizers import SGD
from helpers.toy import OneWeight, last, points, squared_error
from helpers.toy import fedavg as tiny_fedavg

# Client 0 has one row (x = 1, y = 4), client 1 four rows (x = 1, y = 0).
DATA = Federation.from_rows(
    {"x": torch.ones(5), "y": tensor([4, 0, 0, 0, 0])}, {0: {"train": [0]}, 1: {"train": [1, 2, 3, 4]}}
)
ALONE = Federation.from_rows({"x": torch.ones(1), "y": tensor([4])}, {0: {"train": [0]}})
LOSS = Objective(Net.of(OneWeight, start=1.0), (squared_error,))
ONE_STEP = {"optimizer": SGD(0.5), "steps": 1, "batch_size": 4}


def weight(method, data=DATA, rounds=1):
    return float(last(method, data, rounds=rounds).state.shared["w"])


@pytest.mark.parametrize(("rounds", "expected"), [(1, 0.9), (2, 0.85), (3, 0.825)])
def test_fedavg_weighs_clients_by_samples(rounds, expected):
    """From w, lr 1/2, one step: client 0 moves by -(w - 4)/2, client 1 by -w/2.

    w <- w + (1 * -(w - 4)/2 + 4 * -w/2) / 5 = w/2 + 0.4:   1 -> 0.9 -> 0.85 -> 0.825
    """
    assert weight(FedAvg(objective=LOSS, **ONE_STEP), rounds=rounds) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("rounds", "expected"), [(1, 1.5), (2, 1.75)])
def test_fedavg_uniform_counts_clients_the_same(rounds, expected):
    """w <- w + (-(w - 4)/2 - w/2) / 2 = w/2 + 1:   1 -> 1.5 -> 1.75"""
    method = FedAvg(objective=LOSS, aggregate=uniform_mean, **ONE_STEP)
    assert weight(method, rounds=rounds) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("mu", "expected"), [(0.0, 3.25), (1.0, 2.5), (0.5, 2.875)])
def test_fedprox_pulls_with_the_squared_distance(mu, expected):
    """Client 0 alone, two steps from w = 1.

    step 1: gradient = (1 - 4) + mu * 0            -> w = 2.5
    step 2: gradient = (2.5 - 4) + mu (2.5 - 1)    -> w = 2.5 - (-1.5 + 1.5 mu) / 2 = 3.25 - 0.75 mu
    With the distance itself instead of its square, mu = 1 would give 2.5 - (-1.5 + 0.5) / 2 = 3.0.
    """
    method = FedProx(LOSS, mu=mu, optimizer=SGD(0.5), steps=2)
    assert weight(method, ALONE) == pytest.approx(expected, abs=1e-6)


def test_fedprox_pulls_towards_this_round_s_start_not_the_first():
    """mu = 1, one client: the second round starts at 2.5, so its first step is free of the pull.

    step 1: gradient = 2.5 - 4 = -1.5 -> 3.25;  step 2: (3.25 - 4) + (3.25 - 2.5) = 0 -> 3.25
    """
    assert weight(FedProx(LOSS, mu=1.0, optimizer=SGD(0.5), steps=2), ALONE, 2) == pytest.approx(3.25, abs=1e-6)


def test_local_only_is_each_client_by_itself():
    """Client 0: 1 -> 2.5 -> 3.25 (halfway to 4 each time); client 1: 1 -> 0.5 -> 0.25 (halfway to 0)."""
    snapshot = last(LocalOnly(LOSS, **ONE_STEP), DATA, rounds=2)
    assert snapshot.state.shared == {}
    assert [float(snapshot.personal_model(c)["w"]) for c in (0, 1)] == pytest.approx([3.25, 0.25], abs=1e-6)


def test_centralised_is_descent_on_the_union():
    """All five rows in one batch: gradient = w - 4/5, lr 1/2:  1 -> 0.9 -> 0.85"""
    method = Centralised(objective=LOSS, optimizer=SGD(0.5), steps=1, batch_size=5)
    assert weight(method, rounds=2) == pytest.approx(0.85, abs=1e-6)


def test_one_client_and_one_round_is_plain_training():
    """With a single client, w + (w_1 - w) = w_1: two rounds of one epoch are its own descent, 1 -> 2.5 -> 3.25."""
    assert weight(FedAvg(objective=LOSS, **ONE_STEP), ALONE, 2) == pytest.approx(3.25, abs=1e-6)


def test_noise_is_that_of_the_documented_generator():
    """mean + randn * (scale * std), drawn name by name from Seed(0).fold('up', 'train', 0).fold('noise')."""
    data = points(12, 20)
    plain = last(tiny_fedavg(aggregate=uniform_mean), data, rounds=1).state.shared
    noisy = last(FedAvgNoise(tiny_fedavg().objective, noise=0.3, optimizer=SGD(0.1), batch_size=8), data, rounds=1)
    draw = Seed(0).fold("up", "train", 0).fold("noise").torch()
    for name, tensor_ in plain.items():
        expected = tensor_ + torch.randn(tensor_.shape, generator=draw) * (0.3 * tensor_.std(unbiased=True))
        assert torch.equal(noisy.state.shared[name], expected)


def test_noise_has_the_stated_deviation():
    """40,000 draws: the sample deviation is within 4 / sqrt(2 * 40000) = 1.4 % of scale * std, the mean within 2 %.

    std is the (n-1) one of the merged tensor, a ramp from 0 to 1 moved by 5; the shift must not count.
    """
    ramp = {"w": torch.linspace(0, 1, 40_000)}
    reply = Reply(0, 1, Upload({"w": torch.full((40_000,), 5.0)}))
    got = noised(0.1)(ramp, [reply], Context(0, None, Seed(1)))["w"]
    noise, spread = got - (ramp["w"] + 5), 0.1 * float(ramp["w"].std())
    assert float(noise.std()) == pytest.approx(spread, rel=0.014)
    assert abs(float(noise.mean())) < 0.02 * spread


def test_noise_differs_by_round_and_seed():
    ramp, reply = {"w": torch.linspace(0, 1, 10)}, Reply(0, 1, Upload({"w": torch.zeros(10)}))

    def draw(*keys):
        return noised(0.1)(ramp, [reply], Context(0, None, Seed(0).fold(*keys)))["w"]

    assert torch.equal(draw("up", 0), draw("up", 0))
    assert not torch.equal(draw("up", 0), draw("up", 1))
