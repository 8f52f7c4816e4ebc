"""Every partition x {1, 2, 50, 500 clients} on real labels: disjoint, complete, reproducible, the minimum kept."""

from __future__ import annotations

import time

import numpy as np
import pytest

from fedquilt.core.seed import Seed
from fedquilt.data import (
    IID,
    ClassGroups,
    Dirichlet,
    DirichletChoice,
    DirichletCuts,
    DirichletPerClient,
    DirichletSizes,
    ExponentialTail,
    LogNormal,
    OwnTails,
    Pathological,
    PowerLaw,
    Shards,
    TruncatedPerClient,
    read,
)
from fedquilt.errors import InputError
from fedquilt.registry import PARTITIONS

DIGITS = np.tile(read("digits").y, 4)  # 7188 real labels
MNIST = ClassGroups(((0, 1, 2, 3, 4), (4, 5, 6, 7), (7, 8, 9)), overlap=True, noise_ratio=0.1)
MINIMUM = [
    IID(),
    Shards(2),
    Dirichlet(0.3, 5),
    DirichletPerClient(0.1, 5),
    DirichletPerClient(0.001),
    LogNormal(2.0, 5),
    PowerLaw(1.5, 5),
    DirichletSizes(0.1, 5),
    Pathological(2),
    Pathological(10),
    ClassGroups(),
    MNIST,
]
EMPTY = [DirichletChoice(0.5), DirichletCuts(0.15), TruncatedPerClient(0.1)]  # published forms; clients may be empty
TAILS = OwnTails(ExponentialTail(0.1))  # gives rows away to nobody, so it is not complete
NEEDS = {Pathological(2): 5, ClassGroups(): 3, MNIST: 3}  # 10 classes / 2; one client for each group


@pytest.mark.parametrize("clients", [1, 2, 50, 500])
@pytest.mark.parametrize("partition", MINIMUM + EMPTY, ids=repr)
def test_every_partition_with_few_and_many_clients(partition, clients):
    if clients < NEEDS.get(partition, 1):
        with pytest.raises(InputError, match=f"(?s){clients} clients x|got {clients}"):
            partition(DIGITS, clients, Seed(0))
        return
    parts = partition(DIGITS, clients, Seed(0))
    assert len(parts) == clients
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(DIGITS)))  # every row once
    assert all(np.all(np.diff(p) > 0) for p in parts)
    assert all(map(np.array_equal, parts, partition(DIGITS, clients, Seed(0))))
    least = getattr(partition, "minimum", 0 if partition in EMPTY else 1)
    assert min(map(len, parts)) >= least
    own_seed = hasattr(partition, "random_state")
    if clients > 1:
        assert all(map(np.array_equal, parts, partition(DIGITS, clients, Seed(1)))) == own_seed


def test_no_partition_is_left_out_of_the_table():
    names = {entry.where.partition(":")[2] for entry in PARTITIONS.values()}
    assert names == {type(p).__name__ for p in MINIMUM + EMPTY} | {"own_tails"}


@pytest.mark.parametrize("clients", [1, 2, 50, 500])
def test_own_tails_are_disjoint_reproducible_and_no_longer_than_asked(clients):
    parts = TAILS(DIGITS, clients, Seed(0))
    flat = np.concatenate(parts)
    assert len(parts) == clients
    assert len(np.unique(flat)) == len(flat) < len(DIGITS)
    assert all(map(np.array_equal, parts, TAILS(DIGITS, clients, Seed(0))))
    for client, rows in enumerate(parts):
        share = (len(DIGITS) // clients + (client < len(DIGITS) % clients)) / 10
        wanted = [int(share * 0.1 ** (((c - client) % 10) / 9)) for c in range(10)]
        assert np.all(np.bincount(DIGITS[rows], minlength=10) <= wanted)


@pytest.mark.parametrize(
    "partition",
    [
        Dirichlet(0.3, 10),
        DirichletPerClient(0.3, 10),
        DirichletChoice(0.3),
        DirichletCuts(0.3),
        TruncatedPerClient(0.3),
        Pathological(5),
        LogNormal(1.0),
        PowerLaw(1.0),
        DirichletSizes(0.3),
        IID(),
        Shards(2),
    ],
    ids=repr,
)
def test_500_clients_and_100_classes_take_less_than_a_second(partition):
    y = np.repeat(np.arange(100), 500)
    start = time.perf_counter()
    partition(y, 500, Seed(0))
    assert time.perf_counter() - start < 1.0


@pytest.mark.parametrize("partition", [p for p in MINIMUM if hasattr(p, "minimum")], ids=repr)
def test_a_minimum_that_cannot_be_kept_is_refused_at_once(partition):
    asked = type(partition)(*list(vars(partition).values())[:1], minimum=15)
    with pytest.raises(InputError, match="500 clients with at least 15 rows each need 7500 rows, but there are 7188"):
        asked(DIGITS, 500, Seed(0))
    tight = type(partition)(*list(vars(partition).values())[:1], minimum=14)(DIGITS, 500, Seed(0))
    assert min(map(len, tight)) == 14
