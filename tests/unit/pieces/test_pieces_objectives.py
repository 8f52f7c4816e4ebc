"""Terms of an objective."""

from __future__ import annotations

import math

import pytest
import torch
from torch import tensor

from fedquilt.core.table import Batch
from fedquilt.errors import InputError
from fedquilt.pieces.objectives import cross_entropy, prox, weighted_mean


def test_cross_entropy_by_hand():
    """Scores (0, log 3) for labels 0 and 1: -log(1/4) and -log(3/4), mean (log 4 + log 4/3) / 2."""
    logits = tensor([[0.0, math.log(3)]] * 2)
    batch = Batch({"y": tensor([0, 1])})
    expected = (math.log(4) + math.log(4 / 3)) / 2
    assert float(cross_entropy(logits, {}, {}, batch)) == pytest.approx(expected, rel=1e-6)


def test_padding_does_not_count():
    """Rows of weight 0 are as good as absent."""
    draw = torch.Generator().manual_seed(0)
    logits, y = torch.randn(5, 3, generator=draw), tensor([0, 1, 2, 0, 1])
    padded = Batch({"y": y}, weight=tensor([1.0, 1.0, 1.0, 0.0, 0.0]))
    short = Batch({"y": y[:3]})
    torch.testing.assert_close(cross_entropy(logits, {}, {}, padded), cross_entropy(logits[:3], {}, {}, short))
    assert float(weighted_mean(tensor([1.0, 5.0]), tensor([3.0, 1.0]))) == 2.0
    assert float(weighted_mean(tensor([1.0]), tensor([0.0]))) == 0.0


def test_prox_is_half_mu_times_the_squared_distance_of_trained_shared_names():
    """mu/2 (1^2 + 2^2) = 0.5 * 5; buffers and private names are no part of it."""
    w = tensor([1.0, 2.0], requires_grad=True)
    params = {"w": w, "buffer": tensor(7.0), "private": tensor(9.0, requires_grad=True)}
    fixed = {"start": {"w": tensor([0.0, 0.0]), "buffer": tensor(0.0)}}
    value = prox(1.0)(tensor([0.0]), params, fixed, Batch({}))
    assert value.item() == 2.5
    (gradient,) = torch.autograd.grad(value, [w])
    assert gradient.tolist() == [1.0, 2.0]  # mu (w - start)


def test_prox_needs_a_strength():
    with pytest.raises(InputError, match="mu >= 0, got -1"):
        prox(-1.0)
