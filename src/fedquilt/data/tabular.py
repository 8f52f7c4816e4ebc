"""Tables of one's own: cells to stored rows, and the numbers that standardise them, from training samples alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedquilt.core.columns import LARGEST, SCOPES, Column, PerColumn, blank_of, code_of, fitted, own, sums_of
from fedquilt.core.plain import Array
from fedquilt.core.table import Columns
from fedquilt.data.lazy.files import file_rows
from fedquilt.errors import InputError

Standardise = str | bool | None
MISSING = frozenset(("", "na", "n/a", "nan", "null", "?"))  # as they are written in files, in any case
MOST_LEVELS = 1000  # a column with more different names is a text, or names its rows


D = TypeVar("D")  # a federation, or one in the making


# From cells to stored rows


def scope_of(standardise: Standardise) -> str | None:
    """Whose training samples the numbers are of; None where rows are taken as they are."""
    if standardise is None:
        return None
    scope = {True: "federation", False: "none"}.get(standardise) if isinstance(standardise, bool) else standardise
    if scope not in SCOPES:
        raise InputError(f"standardise is 'federation', 'clients' or false, got {standardise!r}.")
    return str(scope)


def stored(named: Mapping[str, Array], where: str, categories: Iterable[str] = ()) -> tuple[Array, PerColumn]:
    """The columns side by side as stored rows (float64), and what kind each is.

    A column is a category if ``categories`` names it, or if its cells are not numbers.
    """
    wanted = set(categories)
    odd = [name for name in wanted if name not in named]
    if odd:
        raise InputError(f"{where}: categories names {odd[0]!r}. The columns are {', '.join(named)}.")
    made, kinds = [], []
    for name, values in named.items():
        check_cells(values, f"{where}, column {name!r}")
        cells = None if name in wanted else _numbers(values, f"{where}, column {name!r}")
        made.append(_codes(values, f"{where}, column {name!r}") if cells is None else cells)
        kinds.append(Column(name, cells is None))
    return np.stack(made, axis=1), PerColumn(tuple(kinds))


def check_cells(values: Array, where: str) -> None:
    """Refuse cells that hold several values, as parquet and data frames may."""
    if values.dtype.kind == "O":
        several = next((v for v in values if isinstance(v, list | tuple | dict | np.ndarray)), None)
        if several is not None:
            raise InputError(
                f"{where} holds cells of type {type(several).__name__}; a cell is one number or name. Use other "
                "columns, or spread this one over several."
            )


def stored_like(named: Mapping[str, Array], where: str, prepare: PerColumn) -> Array:
    """New rows of a table that is known: its columns by their names, of the same kinds."""
    lacking = [c.name for c in prepare.columns if c.name not in named]
    if lacking:
        raise InputError(f"{where} has no column {lacking[0]!r}, which the run's table had. It has {', '.join(named)}.")
    chosen = {c.name: named[c.name] for c in prepare.columns}
    x, kinds = stored(chosen, where, [c.name for c in prepare.columns if c.category])
    odd = [c.name for c, k in zip(prepare.columns, kinds.columns, strict=True) if c.category != k.category]
    if odd:
        raise InputError(f"{where}, column {odd[0]!r}, holds names, but numbers in the run's table. Correct it.")
    return x


def of_pieces(pieces: Sequence[object], where: str) -> tuple[list[object], PerColumn | None]:
    """Inputs given in Python, of one client each: data frames and arrays of names become stored rows, all alike;
    numbers stay as they are."""
    named = [_named(x) for x in pieces]
    tables = [found for found in named if found is not None]
    if not tables:
        return list(pieces), None
    if len(tables) < len(named) or any(found.keys() != tables[0].keys() for found in tables):
        raise InputError(f"{where}: some clients have a table of named columns and others have not, or other ones.")
    made = [stored(found, where) for found in tables]
    names = {c.name for _, kinds in made for c in kinds.columns if c.category}
    again = [stored(found, where, names) for found in tables]
    return [x for x, _ in again], again[0][1]


def _named(x: object) -> dict[str, Array] | None:
    """The columns of a data frame, or of an array that holds names; None for numbers."""
    if hasattr(x, "columns") and hasattr(x, "__getitem__") and not isinstance(x, np.ndarray | Tensor):
        return {str(name): np.asarray(x[name]) for name in x.columns}
    if isinstance(x, Tensor) or file_rows(x) is not None:
        return None
    array = np.asarray(x)
    if array.dtype.kind not in "OU" or array.ndim != 2:
        return None
    return {str(place): array[:, place] for place in range(array.shape[1])}


def _missing(values: Array) -> NDArray[np.bool_]:
    if values.dtype.kind == "f":
        return np.isnan(values)
    if values.dtype.kind == "U":
        return np.isin(np.char.lower(np.char.strip(values)), list(MISSING))
    if values.dtype.kind == "O":
        return np.array([v is None or v != v or str(v).strip().lower() in MISSING for v in values], np.bool_)
    return np.zeros(len(values), np.bool_)


def _numbers(values: Array, where: str) -> Array | None:
    """A column as float64, NaN where a cell is missing; None if its cells are names."""
    if values.dtype.kind in "biuf":
        return _finite(values.astype(np.float64), where)
    if values.dtype.kind not in "OU":
        raise InputError(f"{where} holds {values.dtype}, neither numbers nor names. Leave it out with features=[...].")
    gone = _missing(values)
    texts, found = values.astype(str)[~gone], np.full(len(values), np.nan)
    try:
        found[~gone] = texts.astype(np.float64)
    except ValueError:
        odd = [i for i, text in enumerate(texts) if not _is_number(text)]
        if 2 * len(odd) < len(texts):
            row = int(np.flatnonzero(~gone)[odd[0]])
            raise InputError(
                f"{where} holds {texts[odd[0]]!s:.40} in row {row + 1}, not a number, though most cells are. Fill it "
                f"in, leave it empty, or say that the column is a category: categories=[...]."
            ) from None
        return None
    return _finite(found, where)


def _finite(values: Array, where: str) -> Array:
    large = np.abs(values) > LARGEST
    if large.any():
        raise InputError(f"{where} has an infinite value, or nearly so, in row {int(large.argmax()) + 1}. Correct it.")
    return values


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _codes(values: Array, where: str) -> Array:
    """A category as the codes of its names, NaN where a cell is missing."""
    gone = _missing(values)
    texts = np.array([_text(v) for v in values[~gone]], np.str_)
    names, place = np.unique(texts, return_inverse=True)
    if len(names) > MOST_LEVELS:
        raise InputError(
            f"{where} holds {len(names)} different names, too many for a category (at most {MOST_LEVELS}). Leave it "
            "out with features=[...]; a column of texts is named with text, that of clients with user."
        )
    found = np.full(len(values), np.nan)
    found[~gone] = np.array([code_of(str(name)) for name in names], np.float64)[place]
    return found


def _text(value: object) -> str:
    """A cell's name; whole numbers are written alike whatever type they came in."""
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value).strip()


# From stored rows to what standardises them


def is_table(x: Tensor) -> bool:
    """Rows of numbers, one for each column; whole numbers (token ids) and images are something else."""
    return x.dim() == 2 and x.is_floating_point()


def has_holes(*columns: Tensor | None) -> bool:
    """Whether a cell is missing."""
    return any(x is not None and bool(torch.isnan(x).any()) for x in columns)


def fit(data: Sequence[Any], blank: PerColumn) -> PerColumn:
    """The numbers of all clients' training samples, client after client: what a real federation agrees on by
    messages."""
    parts = (task.columns["x"][task.train[place]] for task in data for place in range(len(task.train)))
    return fitted(blank.blank(), (sums_of(x, blank.columns) for x in parts if len(x)))


def standardised(given: D, prepare: PerColumn) -> D:
    """With rows prepared so; where the numbers are each client's own, rows are stored as they come out."""
    data: Any = given
    made: Any
    if prepare.scope != "clients":
        made = replace(data, prepare=prepare, preparation=prepare)
        return made  # type: ignore[no-any-return]
    x = data.columns["x"]
    stands = x.new_zeros((len(x), prepare.width), dtype=torch.float32)
    kinds = ("train", "valid", "evaluation_valid", "test", "unlabelled")
    named = {
        id(rows): rows for rows in (getattr(data, name, None) for name in kinds)
    }  # valid is often evaluation_valid, too
    held = [rows for rows in named.values() if rows is not None]
    index = torch.cat([rows.index for rows in held])
    if len(index.unique()) < len(index):
        raise InputError(
            "Some rows belong to several clients, so that none of them can standardise them by its own numbers. Use "
            "standardise='federation'."
        )
    for place in range(len(data.train)):
        mine = own(prepare, sums_of(x[data.train[place]], prepare.columns))
        rows = torch.cat([kind[place] for kind in held])
        stands[rows] = mine({"x": x[rows]})["x"]
    wide = _alone(data, prepare)
    made = replace(data, columns={**data.columns, "x": stands}, prepare=None, preparation=prepare, **wide)
    return made  # type: ignore[no-any-return]


def _alone(data: Any, prepare: PerColumn) -> dict[str, Columns]:
    """Rows that belong to no client, by their own numbers."""
    held = {name: getattr(data, name, None) for name in ("global_columns", "server_columns")}
    return {n: own(prepare, sums_of(c["x"], prepare.columns))(c) for n, c in held.items() if c is not None}


def blank_for(x: Tensor, table: PerColumn | None, scope: str) -> PerColumn:
    """The columns of stored rows, before anything is known of their cells."""
    if table is None:
        return blank_of(x.shape[1], scope)
    return PerColumn(table.columns, scope)
