"""Columns that do not lie in memory: rows are read when they are asked for, by their numbers.

A :class:`LazyColumn` is a tensor as far as shapes, types and choosing rows go, so tables, federations and engines
treat it like any other column. Whatever else is done to it reads it whole, if memory allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from fedquilt.core.describe import build, describe
from fedquilt.core.memory import check_bytes
from fedquilt.core.plain import Row
from fedquilt.core.seed import Seed

_BLOCK = 2**25  # bytes that are read at once where all rows are wanted in turn


class Reader(Protocol):
    """Reads rows by their numbers.

    ``seed`` is for rows that are drawn anew each time, such as randomly cropped images; None gives the rows as they are
    looked at, which are always the same.
    """

    def read(self, rows: Tensor, seed: Seed | None = None) -> Tensor:
        """The rows of these numbers (int64), in this order."""
        ...


class LazyColumn(Tensor):
    """A column whose rows a :class:`Reader` reads when they are asked for.

    Example:
        >>> class Squares:
        ...     def read(self, rows, seed=None):
        ...         return (rows * rows)[:, None]
        >>> column = LazyColumn(Squares(), (1000, 1), torch.int64)
        >>> len(column), column.index_select(0, torch.tensor([3, 5])).tolist()
        (1000, [[9], [25]])
    """

    reader: Reader

    @staticmethod
    def __new__(cls, reader: Reader, shape: Sequence[int], dtype: torch.dtype) -> LazyColumn:
        made: LazyColumn = Tensor._make_wrapper_subclass(cls, tuple(shape), dtype=dtype)
        made.reader = reader
        return made

    def __init__(self, reader: Reader, shape: Sequence[int], dtype: torch.dtype) -> None:
        pass

    def read(self, rows: Tensor, seed: Seed | None = None) -> Tensor:
        """These rows, as an ordinary tensor."""
        check_bytes(row_bytes(self) * len(rows), f"{len(rows)} rows of {tuple(self.shape[1:])} at once")
        return self.reader.read(rows, seed)

    def in_blocks(self) -> Iterator[Tensor]:
        """All rows in order, some at a time."""
        for rows in torch.arange(len(self)).split(max(1, _BLOCK // max(row_bytes(self), 1))):
            yield self.read(rows)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"LazyColumn({tuple(self.shape)}, {self.dtype}, {type(self.reader).__name__})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        found = _RULES[func](*args, **(kwargs or {})) if func in _RULES else NotImplemented
        if found is not NotImplemented:
            return found
        return func(*tree_map(_whole, args), **tree_map(_whole, kwargs or {}))


def _whole(value: object) -> object:
    return value.read(torch.arange(len(value))) if isinstance(value, LazyColumn) else value


def row_bytes(column: Tensor) -> int:
    """The bytes of one row."""
    return int(column.shape[1:].numel()) * column.element_size()


def drawn(column: Tensor, rows: Tensor, seed: Seed) -> Tensor:
    """These rows for training: what is random in them follows from the seed."""
    return column.read(rows, seed) if isinstance(column, LazyColumn) else column.index_select(0, rows)


# What can be done without reading all rows


def _select(column: Tensor, dim: int, rows: Tensor) -> Any:
    return column.read(rows) if isinstance(column, LazyColumn) and dim == 0 else NotImplemented


def _index(column: Tensor, places: Sequence[Tensor | None]) -> Any:
    if not isinstance(column, LazyColumn) or len(places) != 1 or places[0] is None or places[0].dim() != 1:
        return NotImplemented
    return column.read(torch.arange(len(column))[places[0]])


def _slice(column: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Any:
    if not isinstance(column, LazyColumn) or dim != 0:
        return NotImplemented
    return column.read(torch.arange(len(column))[slice(start, end, step)])


def _cat(columns: Sequence[Tensor], dim: int = 0) -> Any:
    """One below the other, read by their own readers."""
    first = columns[0]
    if dim != 0 or any(not isinstance(c, LazyColumn) or c.dtype != first.dtype for c in columns):
        return NotImplemented
    parts = [part for c in columns for part in _parts(c)]
    readers, counts = zip(*parts, strict=True)
    return LazyColumn(JoinedReaders(readers, counts), (sum(counts), *first.shape[1:]), first.dtype)


def _empty(column: Tensor, size: Sequence[int], dtype: torch.dtype | None = None, **_: object) -> Tensor:
    return torch.empty(tuple(size), dtype=dtype or column.dtype)


def _same(column: Tensor) -> Tensor:
    return column


_RULES: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.index_select.default: _select,
    torch.ops.aten.index.Tensor: _index,
    torch.ops.aten.slice.Tensor: _slice,
    torch.ops.aten.cat.default: _cat,
    torch.ops.aten.new_empty.default: _empty,
    torch.ops.aten.detach.default: _same,
    torch.ops.aten.alias.default: _same,
}


@dataclass(frozen=True)
class JoinedReaders:
    """Several readers, one below the other; ``counts`` says how many rows each has."""

    readers: tuple[Reader, ...]
    counts: tuple[int, ...]

    def read(self, rows: Tensor, seed: Seed | None = None) -> Tensor:
        """Each row from the reader it belongs to."""
        ends = torch.tensor(self.counts).cumsum(0)
        places = torch.searchsorted(ends, rows, right=True)
        first = int(places[0]) if len(places) else 0
        if not len(rows) or bool((places == first).all()):  # as in a batch of one client
            return self.readers[first].read(rows - (int(ends[first]) - self.counts[first]), seed)
        found: Tensor | None = None
        for place in places.unique().tolist():
            mine = (places == place).nonzero().flatten()
            part = self.readers[place].read(rows[mine] - (int(ends[place]) - self.counts[place]), seed)
            found = part.new_empty((len(rows), *part.shape[1:])) if found is None else found
            found[mine] = part
        assert found is not None
        return found

    @property
    def inherited(self) -> bool:
        """See :func:`inherited`."""
        return any(inherited(reader) for reader in self.readers)


def _parts(column: Tensor) -> list[tuple[Reader, int]]:
    assert isinstance(column, LazyColumn)
    if isinstance(column.reader, JoinedReaders):
        return list(zip(column.reader.readers, column.reader.counts, strict=True))
    return [(column.reader, len(column))]


# To other processes


def inherited(reader: object) -> bool:
    """Whether another process has the rows only if it is forked from this one."""
    return bool(getattr(reader, "inherited", False))


def told(column: LazyColumn) -> Row:
    """How another process reads these rows, as a value that can be packed."""
    kind = str(column.dtype).removeprefix("torch.")
    return {"reader": describe(column.reader, "a lazy column"), "shape": list(column.shape), "dtype": kind}


def built(told: Row) -> LazyColumn:
    """The column of :func:`told`."""
    return LazyColumn(build(told["reader"]), told["shape"], getattr(torch, told["dtype"]))
