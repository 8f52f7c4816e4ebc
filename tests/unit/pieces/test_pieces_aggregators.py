"""Aggregators, by hand."""

from __future__ import annotations

import pytest
import torch
from torch import tensor

from fedquilt.core.exchange import Context, Reply
from fedquilt.core.seed import Seed
from fedquilt.errors import InputError
from fedquilt.methods.fedavg import Upload
from fedquilt.pieces.aggregators import mean, noised, uniform_mean

TURN = Context(0, None, Seed(0))
NOW = {"w": tensor([10.0]), "count": tensor(5)}
REPLIES = [
    Reply("a", 1, Upload({"w": tensor([4.0]), "count": tensor(2)})),
    Reply("b", 3, Upload({"w": tensor([-4.0]), "count": tensor(3)})),
]


@pytest.mark.parametrize(("aggregate", "expected"), [(mean, 8.0), (uniform_mean, 10.0)])
def test_means(aggregate, expected):
    """10 + (1 * 4 - 3 * 4) / 4 = 8; unweighted 10 + 0; the counter grows by the largest change, 5 + 3."""
    got = aggregate(NOW, iter(REPLIES), TURN)
    assert (got["w"].tolist(), got["count"].item(), got["count"].dtype) == ([expected], 8, torch.int64)
    assert NOW["w"].tolist() == [10.0]


@pytest.mark.parametrize("aggregate", [mean, uniform_mean, noised(0.5)], ids=["mean", "uniform", "noised"])
def test_without_replies_nothing_changes(aggregate):
    assert aggregate(NOW, iter(()), TURN) is NOW


def test_noise_spares_counters_and_single_numbers():
    """A tensor of one number has no (n-1)-deviation; scale 0 is no noise."""
    got = noised(0.5)(NOW, iter(REPLIES), TURN)
    assert (got["w"].tolist(), got["count"].item()) == ([8.0], 8)
    wide = {"w": torch.arange(4.0)}
    replies = [Reply("a", 1, Upload({"w": torch.ones(4)}))]
    assert noised(0.0)(wide, iter(replies), TURN)["w"].tolist() == [1, 2, 3, 4]
    assert noised(0.1)(wide, iter(replies), TURN)["w"].tolist() != [1, 2, 3, 4]


def test_noise_needs_a_scale():
    with pytest.raises(InputError, match="scale >= 0, got -1"):
        noised(-1.0)
