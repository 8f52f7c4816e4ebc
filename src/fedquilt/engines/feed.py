"""The batches of several clients as one: lane i is row i of every column."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedquilt.core.table import Columns, Table
from fedquilt.core.train import Descent

Feed = Callable[[int], tuple[Columns, list[int]]]  # so many lanes -> their next batches, and how many rows each has


def feed_of(descents: Sequence[Descent]) -> Feed:
    """What feeds these lanes. Shorter batches are filled up with their own first row: values that any network takes."""
    tables = [d.train.rows(d.site) for d in descents]
    return _gathered(descents, tables) if _one_store(tables) else _stacked(descents)


def _one_store(tables: Sequence[Table]) -> bool:
    """Whether all rows are of the very same columns, and none is changed at random."""
    first = tables[0]
    if getattr(first.prepare, "augmented", None) is not None:
        return False
    return all(t.prepare is first.prepare and _same(t, first) for t in tables)


def _same(a: Table, b: Table) -> bool:
    if a.columns is b.columns:
        return True
    return list(a.columns) == list(b.columns) and all(c is b.columns[n] for n, c in a.columns.items())


def _gathered(descents: Sequence[Descent], tables: Sequence[Table]) -> Feed:
    """One look-up for all lanes."""
    drawn = [t.draws(*d.train.how(d.job, d.turn)) for t, d in zip(tables, descents, strict=True)]
    table = tables[0]

    def feed(live: int) -> tuple[Columns, list[int]]:
        rows = [next(lane) for lane in drawn[:live]]
        sizes = [r.numel() for r in rows]
        longest = max(sizes)
        found = table.rows(torch.cat([_filled_up(r, longest) for r in rows])).columns
        return {n: c.view(live, longest, *c.shape[1:]) for n, c in found.items()}, sizes

    return feed


def _stacked(descents: Sequence[Descent]) -> Feed:
    """Every lane's own batches, put together."""
    lanes = [d.train.batches(d.job, d.site, d.turn) for d in descents]

    def feed(live: int) -> tuple[Columns, list[int]]:
        batches = [next(lane).columns for lane in lanes[:live]]
        sizes = [len(next(iter(b.values()))) for b in batches]
        longest = max(sizes)
        return {n: torch.stack([_filled_up(b[n], longest) for b in batches]) for n in batches[0]}, sizes

    return feed


def _filled_up(column: Tensor, longest: int) -> Tensor:
    lacking = longest - column.shape[0]
    return torch.cat([column, column[:1].expand(lacking, *column.shape[1:])]) if lacking else column
