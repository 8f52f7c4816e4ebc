"""Whole-number arithmetic of sharing out rows: exact shares, and filling up clients that have too few."""

from __future__ import annotations

import numpy as np

from fedquilt.core.plain import Array, Floats, Ints


def whole_shares(shares: Floats, sizes: Array) -> Ints:
    """Whole numbers nearest to shares * sizes with exact sums: floors, then one more for the largest remainders."""
    wanted = shares * sizes[:, None]
    counts: Ints = np.floor(wanted).astype(np.int64)
    short = sizes - counts.sum(axis=1)
    rank = np.argsort(np.argsort(counts - wanted, axis=1, kind="stable"), axis=1, kind="stable")
    counts += rank < short[:, None]
    return counts


def owners_of(labels: Ints, counts: Ints, draw: np.random.Generator) -> Ints:
    """Who owns each row when ``counts`` [present classes, clients] rows of each class are dealt out at random."""
    kinds, clients = counts.shape
    order = np.lexsort((draw.random(len(labels)), labels))
    owner = np.empty(len(labels), np.int64)
    owner[order] = np.repeat(np.tile(np.arange(clients), kinds), counts.ravel())
    return owner


def raised(counts: Ints, minimum: int) -> Ints:
    """The counts with everyone at the minimum or above; what was lacking comes from whoever has most."""
    lacking = np.maximum(minimum - counts, 0)
    return counts + lacking - _skimmed(counts, int(lacking.sum()))


def filled_up(owner: Ints, clients: int, minimum: int, draw: np.random.Generator) -> Ints:
    """Move rows until every client has the minimum, always from whoever has most (lowest number first on a tie)."""
    counts = np.bincount(owner, minlength=clients)
    lacking = np.maximum(minimum - counts, 0)
    if not lacking.any():
        return owner
    gives = _skimmed(counts, int(lacking.sum()))
    order = np.lexsort((draw.random(len(owner)), owner))
    rank = np.arange(len(owner)) - (np.cumsum(counts) - counts)[owner[order]]
    moved = order[rank < gives[owner[order]]]
    filled = owner.copy()
    filled[draw.permutation(moved)] = np.repeat(np.arange(clients), lacking)
    return filled


def _skimmed(counts: Ints, total: int) -> Ints:
    """How many each client gives when one row at a time, ``total`` times, is taken from whoever has most."""
    low, high = 0, int(counts.max())
    while low < high:  # the lowest level to which all can be cut without taking more than the total
        level = (low + high) // 2
        low, high = (low, level) if np.maximum(counts - level, 0).sum() <= total else (level + 1, high)
    gives = np.maximum(counts - low, 0)
    gives[np.flatnonzero(counts >= low)[: total - int(gives.sum())]] += 1
    return gives


def parts_of(owner: Ints, clients: int) -> list[Ints]:
    """Each client's samples, ascending, from the owner of each row."""
    ends = np.cumsum(np.bincount(owner, minlength=clients))[:-1]
    return np.split(np.argsort(owner, kind="stable"), ends)
