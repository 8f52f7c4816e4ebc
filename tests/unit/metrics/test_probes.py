"""Probes of features: a linear layer and neighbours."""

from __future__ import annotations

import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier

from fedquilt.core.seed import Seed
from fedquilt.errors import InputError
from fedquilt.metrics.continual import LinearProbe, Neighbours
from fedquilt.rounds.client import one_thread


def blobs(rows: int, seed: int, spread: float = 0.1) -> tuple[torch.Tensor, torch.Tensor]:
    """Three directions with a large common part, as features of autoencoders have."""
    draw = torch.Generator().manual_seed(seed)
    y = torch.arange(rows) % 3
    return 5 + torch.eye(8)[y] + spread * torch.randn(rows, 8, generator=draw), y


def test_what_can_be_told_apart_is():
    right = LinearProbe(least=100)(blobs(90, 0), blobs(60, 1), Seed(0))
    assert right.shape == (60,)
    assert float(right.double().mean()) > 0.95


def test_the_same_seed_gives_the_same_answers():
    with one_thread():
        found = [LinearProbe(least=30, batch_size=16)(blobs(90, 0, 1.0), blobs(60, 1, 1.0), Seed(4)) for _ in range(2)]
    assert torch.equal(*found)


def test_neighbours_vote_as_elsewhere():
    (x, y), (new, truth) = blobs(200, 0, 0.7), blobs(100, 1, 0.7)
    theirs = KNeighborsClassifier(20, metric="cosine").fit(x.numpy(), y.numpy()).predict(new.numpy())
    assert Neighbours(20)((x, y), (new, truth)).tolist() == (theirs == truth.numpy()).tolist()


def test_more_neighbours_than_rows_are_all_rows():
    assert Neighbours(20)(
        (torch.eye(2)[[0, 0, 1]], torch.tensor([0, 0, 1])), (torch.eye(2), torch.tensor([0, 0]))
    ).all()


def test_nothing_to_learn_from_is_refused():
    none = torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64)
    for probe in (lambda: LinearProbe()(none, none, Seed(0)), lambda: Neighbours()(none, none), lambda: Neighbours(0)):
        with pytest.raises(InputError):
            probe()
