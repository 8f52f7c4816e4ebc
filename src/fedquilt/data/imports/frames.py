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
    names = list(getattr(frame, "column_names", None) or getattr(frame, "columns", None) or ())
    if hasattr(frame, "collect") or not hasattr(frame, "__getitem__") or not all(map(_is_name, names)):
        cure = " Call its collect() first." if hasattr(frame, "collect") else ""
        raise InputError(f"{where} is no data frame of pandas, polars or pyarrow in memory.{cure}")
    if not names or not len(frame):
        raise InputError(f"{where} has no {'rows' if names else 'columns'}. Give a table with samples.")
    texts = list(map(str, names))
    if len(set(texts)) < len(texts):
        raise InputError(f"{where} has two columns of one name: {', '.join(texts)}. Give every column its own.")
    return {text: _cells(frame[name]) for text, name in zip(texts, names, strict=True)}


def _is_name(name: object) -> bool:
    return isinstance(name, str | int)


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
