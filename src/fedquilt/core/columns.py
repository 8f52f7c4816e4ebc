"""Tables whose columns differ in scale and kind: what is told of each column, and how rows are prepared by it.

A stored row is one number for each column: a number as it is, a category as the code of its name, a missing cell as
NaN. A prepared row has, for every number, (x - mean) / deviation; for every category one 0/1 column for each level; and
behind each column with missing cells one 0/1 column that says where.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from functools import cached_property, reduce

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedquilt.core.table import Columns
from fedquilt.errors import InputError
from fedquilt.moved import renamed
from fedquilt.records.record import record

LEVELS = 32  # of a category that get a column of their own: the most frequent ones
TOLD = 256  # of a category that one client tells of
SCOPES = ("federation", "clients", "none")
LARGEST = 3.0e38  # a number that networks can hold
APART = 1e9  # times what most clients have: with such numbers of one client, all of the others' would be the same
Floats = NDArray[np.float64]


@record
class Column:
    """One column of a table.

    Args:
        name: As in the file's header; a number without one.
        category: Whether its cells are names.
        levels: Of a category, the codes of the levels that have a column of their own; any other is none of them.
        mean, std: Of a number. A missing cell is the mean; a column that never changes has the deviation 1.
        flagged: Whether training samples have missing cells here, so that a 0/1 column says where.
    """

    name: str
    category: bool = False
    levels: tuple[int, ...] = ()
    mean: float = 0.0
    std: float = 1.0
    flagged: bool = False


@record
class ColumnSums:
    """What one client tells of its training samples, column by column: nothing but counts and sums leave it.

    Args:
        present: How many cells are not missing, int64 [columns].
        rows: How many rows there are.
        mean, squares: Of the numbers, the mean and the sum of squared deviations from it, float64 [columns]; both are
            0 for categories. They say what count, sum and sum of squares say, without losing digits.
        levels: For each category in order, the codes of its most frequent levels and their counts, int64 [2, levels].
    """

    rows: int
    present: Tensor
    mean: Tensor
    squares: Tensor
    levels: tuple[Tensor, ...]


@record
class PerColumn:
    """The ``prepare`` of a table: every column by itself.

    Args:
        columns: In the order of the stored rows.
        scope: Whose training samples the means and deviations are of: all clients' ('federation'), each client's own
            ('clients'), or 'none': numbers stay as they are. Levels and flags are always the federation's.

    Example:
        >>> prepare = PerColumn((Column("age", mean=50.0, std=10.0), Column("town", True, (7, 8))))
        >>> prepare({"x": torch.tensor([[70.0, 8.0]])})["x"]
        tensor([[2., 0., 1.]])
    """

    columns: tuple[Column, ...]
    scope: str = "federation"

    def __call__(self, columns: Columns) -> Columns:
        return {**columns, "x": self._prepared(columns["x"])}

    def _prepared(self, x: Tensor) -> Tensor:
        if x.dim() != 2 or x.shape[1] != len(self.columns):
            raise InputError(
                f"The table has {len(self.columns)} columns, but rows have the shape {tuple(x.shape[1:])}."
            )
        mean, std = (t.to(x.device) for t in self._numbers)
        missing = torch.isnan(x)
        scaled = torch.where(missing, self._filled.to(x.device), torch.sub(x, mean).div_(std)).float()
        if not any(c.category or c.flagged for c in self.columns):
            return scaled
        parts = []
        for place, column in enumerate(self.columns):
            cell = slice(place, place + 1)
            if column.category:
                codes = torch.tensor(column.levels, dtype=x.dtype, device=x.device)
                parts.append((x[:, cell] == codes).float())
            else:
                parts.append(scaled[:, cell])
            if column.flagged:
                parts.append(missing[:, cell].float())
        return torch.cat(parts, 1)

    @property
    def width(self) -> int:
        """The columns of a prepared row."""
        return sum((len(c.levels) if c.category else 1) + c.flagged for c in self.columns)

    @cached_property
    def _numbers(self) -> tuple[Tensor, Tensor]:
        own = self.scope != "none"
        pairs = [(c.mean, c.std) if own and not c.category else (0.0, 1.0) for c in self.columns]
        mean, std = zip(*pairs, strict=True)
        return torch.tensor(mean, dtype=torch.float64), torch.tensor(std, dtype=torch.float64)

    @cached_property
    def _filled(self) -> Tensor:
        """What stands for a missing number: the mean."""
        return torch.tensor([c.mean if self.scope == "none" else 0.0 for c in self.columns], dtype=torch.float64)

    def blank(self) -> PerColumn:
        """The same columns before anything is known of their cells."""
        return PerColumn(tuple(Column(c.name, c.category) for c in self.columns), self.scope)

    def kinds(self) -> str:
        """Names and kinds of the columns, in words that are equal where those are."""
        return ", ".join(f"{c.name} (category)" if c.category else c.name for c in self.columns)

    def describe(self) -> str:
        """How rows are preprocessed, in a sentence."""
        parts = self._numbers_told()
        named = [f"{c.name} ({len(c.levels)} levels)" for c in self.columns if c.category]
        parts += [f"{_many(len(named), 'categor', 'ies', 'y')} as 0/1 columns: {_few(named)}"] if named else []
        holes = [c.name for c in self.columns if c.flagged]
        parts += [f"missing cells filled in and flagged: {_few(holes)}"] if holes else []
        still = [c.name for c in self.columns if self._constant(c)]
        parts += [f"constant: {_few(still)}"] if still else []
        return "; ".join(parts) + f"; {self.width} inputs in all"

    told = renamed("told", "describe")

    def _numbers_told(self) -> list[str]:
        count = sum(not c.category for c in self.columns)
        whose = {"federation": "all clients' training samples", "clients": "each client's own training samples"}
        done = f"standardised by {whose[self.scope]}" if self.scope in whose else "as they are"
        return [f"{_many(count, 'number column', 's')}, {done}"] if count else []

    def _constant(self, column: Column) -> bool:
        """Whether a number is known never to change."""
        return self.scope == "federation" and not column.category and column.std == 1.0 and column.mean != 0.0


def blank_of(count: int, scope: str, names: Sequence[str] = ()) -> PerColumn:
    """So many number columns."""
    check_scope(scope)
    return PerColumn(tuple(Column(names[i] if names else str(i)) for i in range(count)), scope)


def check_scope(scope: str) -> None:
    """Raise unless statistics can be taken so."""
    if scope not in SCOPES:
        raise InputError(f"standardise is 'federation', 'clients' or false, got {scope!r}.")


def code_of(name: str) -> int:
    """The number that stands for a category's name in a stored row: 48 bits of its sha256, the same everywhere."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:6], "big")


def sums_of(x: Tensor, columns: Sequence[Column]) -> ColumnSums:
    """What a client tells of these stored rows: two passes in float64, one row after another. Distances from the first
    cell are summed, so that a column which never changes has no spread at all, however large it is."""
    rows = np.ascontiguousarray(x.detach().cpu().numpy(), np.float64)
    here = ~np.isnan(rows)
    present = here.sum(0)
    number = np.array([not c.category for c in columns])
    first = np.where(number & (present > 0), rows[here.argmax(0), np.arange(len(columns))] if len(rows) else 0.0, 0.0)
    mean = first + np.where(here & number, rows - first, 0.0).sum(0) / np.maximum(present, 1)
    squares = np.square(np.where(here & number, rows - mean, 0.0)).sum(0)
    levels = tuple(_frequent(rows[here[:, i], i]) for i, c in enumerate(columns) if c.category)
    counted, means, spread = (torch.from_numpy(v) for v in (present.astype(np.int64), mean, squares))
    return ColumnSums(len(rows), counted, means, spread, levels)


def _frequent(codes: Floats) -> Tensor:
    found, counts = np.unique(codes.astype(np.int64), return_counts=True)
    order = np.lexsort((found, -counts))[:TOLD]
    return torch.from_numpy(np.stack([found[order], counts[order]]).astype(np.int64))


def both(a: ColumnSums, b: ColumnSums) -> ColumnSums:
    """The sums of two clients' samples together, by the formula of Chan, Golub and LeVeque."""
    n, m = a.present.double(), b.present.double()
    total = (n + m).clamp(min=1)
    apart = b.mean - a.mean
    mean = a.mean + apart * (m / total)
    squares = a.squares + b.squares + apart.square() * (n * m / total)
    levels = tuple(_added(u, v) for u, v in zip(a.levels, b.levels, strict=True))
    return ColumnSums(a.rows + b.rows, a.present + b.present, mean, squares, levels)


def _added(a: Tensor, b: Tensor) -> Tensor:
    codes, counts = torch.cat([a, b], 1)
    found, place = codes.unique(return_inverse=True)
    return torch.stack([found, torch.zeros_like(found).index_add_(0, place, counts)])


def fitted(blank: PerColumn, sums: Iterable[ColumnSums]) -> PerColumn:
    """With the numbers of all these clients, which are added in this order."""
    given = list(sums)
    if not given:
        raise InputError("There are no training samples to take statistics of.")
    return _filled_in(blank, reduce(both, given))


def _filled_in(blank: PerColumn, whole: ColumnSums) -> PerColumn:
    levels = iter(whole.levels)
    made = []
    for place, column in enumerate(blank.columns):
        present = int(whole.present[place])
        flagged = present < whole.rows
        if column.category:
            made.append(Column(column.name, True, _agreed(next(levels)), flagged=flagged))
        else:
            mean, squares = float(whole.mean[place]), float(whole.squares[place])
            made.append(Column(column.name, False, (), mean, _deviation(present, mean, squares), flagged))
    return PerColumn(tuple(made), blank.scope)


def _agreed(counted: Tensor) -> tuple[int, ...]:
    """The most frequent levels, in the order of their codes."""
    codes, counts = counted.numpy()
    return tuple(sorted(int(code) for code in codes[np.lexsort((codes, -counts))[:LEVELS]]))


def _deviation(present: int, mean: float, squares: float) -> float:
    """1 for a column that never changes, but for what rounding leaves."""
    found = math.sqrt(max(squares, 0.0) / max(present, 1))
    return found if found > 1e-14 * abs(mean) and found > 1e-150 else 1.0


def own(agreed: PerColumn, sums: ColumnSums) -> PerColumn:
    """One client's own means and deviations, with the levels and flags that all agreed on."""
    mine = _filled_in(agreed.blank(), sums)
    pairs = zip(agreed.columns, mine.columns, strict=True)
    return PerColumn(
        tuple(Column(a.name, a.category, a.levels, m.mean, m.std, a.flagged) for a, m in pairs), "federation"
    )


def without_numbers(agreed: PerColumn) -> PerColumn:
    """Levels and flags alone: all that clients need to be told who take means and deviations of their own."""
    return PerColumn(
        tuple(Column(c.name, c.category, c.levels, flagged=c.flagged) for c in agreed.columns), agreed.scope
    )


def check_sums(blank: PerColumn, told: object) -> None:
    """Raise unless this can be what a client tells of such columns."""
    count, named = len(blank.columns), sum(c.category for c in blank.columns)
    if not isinstance(told, ColumnSums) or type(told.rows) is not int or told.rows < 1:
        raise ValueError("not the sums of a table's columns")
    _check_numbers(told, count)
    if not isinstance(told.levels, tuple) or len(told.levels) != named:
        raise ValueError(f"levels of other than {named} categories")
    for found in told.levels:
        _check_levels(found, told.rows)


def _check_numbers(told: ColumnSums, count: int) -> None:
    kinds = ((told.present, torch.int64), (told.mean, torch.float64), (told.squares, torch.float64))
    if any(not isinstance(t, Tensor) or t.dtype != kind or t.shape != (count,) for t, kind in kinds):
        raise ValueError(f"the sums are not of {count} columns")
    if int(told.present.min()) < 0 or int(told.present.max()) > told.rows or float(told.squares.min()) < 0:
        raise ValueError("counts or squares that no rows can have")
    if not float(told.mean.abs().max()) <= LARGEST or not float(told.squares.max()) <= told.rows * (2 * LARGEST) ** 2:
        raise ValueError("means or squares of numbers that no network can hold")


def check_together(told: Sequence[ColumnSums]) -> None:
    """Raise if one client's numbers of a column are so large that standardising would leave nothing of the others'."""
    sizes = torch.stack([one.mean.abs() + (one.squares / one.present.clamp(min=1)).sqrt() for one in told])
    for place, sizes_of_one in enumerate(sizes.T):
        some = sizes_of_one[sizes_of_one > 0]
        if len(some) > 2 and float(some.max()) > APART * float(some.median()):
            raise ValueError(
                f"column {place} has numbers of about {some.max():.0e}, of most clients {some.median():.0e}"
            )


def _check_levels(found: object, rows: int) -> None:
    if not isinstance(found, Tensor) or found.dtype != torch.int64 or found.dim() != 2 or len(found) != 2:
        raise ValueError("levels that are no codes and counts")
    codes, counts = found.tolist()
    if len(codes) > TOLD or len(set(codes)) < len(codes) or not _between(codes, 0, 2**48 - 1):
        raise ValueError(f"more than {TOLD} levels, or levels that are no codes")
    if not _between(counts, 1, rows):
        raise ValueError("a level in more rows than there are")


def _between(numbers: Sequence[int], low: int, high: int) -> bool:
    return all(low <= number <= high for number in numbers)


def _many(count: int, word: str, several: str, one: str = "") -> str:
    return f"{count} {word}{one if count == 1 else several}"


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
