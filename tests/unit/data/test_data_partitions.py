"""Partitions: disjoint, complete, reproducible, with exact counts."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedquilt.core.seed import Seed
from fedquilt.data import IID, ClassGroups, Dirichlet, Shards
from fedquilt.data.partitions.shares import _skimmed, filled_up, whole_shares
from fedquilt.errors import InputError

LABELS = np.random.default_rng(0).integers(0, 10, 3000)
ALL = [IID(), Dirichlet(0.1), Dirichlet(1.0, minimum=5), Dirichlet(100.0, minimum=0), Shards(2), Shards(3)]
GROUPS = ClassGroups()


def check_complete(parts: list[np.ndarray], rows: int, clients: int) -> None:
    assert len(parts) == clients
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(rows))  # every row once
    assert all(np.all(np.diff(p) > 0) for p in parts)


@pytest.mark.parametrize("clients", [1, 2, 50, 500])
@pytest.mark.parametrize("partition", ALL, ids=repr)
def test_every_row_goes_to_exactly_one_client(partition, clients):
    parts = partition(LABELS, clients, Seed(3))
    check_complete(parts, 3000, clients)
    again = partition(LABELS, clients, Seed(3))
    assert all(map(np.array_equal, parts, again))
    if clients > 1:
        other = partition(LABELS, clients, Seed(4))
        assert not all(map(np.array_equal, parts, other))


@given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=80),
    clients=st.integers(1, 20),
    alpha=st.sampled_from([1e-3, 0.1, 1.0, 1e3]),
    minimum=st.integers(0, 4),
    seed=st.integers(0, 1000),
)
@settings(max_examples=150, deadline=None)
def test_dirichlet_is_complete_and_keeps_its_minimum_or_refuses(labels, clients, alpha, minimum, seed):
    y = np.array(labels)
    if clients > len(y) or minimum * clients > len(y):
        with pytest.raises(InputError):
            Dirichlet(alpha, minimum)(y, clients, Seed(seed))
        return
    parts = Dirichlet(alpha, minimum)(y, clients, Seed(seed))
    check_complete(parts, len(y), clients)
    assert min(map(len, parts)) >= minimum


def test_dirichlet_with_a_tight_minimum_gives_everyone_exactly_that():
    parts = Dirichlet(0.01, minimum=6)(LABELS, 500, Seed(0))  # 500 x 6 = all 3000 rows
    assert [len(p) for p in parts] == [6] * 500


def test_an_infeasible_minimum_is_refused_at_once():
    start = time.perf_counter()
    with pytest.raises(InputError, match="500 clients with at least 7 rows each need 3500 rows, but there are 3000"):
        Dirichlet(0.1, minimum=7)(LABELS, 500, Seed(0))
    assert time.perf_counter() - start < 0.1


def test_small_alpha_is_skewed_and_large_alpha_even():
    def largest_share(alpha):
        parts = Dirichlet(alpha)(LABELS, 10, Seed(1))
        counts = np.array([np.bincount(LABELS[p], minlength=10) for p in parts])
        return (counts.max(axis=0) / counts.sum(axis=0)).mean()

    # Dir(1000, ...) has shares of 0.1 +- 0.003; Dir(0.05, ...) puts most of a class on one client.
    assert largest_share(1000.0) < 0.13
    assert largest_share(0.05) > 0.5


def test_whole_shares_by_hand():
    # 10 * (.55, .25, .2) = 5.5, 2.5, 2.0: floors 5, 2, 2, one left; remainders tie at .5, the first client wins.
    # 7 * (.1, .2, .7) = .7, 1.4, 4.9: floors 0, 1, 4, two left, to remainders .9 and .7.
    shares = np.array([[0.55, 0.25, 0.2], [0.1, 0.2, 0.7]])
    assert whole_shares(shares, np.array([10, 7])).tolist() == [[6, 2, 2], [1, 1, 5]]


@given(st.lists(st.integers(0, 12), min_size=1, max_size=8), st.integers(0, 30))
def test_skimming_equals_taking_one_row_at_a_time(counts, total):
    total = min(total, sum(counts))
    slow = list(counts)
    for _ in range(total):
        slow[slow.index(max(slow))] -= 1
    fast = np.array(counts) - _skimmed(np.array(counts), total)
    assert sorted(fast.tolist()) == sorted(slow)  # on a tie it may be another client of the same size
    assert fast.sum() == sum(counts) - total


def test_filling_up_moves_only_from_the_largest():
    owner = np.repeat([0, 1, 2, 3], [9, 4, 3, 0])
    filled = filled_up(owner, 4, 2, Seed(0).numpy())
    # client 3 lacks two rows; client 0 has most before and after the first move
    assert np.bincount(filled).tolist() == [7, 4, 3, 2]
    assert set(np.flatnonzero(filled != owner)) <= set(range(9))


def test_iid_sizes_differ_by_at_most_one():
    assert {len(p) for p in IID()(LABELS, 7, Seed(0))} == {428, 429}  # 3000 = 7 * 428 + 4


def test_shards_give_few_classes():
    y = np.repeat(np.arange(10), 600)  # McMahan's setting at a tenth: 200 shards of 30, two for each of 100 clients
    parts = Shards(2)(y, 100, Seed(0))
    assert {len(p) for p in parts} == {60}
    assert max(len(np.unique(y[p])) for p in parts) <= 2


def test_shards_refuse_more_shards_than_rows():
    with pytest.raises(InputError, match="5 clients x 3 shards need 15 rows, but there are 10"):
        Shards(3)(np.zeros(10, int), 5, Seed(0))


@pytest.mark.parametrize("clients", [3, 4, 50, 500])
def test_class_groups_hold_only_their_classes(clients):
    parts = GROUPS(LABELS, clients, Seed(0))
    check_complete(parts, 3000, clients)
    for group, rows in zip(GROUPS.group_of(clients), parts, strict=True):
        assert set(LABELS[rows]) <= set(GROUPS.groups[group])
    sizes = GROUPS.sizes(clients)
    assert sum(sizes) == clients
    assert max(sizes) - min(sizes) <= 1


def test_class_groups_take_a_number_of_clients_for_each_group():
    partition = ClassGroups(((0, 1), (2,)), clients_per_group=(1, 3))
    y = np.array([0, 1, 2] * 4)
    assert partition.group_of(4).tolist() == [0, 1, 1, 1]
    assert [len(p) for p in partition(y, 4, Seed(0))] == [8, 2, 1, 1]
    with pytest.raises(InputError, match="adds up to 4, not to 5 clients"):
        partition(y, 5, Seed(0))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ClassGroups(((0, 1), (1, 2))), r"classes \[1\] are in more than one group"),
        (lambda: ClassGroups(((0, 1), ())), "every group needs a class"),
        (lambda: ClassGroups(((0,), (1,)), (1,)), "one number of at least 1 for each of the 2 groups"),
        (lambda: ClassGroups(((0, 1), (2,)))(LABELS, 4, Seed(0)), r"classes \[3, 4, 5, 6, 7, 8, 9\] are in no group"),
        (lambda: GROUPS(LABELS, 2, Seed(0)), "3 groups need at least 3 clients, got 2"),
        (lambda: ClassGroups(((0,), (1,)))(np.array([0, 0, 0, 1]), 4, Seed(0)), "group 1 .* has 1 rows for 2 clients"),
        (lambda: Dirichlet(0.0), "alpha must be more than 0, got 0.0"),
        (lambda: Dirichlet(float("nan")), "alpha must be more than 0"),
        (lambda: Dirichlet(1.0, -1), "minimum must be 0 or more, got -1"),
        (lambda: Dirichlet("0.1"), "Dirichlet: alpha must be a number, got '0.1'"),  # type: ignore[arg-type]
        (lambda: Shards(0), "per_client must be at least 1, got 0"),
        (lambda: IID()(LABELS, 0, Seed(0)), "at least 1, got 0"),
        (lambda: IID()(LABELS, 2.5, Seed(0)), "whole number of at least 1, got 2.5"),
        (lambda: IID()(LABELS[:3], 4, Seed(0)), "4 clients cannot share 3 rows"),
    ],
)
def test_refusals_say_what_was_wrong(make, message):
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize("partition", [IID(), Dirichlet(0.1, 10), Shards(2)], ids=repr)
def test_a_large_federation_takes_less_than_a_second(partition):
    y = np.random.default_rng(0).integers(0, 100, 50_000)
    start = time.perf_counter()
    partition(y, 500, Seed(0))
    assert time.perf_counter() - start < 1.0
