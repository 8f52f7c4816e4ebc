"""Long tails: a few classes have most of the rows. A profile says how many rows each class keeps.

The imbalance factor here is smallest / largest, from above 0 to 1 (no tail); papers often write its reciprocal, so
their "IF = 100" is 0.01 here. Cui et al. 2019, arXiv:1901.05555; federated: Xiao et al. 2024, arXiv:2401.08977.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch

from fedquilt.core.plain import Ints
from fedquilt.core.seed import Seed
from fedquilt.data.checks import as_seed, label_column
from fedquilt.data.federation import Federation
from fedquilt.data.npz import Arrays
from fedquilt.data.partitions.labels import IID
from fedquilt.data.rows import ClientRows
from fedquilt.errors import InputError
from fedquilt.records.declared import shown

Profile = Callable[[int, float], Ints]


@dataclass(frozen=True)
class ExponentialTail:
    """Class c of C keeps int(largest * factor ** (c / (C - 1))) rows.

    Args:
        factor: Smallest / largest, from above 0 to 1; the reciprocal of what papers often write.
        random_state: None, or the number (0) that seeds the choice of rows as published code does; see
            :func:`kept_rows`.

    Example:
        >>> ExponentialTail(0.01)(10, 5000).tolist()
        [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]
    """

    factor: float
    random_state: int | None = None

    def __post_init__(self) -> None:
        _check_factor("ExponentialTail", self.factor)

    def __call__(self, classes: int, largest: float) -> Ints:
        return np.array([int(largest * self.factor ** (c / max(classes - 1, 1))) for c in range(classes)], np.int64)


@dataclass(frozen=True)
class StepTail:
    """The first half of the classes keep int(largest) rows, the others int(largest * factor). With an odd number of
    classes the tail has one class more.

    Args:
        factor: Smallest / largest, from above 0 to 1; the reciprocal of what papers often write.
        random_state: None, or the number (0) that seeds the choice of rows as published code does; see
            :func:`kept_rows`.
    """

    factor: float
    random_state: int | None = None

    def __post_init__(self) -> None:
        _check_factor("StepTail", self.factor)

    def __call__(self, classes: int, largest: float) -> Ints:
        return np.where(np.arange(classes) < classes // 2, int(largest), int(largest * self.factor)).astype(np.int64)


def _check_factor(name: str, factor: float) -> None:
    if not 0 < factor <= 1:
        cure = f"That is {1 / factor:g} here" if factor > 1 else "1 is no tail, 0.01 a long one"
        raise InputError(
            f"{name}: factor is smallest / largest, above 0 and at most 1, got {factor!r}. Papers often write the "
            f"reciprocal. {cure}."
        )


def kept_rows(labels: Ints, tail: Profile, seed: int | Seed = 0, classes: int | None = None) -> Ints:
    """The rows that stay when a data set is thinned to a long tail, ascending; then divide these by any partition.

    The largest class has rows / classes rows, as in a balanced set; a class with fewer rows than its profile asks for
    gives all it has. Which rows stay is drawn by the seed.

    A tail with a ``random_state`` keeps the very rows that published long-tailed sets keep, in their order (Cao et al.
    2019, arXiv:1906.07413; FedLoGe's project does so with 0): numpy's legacy generator of that state shuffles the rows
    of one class after another, and the first ones stay. Then the seed changes nothing, and rows come class by class.

    Example:
        >>> y = np.arange(1000) % 10
        >>> np.bincount(y[kept_rows(y, ExponentialTail(0.1))]).tolist()
        [100, 77, 59, 46, 35, 27, 21, 16, 12, 10]
    """
    labels = label_column(labels, "long tail").numpy()
    sizes = np.bincount(labels, minlength=classes or 0)
    wanted = tail(len(sizes), len(labels) / len(sizes))
    lost = np.flatnonzero((wanted == 0) & (sizes > 0))
    if len(lost):
        raise InputError(
            f"{tail!r} leaves class {lost[0]} no row: {len(labels)} rows of {len(sizes)} classes are too few. "
            "Raise factor, or give more rows."
        )
    state = getattr(tail, "random_state", None)
    if state is not None:
        return _as_published(labels, wanted, int(state))
    return _thinned(labels, np.arange(len(labels)), wanted, as_seed(seed).fold("long tail"))


def _as_published(labels: Ints, wanted: Ints, state: int) -> Ints:
    if not 0 <= state < 2**32:
        raise InputError(f"random_state must be a number from 0 to {2**32 - 1}, got {shown(state)}.")
    draw, kept = np.random.RandomState(state), []
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        draw.shuffle(rows)
        kept.append(rows[: wanted[label]])
    return np.concatenate(kept)


def _thinned(labels: Ints, rows: Ints, wanted: Ints, seed: Seed) -> Ints:
    """Of these rows, at most ``wanted`` of each class, at random; ascending."""
    own = labels[rows]
    order = np.lexsort((seed.numpy().random(len(rows)), own))
    sizes = np.bincount(own, minlength=len(wanted))
    rank = np.arange(len(rows)) - (np.cumsum(sizes) - sizes)[own[order]]
    return np.sort(rows[order[rank < wanted[own[order]]]])


def long_tailed(arrays: Arrays, tail: Profile, seed: int | Seed = 0) -> Arrays:
    """A data set thinned to a long tail; its test set stays as it is."""
    rows = kept_rows(arrays.y, tail, seed, arrays.classes)
    user = None if arrays.user is None else arrays.user[rows]
    return replace(arrays, x=arrays.x[rows], y=arrays.y[rows], user=user)


@dataclass(frozen=True)
class OwnTails:
    """A partition whose clients are long-tailed though their union is not: an IID split, then client i is thinned to a
    tail whose head is class i mod C (the "balanced global" mode of FedLoGe). Rows that are thinned away go to nobody.

    Args:
        tail: The profile of every client; its largest class has a client's samples / classes.
    """

    tail: Profile

    def __call__(self, labels: Ints, clients: int, seed: Seed) -> list[Ints]:
        classes = int(labels.max()) + 1
        thinned = []
        for client, rows in enumerate(IID()(labels, clients, seed)):
            wanted = np.roll(self.tail(classes, len(rows) / classes), client % classes)
            thinned.append(_thinned(labels, rows, wanted, seed.fold("own tail", client)))
        return thinned


def own_tails(factor: float, profile: Literal["exponential", "step"] = "exponential") -> OwnTails:
    """The same by plain options.

    Args:
        factor: How many times as many rows the largest class of a client has as the smallest.
        profile: Sizes fall exponentially, or in one step: half of the classes are rare.
    """
    return OwnTails(ExponentialTail(factor) if profile == "exponential" else StepTail(factor))


@dataclass(frozen=True)
class ClassTiers:
    """Classes by how frequent they are. Every class is in one of the three, most frequent first."""

    head: tuple[int, ...]
    middle: tuple[int, ...]
    tail: tuple[int, ...]


def tiers_by_share(counts: Ints, head: float = 0.75, middle: float = 0.95) -> ClassTiers:
    """Classes in descending order of their counts (ties by number): the head is up to and including the class with
    which 75 % of the rows are reached, the middle up to and including 95 %, the tail is the rest.

    Example:
        >>> tiers_by_share(np.array([50, 30, 10, 6, 4]))
        ClassTiers(head=(0, 1), middle=(2, 3), tail=(4,))
    """
    order = np.argsort(-counts, kind="stable")
    reached, total = np.cumsum(counts[order]), counts.sum()
    first, second = (int((reached < share * total - 1e-9 * total).sum()) + 1 for share in (head, middle))
    ranked = order.tolist()
    return ClassTiers(tuple(ranked[:first]), tuple(ranked[first:second]), tuple(ranked[max(first, second) :]))


def tiers_by_count(counts: Ints, many: int = 100, few: int = 20) -> ClassTiers:
    """Head: more than ``many`` rows; tail: fewer than ``few``; middle: the rest. Liu et al. 2019, arXiv:1904.05160."""
    ranked = np.argsort(-counts, kind="stable")
    large, small = counts[ranked] > many, counts[ranked] < few
    parts = (ranked[large], ranked[~large & ~small], ranked[~large & small])
    return ClassTiers(*(tuple(p.tolist()) for p in parts))


def local_test_counts(counts: Ints, tests: int) -> Ints:
    """How many test samples of each class each client is evaluated on: floor(c_kc / n * tests), n all training samples.

    Truncation loses classes of which a client has few: take what a client knows from its training samples, not from
    here.
    """
    return counts.astype(np.int64) * tests // int(counts.sum())


def with_local_tests(federation: Federation, seed: int | Seed = 0) -> Federation:
    """The federation with each client evaluated on rows of the global test set, in the proportions of its training
    samples.

    Rows are drawn without replacement for each client; clients may share rows, and where more are wanted than there
    are, all are used. Make the federation with ``test=0``; test samples that clients have already go unused.
    """
    wide = federation.global_columns
    if wide is None or federation.evaluated != federation.ids:
        raise InputError("Local tests are drawn from the global test set of a federation that is not pooled. Give one.")
    labels, base = wide["y"].numpy(), len(federation.columns["y"])
    wanted = local_test_counts(federation.label_counts("train"), len(labels))
    parts = [
        _thinned(labels, np.arange(len(labels)), row, as_seed(seed).fold("local test", client)) + base
        for client, row in zip(federation.ids, wanted, strict=True)
    ]
    columns = {name: torch.cat([column, wide[name]]) for name, column in federation.columns.items()}
    return replace(federation, columns=columns, test=ClientRows.of(parts))
