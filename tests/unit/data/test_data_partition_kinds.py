"""What each kind of partition promises: classes per client, shared classes divided, sizes, and published splits."""

from __future__ import annotations

import numpy as np
import pytest

from fedquilt.core.seed import Seed
from fedquilt.data import (
    Arrays,
    ClassGroups,
    DirichletChoice,
    DirichletCuts,
    DirichletPerClient,
    DirichletSizes,
    ExponentialTail,
    LogNormal,
    Pathological,
    PowerLaw,
    StepTail,
    TruncatedPerClient,
    kept_rows,
    long_tailed,
    read,
)
from fedquilt.errors import InputError

DIGITS = read("digits").y
MNIST = ((0, 1, 2, 3, 4), (4, 5, 6, 7), (7, 8, 9))


def counts_of(parts, labels):
    width = int(labels.max()) + 1
    return np.array([np.bincount(labels[p], minlength=width) for p in parts])


# A few classes each


@pytest.mark.parametrize(("clients", "each"), [(5, 2), (20, 2), (33, 3), (100, 2), (7, 10)])
def test_pathological_clients_hold_exactly_their_classes(clients, each):
    counts = counts_of(Pathological(each)(DIGITS, clients, Seed(0)), DIGITS)
    assert set((counts > 0).sum(axis=1)) == {each}
    holders = (counts > 0).sum(axis=0)
    assert holders.max() - holders.min() <= 1
    for held in counts.T:  # a class is divided evenly among its holders
        assert held[held > 0].max() - held[held > 0].min() <= 1


def test_pathological_pairs_differ_between_clients():
    counts = counts_of(Pathological(2)(DIGITS, 50, Seed(0)), DIGITS)
    assert len(np.unique(counts > 0, axis=0)) > 15  # of 45 pairs; dealing in a fixed order would give 5


# Groups


def test_shared_classes_are_divided_and_never_copied():
    y = np.repeat(np.arange(10), 100)
    parts = ClassGroups(MNIST, (18, 17, 15), overlap=True)(y, 50, Seed(0))
    assert len(np.unique(np.concatenate(parts))) == 1000
    counts = counts_of(parts, y)
    # classes 4 and 7 are in two groups, 50 rows each; group sizes 450, 300 and 250
    assert counts[:18].sum(0).tolist() == [100] * 4 + [50] + [0] * 5
    assert counts[18:35].sum(0).tolist() == [0] * 4 + [50, 100, 100, 50, 0, 0]
    assert counts[35:].sum(0).tolist() == [0] * 7 + [50, 100, 100]
    assert set(counts[:18].sum(1)) == {25}
    assert set(counts[18:35].sum(1)) == {17, 18}  # 300 / 17


def test_noise_is_given_away_and_shared_evenly():
    y = np.repeat(np.arange(10), 100)
    groups = ClassGroups(noise_ratio=0.2)  # 400, 300, 300 rows: each gives 80, 60, 60, half to each other group
    counts = counts_of(groups(y, 3, Seed(0)), y)
    assert counts[0, :4].sum() == 320
    assert (counts[0, 4:7].sum(), counts[0, 7:].sum()) == (30, 30)
    assert (counts[1, :4].sum(), counts[1, 4:7].sum(), counts[1, 7:].sum()) == (40, 240, 30)
    assert counts.sum() == 1000


# One mixture for each client


def test_per_client_draws_keep_sizes_close():
    # CFLA's split, measured: 50 clients, alpha 0.1, 60 000 rows of 10 classes: sizes 759 to 1800, mean 1200
    y = np.repeat(np.arange(10), 6000)
    sizes = [len(p) for p in DirichletPerClient(0.1)(y, 50, Seed(0))]
    assert 400 < min(sizes) < max(sizes) < 3000
    counts = counts_of(DirichletPerClient(0.1)(y, 50, Seed(0)), y)
    assert (counts.max(1) / counts.sum(1)).mean() > 0.6  # skewed labels all the same


def test_truncation_leaves_the_rest_to_the_last_client():
    y = np.repeat(np.arange(10), 1000)
    exact = counts_of(TruncatedPerClient(1e6)(y, 30, Seed(0)), y)  # shares of 1/30: 33 rows, 10 left over
    assert set(exact[:-1].ravel()) <= {33, 34}
    assert exact[-1].min() >= 33 + 5


# Sizes


def test_power_law_by_hand():
    # 1, 1/2, 1/3, 1/4 of 12/25: 100 rows -> 48, 24, 16, 12
    y = np.arange(100) % 3
    assert [len(p) for p in PowerLaw(1.0)(y, 4, Seed(0))] == [48, 24, 16, 12]
    # at least 20 each: 4 and 8 are lacking, and come from whoever has most: 48 -> 36
    assert [len(p) for p in PowerLaw(1.0, minimum=20)(y, 4, Seed(0))] == [36, 24, 20, 20]
    assert [len(p) for p in PowerLaw(0.0)(y, 4, Seed(0))] == [25] * 4


def test_log_normal_sizes_have_the_asked_spread():
    y = np.zeros(2_000_000, int)
    sizes = np.array([len(p) for p in LogNormal(0.7)(y, 2000, Seed(0))])
    assert abs(np.log(sizes).std() - 0.7) < 0.03
    assert {len(p) for p in LogNormal(0.0)(y[:100], 10, Seed(0))} == {10}


def test_dirichlet_sizes_grow_even_with_alpha():
    spread = [np.std([len(p) for p in DirichletSizes(a)(DIGITS, 20, Seed(0))]) for a in (0.1, 1.0, 1000.0)]
    assert spread[0] > spread[1] > spread[2]
    assert spread[2] < 5  # Dir(1000): shares 1/20 +- 0.0015, so 90 rows +- 3


# Published splits


def tail(classes, largest, factor):
    """The labels of a long-tailed set, as FedLoGe makes it."""
    return np.repeat(np.arange(classes), [int(largest * factor ** (c / (classes - 1))) for c in range(classes)])


def test_fedloge_o4_cifar_100():
    y = tail(100, 500, 0.01)
    counts = counts_of(DirichletChoice(0.5)(y, 40, Seed(0)), y)
    assert counts.sum(1)[:10].tolist() == [264, 285, 233, 378, 283, 185, 318, 263, 231, 256]
    assert counts.sum(1)[-1] == 322
    assert counts[0, :12].tolist() == [0, 0, 27, 14, 2, 9, 15, 24, 24, 0, 4, 0]
    sizes = [len(p) for p in DirichletChoice(1.0)(y, 20, Seed(0))]
    assert sizes[:8] == [496, 625, 562, 489, 532, 550, 584, 692]
    assert sizes[-1] == 499


def test_fedloge_o4_cifar_10_whatever_the_order_of_rows():
    y = tail(10, 5000, 0.02)
    for labels in (y, np.random.default_rng(0).permutation(y)):
        counts = counts_of(DirichletChoice(0.5)(labels, 40, Seed(0)), labels)
        assert counts.sum(1)[:6].tolist() == [226, 200, 143, 400, 329, 90]
        assert counts.sum(1)[-1] == 239
        assert counts[0].tolist() == [72, 90, 1, 0, 13, 0, 23, 0, 27, 0]


def test_fedloge_o4_small_has_an_empty_client():
    y = np.repeat([0, 1, 2], [20, 10, 5])
    counts = counts_of(DirichletChoice(0.5, random_state=7)(y, 3, Seed(0)), y)
    assert counts.tolist() == [[3, 9, 0], [17, 1, 5], [0, 0, 0]]


def test_cuts_equal_the_published_description():
    """Localize-and-Stitch's split, transcribed: shuffle, draw, cut at floor(cumsum(p) * n)."""
    draw, y = np.random.default_rng(42), np.tile(np.arange(10), 600)
    expected = [[] for _ in range(5)]
    for label in range(10):
        rows = np.flatnonzero(y == label)
        draw.shuffle(rows)
        ends = [0, *np.floor(np.cumsum(draw.dirichlet([0.15] * 5)) * 600).astype(int)[:4], 600]
        for client in range(5):
            expected[client] += rows[ends[client] : ends[client + 1]].tolist()
    assert [p.tolist() for p in DirichletCuts(0.15)(y, 5, Seed(0))] == [sorted(e) for e in expected]


def test_legacy_forms_leave_the_global_generator_alone():
    before = np.random.get_state()[1].copy()
    DirichletChoice(0.5)(DIGITS, 5, Seed(0))
    assert np.array_equal(before, np.random.get_state()[1])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Pathological(0), "classes_per_client must be at least 1, got 0"),
        (lambda: Pathological(11)(DIGITS, 5, Seed(0)), "11 classes per client, but the data have 10"),
        (
            lambda: Pathological(2)(DIGITS, 4, Seed(0)),
            "4 clients x 2 classes leave some of the 10 classes without a client",
        ),
        (lambda: Pathological(1)(np.array([0, 0, 0, 1]), 4, Seed(0)), "class 1 has 1 rows for 2 clients"),
        (lambda: ClassGroups(MNIST), r"classes \[4, 7\] are in more than one group.* overlap=True"),
        (lambda: ClassGroups(((0, 0), (1,)), overlap=True), r"classes \[0\] are twice in one group"),
        (lambda: ClassGroups(noise_ratio=1.0), "noise_ratio must be from 0 to below 1"),
        (lambda: ClassGroups(((0, 1),), noise_ratio=0.1), "needs a second group"),
        (lambda: DirichletPerClient(0), "DirichletPerClient: alpha must be more than 0, got 0"),
        (lambda: DirichletSizes(-1.0), "DirichletSizes: alpha must be more than 0"),
        (lambda: LogNormal(float("inf")), "sigma must be 0 or more, got inf"),
        (lambda: PowerLaw(-1), "exponent must be 0 or more, got -1"),
        (lambda: PowerLaw(1, -1), "minimum must be 0 or more"),
        (lambda: DirichletChoice(0.0), "alpha must be more than 0"),
        (lambda: DirichletCuts(-0.1), "alpha must be more than 0"),
        (lambda: TruncatedPerClient(0.0), "alpha must be more than 0"),
    ],
)
def test_refusals_say_what_was_wrong(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_a_published_long_tail_keeps_the_published_images():
    """FedLoGe's data (the usual CIFAR-LT): np.random.seed(0), then class by class a shuffle of its rows, of which the
    first n_c are kept in that order; the Dirichlet split then deals the k-th kept image of a class to the k-th draw."""
    y = np.random.default_rng(3).permutation(np.repeat(np.arange(10), 200))
    np_state = np.random.RandomState(0)
    kept = []
    for label, count in enumerate([int(200 * 0.02 ** (c / 9)) for c in range(10)]):
        rows = np.where(y == label)[0]
        np_state.shuffle(rows)
        kept.append(rows[:count])
    for seed in (0, 1):
        found = kept_rows(y, ExponentialTail(0.02, random_state=0), seed)
        assert found.tolist() == np.concatenate(kept).tolist()
    arrays = long_tailed(Arrays(np.arange(len(y))[:, None], y), ExponentialTail(0.02, random_state=0))
    assert arrays.x[:, 0].tolist() == np.concatenate(kept).tolist()
    owners = np.random.RandomState(3407)
    owners.binomial(1, 1, size=(5, 10))
    expected: dict[int, list[int]] = {client: [] for client in range(5)}
    for images in kept:
        dealt = owners.choice(5, size=len(images), p=owners.dirichlet([0.5] * 5))
        for client in expected:
            expected[client] += images[dealt == client].tolist()
    parts = DirichletChoice(0.5)(arrays.y, 5, Seed(0))
    assert [sorted(arrays.x[part, 0].tolist()) for part in parts] == [sorted(e) for e in expected.values()]
    own = kept_rows(y, ExponentialTail(0.02), 0)
    assert np.bincount(y[own]).tolist() == [len(images) for images in kept]  # without it, the counts alone


def test_step_tails_may_be_published_too():
    y = np.repeat(np.arange(4), 30)
    found = kept_rows(y, StepTail(0.1, random_state=0))
    assert np.bincount(y[found]).tolist() == [30, 30, 3, 3]
    first = np.arange(30)
    np.random.RandomState(0).shuffle(first)
    assert found[:30].tolist() == first.tolist()
