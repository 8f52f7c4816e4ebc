"""Data frames in memory: of pandas, polars, pyarrow, or whatever else has columns by name. None of them is imported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedquilt.core.plain import Array
from fedquilt.data.imports.columns import Words, arrays_from
from fedquilt.data.npz import Arrays
from fedquilt.errors import InputError


def of_frame(
    frame: Any,
    label: str = "label",
    user: str | None = None,
    features: Sequence[str] | None = None,
    words: Words | str | None = None,
    categories: Sequence[str] = (),
) -> Arrays:
    """A data frame; see :func:`fedquilt.data.imports.columns.arrays_from`."""
    where = f"The {type(frame).__name__}"
    named = cells_of(frame, where)
    texts = words.columns if isinstance(words, Words) else words and (words,)
    for name in (label, user, *(texts or ())):  # any other cell may be missing
        gone = sum(v is None or v != v for v in named[name]) if name in named else 0
        if gone:
            raise InputError(f"{where}, column {name!r}, has {gone} empty cells. Fill them in, or drop those rows.")
    return arrays_from(named, where, label, user, features, words, categories)


def cells_of(frame: Any, where: str) -> dict[str, Array]:
    """The columns by their names: numbers with NaN, or objects with None, where a cell is missing."""
    if hasattr(frame, "collect"):
        raise InputError(f"{where} is not read yet. Call its collect() first.")
    found = frame.column_names if hasattr(frame, "column_names") else getattr(frame, "columns", None)
    names = [] if found is None else list(found)
    if found is None or not hasattr(frame, "__getitem__") or not all(isinstance(n, str | int) for n in names):
        raise InputError(f"{where} is no data frame of pandas, polars or pyarrow, whose columns have names.")
    if not names or not len(frame):
        raise InputError(f"{where} has no {'rows' if names else 'columns'}. Give a table with samples.")
    texts = list(map(str, names))
    if len(set(texts)) < len(texts):
        raise InputError(f"{where} has two columns of one name: {', '.join(texts)}. Give every column its own.")
    return {text: _cells(frame[name]) for text, name in zip(texts, names, strict=True)}


def _cells(column: Any) -> Array:
    """One column. Types that know of missing cells become those of numpy."""
    values = np.asarray(column)
    if values.dtype.kind in "biufUM":
        return values
    find = next((getattr(column, name) for name in ("isna", "is_null", "isnull") if hasattr(column, name)), None)
    gone = np.array([v is None for v in values]) if find is None else np.asarray(find()).astype(np.bool_)
    there = values[~gone]
    if len(there) and all(isinstance(v, bool | int | float | np.number | np.bool_) for v in there):
        if not gone.any():
            return np.array(there.tolist())
        found = np.full(len(values), np.nan)
        found[~gone] = there.astype(np.float64)
        return found
    if not gone.any() and all(isinstance(v, str) for v in there):
        texts: Array = there.astype(str)
        return texts
    cells = np.array(values, object)
    cells[gone] = None
    return cells
