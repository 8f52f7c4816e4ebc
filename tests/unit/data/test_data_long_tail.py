"""Long tails against the numbers of fedloge.md, section 4."""

from __future__ import annotations

import numpy as np
import pytest

from fedquilt.core.seed import Seed
from fedquilt.data import (
    ClassTiers,
    Dirichlet,
    DirichletChoice,
    ExponentialTail,
    Federation,
    OwnTails,
    Pathological,
    StepTail,
    kept_rows,
    local_test_counts,
    long_tailed,
    read,
    tiers_by_count,
    tiers_by_share,
    with_local_tests,
)
from fedquilt.errors import InputError

C10, C100 = np.arange(50_000) % 10, np.arange(50_000) % 100
O3 = {
    0.01: [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50],
    0.02: [5000, 3237, 2096, 1357, 878, 568, 368, 238, 154, 100],
}


@pytest.mark.parametrize(("factor", "total"), [(0.01, 12_406), (0.02, 13_996), (0.1, 20_431)])
def test_o3_cifar_10(factor, total):
    kept = np.bincount(C10[kept_rows(C10, ExponentialTail(factor))])
    assert kept.sum() == total
    if factor in O3:
        assert kept.tolist() == O3[factor]


@pytest.mark.parametrize(("factor", "total"), [(0.01, 10_847), (0.02, 12_608), (0.1, 19_573)])
def test_o3_cifar_100(factor, total):
    kept = np.bincount(C100[kept_rows(C100, ExponentialTail(factor))])
    assert kept.sum() == total
    if factor == 0.01:
        assert kept[:4].tolist() == [500, 477, 455, 434]
        assert kept[-5:].tolist() == [6, 5, 5, 5, 5]


def test_steps():
    assert StepTail(0.1)(10, 500).tolist() == [500] * 5 + [50] * 5
    assert StepTail(0.1)(3, 500).tolist() == [500, 50, 50]
    assert ExponentialTail(0.1)(1, 500).tolist() == [500]
    assert ExponentialTail(1)(4, 7.5).tolist() == [7] * 4


def test_the_choice_of_rows_follows_the_seed_and_a_small_class_gives_all_it_has():
    tail = ExponentialTail(0.1)
    rows = kept_rows(C10, tail)
    assert np.array_equal(rows, kept_rows(C10, tail, Seed(0)))
    assert not np.array_equal(rows, kept_rows(C10, tail, 1))
    assert np.all(np.diff(rows) > 0)
    uneven = np.repeat([0, 1, 2], [10, 80, 90])  # 60 wanted of class 0
    assert np.bincount(uneven[kept_rows(uneven, tail)]).tolist() == [10, 18, 6]


@pytest.mark.parametrize("partition", [Dirichlet(0.3, 2), DirichletChoice(0.5), Pathological(3)], ids=repr)
def test_a_tail_goes_with_any_partition(partition):
    digits = long_tailed(read("digits"), ExponentialTail(0.1))
    data = Federation.from_source(digits, partition=partition, clients=10, test=0, valid=0, drop_empty=True)
    # 1797 rows of 10 classes: the head keeps min(178, int(179.7)) rows, class c int(179.7 * 0.1 ** (c / 9))
    assert data.label_counts().sum(0).tolist() == [178, 139, 107, 83, 64, 50, 38, 29, 23, 17]


def test_o4_local_tests_of_cifar_10():
    y = np.repeat(np.arange(10), O3[0.02])
    parts = DirichletChoice(0.5)(y, 40, Seed(0))
    counts = np.array([np.bincount(y[p], minlength=10) for p in parts])
    tests = local_test_counts(counts, 10_000)
    assert tests[0].tolist() == [51, 64, 0, 0, 9, 0, 16, 0, 19, 0]
    assert tests.sum() == 9_850


def test_o8_tiers():
    assert tiers_by_share(np.array([50, 30, 10, 6, 4])) == ClassTiers((0, 1), (2, 3), (4,))
    assert tiers_by_share(np.array(O3[0.01])) == ClassTiers((0, 1, 2), (3, 4, 5), (6, 7, 8, 9))
    assert tiers_by_share(np.array(O3[0.02])) == ClassTiers((0, 1, 2, 3), (4, 5, 6), (7, 8, 9))
    for factor, sizes in ((0.01, (30, 31, 39)), (0.02, (34, 34, 32))):
        tiers = tiers_by_share(ExponentialTail(factor)(100, 500))
        assert tuple(map(len, (tiers.head, tiers.middle, tiers.tail))) == sizes


@pytest.mark.parametrize("counts", [[5] * 8, [0, 0, 9], [1], [96, 2, 2], [3, 1, 0, 0, 7]])
def test_tiers_hold_every_class_once(counts):
    for tiers in (tiers_by_share(np.array(counts)), tiers_by_count(np.array(counts), 4, 2)):
        assert sorted(tiers.head + tiers.middle + tiers.tail) == list(range(len(counts)))


def test_tiers_by_share_sort_and_may_leave_the_middle_empty():
    assert tiers_by_share(np.array([2, 96, 2])) == ClassTiers((1,), (), (0, 2))
    assert tiers_by_count(np.array([20, 101, 100, 19])) == ClassTiers((1,), (2, 0), (3,))


def test_o9_local_test_allocation():
    counts = np.array([[8, 0, 1], [10, 4, 4], [2, 6, 0]])
    assert local_test_counts(counts, 30).tolist() == [[6, 0, 0], [8, 3, 3], [1, 5, 0]]


def test_local_tests_are_drawn_from_the_global_test_set():
    x, y = np.arange(400, dtype=np.float32)[:, None], np.arange(400) % 4
    data = Federation.from_arrays(
        x,
        y,
        partition=Dirichlet(0.3, 5),
        clients=6,
        test=0,
        valid=0.1,
        global_test=(x[:40] + 1000, y[:40]),
        standardise=False,
    )
    evaluations = with_local_tests(data)
    wanted = np.minimum(local_test_counts(data.label_counts(), 40), 10)
    assert np.array_equal(evaluations.label_counts("test"), wanted)
    assert np.array_equal(evaluations.label_counts("train"), data.label_counts("train"))
    seen = [evaluations.evaluation(c, "test") for c in evaluations.ids]
    assert all(float(t.whole().x.min()) >= 1000 for t in seen if t is not None)
    assert evaluations.fingerprint() == with_local_tests(data).fingerprint() != with_local_tests(data, 1).fingerprint()
    with pytest.raises(InputError, match="global test set"):
        with_local_tests(Federation.from_arrays(x, y, clients=2))


def test_own_tails_are_long_while_their_union_is_even():
    parts = OwnTails(ExponentialTail(0.1))(C10, 10, Seed(0))
    counts = np.array([np.bincount(C10[p], minlength=10) for p in parts])
    assert counts.argmax(1).tolist() == list(range(10))  # client i's head is class i
    assert len(np.unique(np.concatenate(parts))) == counts.sum()
    assert counts.sum(0).max() / counts.sum(0).min() < 1.05
    assert abs(counts[3, 3] / counts[3, 2] - 10) < 1.5


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ExponentialTail(100), "got 100. Papers often write the reciprocal. That is 0.01 here"),
        (lambda: StepTail(0), "above 0 and at most 1, got 0"),
        (lambda: kept_rows(np.arange(100) % 10, ExponentialTail(0.01)), "leaves class 5 no row"),
    ],
)
def test_refusals(make, message):
    with pytest.raises(InputError, match=message):
        make()
