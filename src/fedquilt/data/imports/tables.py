"""Tables: a csv file with a header (nothing to install), a parquet file (through pyarrow), and data frames in memory.

Frames are those of pandas, polars, pyarrow, or whatever else has columns by name. None of them is imported.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedquilt.core.memory import check_bytes
from fedquilt.core.plain import Array
from fedquilt.data.imports.columns import Targets, Words, arrays_from
from fedquilt.data.npz import Arrays
from fedquilt.data.sizes import check_parquet, check_texts
from fedquilt.data.sources.formats.files import text
from fedquilt.errors import InputError

_CELL = 64  # bytes that a short cell takes while a csv file is read


def of_csv(
    path: Path,
    label: str | Targets = "label",
    user: str | None = None,
    features: Sequence[str] | None = None,
    delimiter: str = ",",
    words: Words | str | None = None,
    categories: Sequence[str] = (),
) -> Arrays:
    """A csv file (or csv.gz) with a header; see :func:`fedquilt.data.imports.columns.arrays_from`."""
    return arrays_from(_csv_cells(path, delimiter), str(path), label, user, features, words, categories)


def cells(path: Path) -> dict[str, Array]:
    """The columns of a csv or parquet file as they are, by their names."""
    return _parquet_cells(path)[0] if path.suffix == ".parquet" else _csv_cells(path)


def _csv_cells(path: Path, delimiter: str = ",") -> dict[str, Array]:
    _check(path)
    if len(delimiter) != 1:
        raise InputError(f"delimiter must be one character, got {delimiter!r}.")
    numbered = _numbered_rows(path, delimiter)
    if len(numbered) < 2:
        raise InputError(f"{path} has no rows below a header. Give a table whose first line names the columns.")
    (_, header), *body = numbered
    if len(set(header)) < len(header):
        raise InputError(f"{path} has two columns of one name: {', '.join(header)}. Give every column its own.")
    for line, row in body:
        if len(row) != len(header):
            raise InputError(f"{path}, line {line}, has {len(row)} fields, the header has {len(header)}. Correct it.")
    columns = zip(*(row for _, row in body), strict=True)
    cells = dict(zip(header, columns, strict=True))
    for name, column in cells.items():
        check_texts(max(map(len, column)), len(column), f"{path}, column {name!r},")
    return {name: np.array(column) for name, column in cells.items()}


def _numbered_rows(path: Path, delimiter: str) -> list[tuple[int, list[str]]]:
    """The rows of a file that are not empty, each with the number of its line."""
    content = text(path)
    check_bytes(_CELL * content.count(delimiter), f"{path}, cell by cell,")
    rows = csv.reader(io.StringIO(content, newline=""), delimiter=delimiter, strict=True)
    try:
        return [(rows.line_num, row) for row in rows if row]
    except csv.Error as error:
        raise InputError(f"{path}, line {rows.line_num}, is not well-formed csv: {error}. Correct it there.") from error


def of_parquet(
    path: Path,
    label: str | Targets = "label",
    user: str | None = None,
    features: Sequence[str] | None = None,
    words: Words | str | None = None,
    categories: Sequence[str] = (),
) -> Arrays:
    """A parquet file."""
    named, holes = _parquet_cells(path)
    for name in _needed(label, user, words):
        if name in holes:
            raise InputError(f"{path}, column {name!r}, has {holes[name]} empty cells. Fill them in first.")
    return arrays_from(named, str(path), label, user, features, words, categories)


def _parquet_cells(path: Path) -> tuple[dict[str, Array], dict[str, int]]:
    """The columns, and how many cells are missing where any are."""
    import pyarrow
    from pyarrow import parquet

    _check(path)
    try:
        file = parquet.ParquetFile(path)
        check_parquet(file, path)
        found = file.read()
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{path} cannot be read as parquet: {error}. Write it again.") from error
    holes = {name: found.column(name).null_count for name in found.column_names if found.column(name).null_count}
    return {n: _column(found.column(n)) for n in found.column_names}, holes


def _column(values: object) -> Array:
    """Numbers, with NaN where one is missing; texts as such where all are there."""
    array = np.asarray(values)
    texts = array.dtype.kind == "O" and all(isinstance(v, str) for v in array)
    if not texts:
        return array
    check_texts(max(map(len, array), default=0), len(array), "A column of texts")
    return array.astype(str)


def _check(path: Path) -> None:
    if not path.is_file():
        raise InputError(f"There is no file {path}. Check the path; relative ones start at {Path.cwd()}.")


def of_frame(
    frame: Any,
    label: str | Targets = "label",
    user: str | None = None,
    features: Sequence[str] | None = None,
    words: Words | str | None = None,
    categories: Sequence[str] = (),
) -> Arrays:
    """A data frame; see :func:`fedquilt.data.imports.columns.arrays_from`."""
    where = f"The {type(frame).__name__}"
    named = cells_of(frame, where)
    for name in _needed(label, user, words):
        gone = sum(v is None or v != v for v in named[name]) if name in named else 0
        if gone:
            raise InputError(f"{where}, column {name!r}, has {gone} empty cells. Fill them in, or drop those rows.")
    return arrays_from(named, where, label, user, features, words, categories)


def _needed(label: str | Targets, user: str | None, words: Words | str | None) -> tuple[str, ...]:
    """The columns in which no cell may be missing."""
    texts = words.columns if isinstance(words, Words) else (words,) if words else ()
    wanted = label.columns if isinstance(label, Targets) else (label,)
    return (*wanted, *((user,) if user else ()), *texts)


def cells_of(frame: Any, where: str) -> dict[str, Array]:
    """The columns by their names: numbers with NaN, or objects with None, where a cell is missing."""
    names = _names(frame, where)
    if not names or not len(frame):
        raise InputError(f"{where} has no {'rows' if names else 'columns'}. Give a table with samples.")
    texts = list(map(str, names))
    if len(set(texts)) < len(texts):
        raise InputError(f"{where} has two columns of one name: {', '.join(texts)}. Give every column its own.")
    return {text: _cells(frame[name]) for text, name in zip(texts, names, strict=True)}


def _names(frame: Any, where: str) -> list[str | int]:
    """The names of a data frame's columns."""
    if hasattr(frame, "collect"):
        raise InputError(f"{where} is not read yet. Call its collect() first.")
    found = frame.column_names if hasattr(frame, "column_names") else getattr(frame, "columns", None)
    if found is None or not hasattr(frame, "__getitem__") or not all(isinstance(n, str | int) for n in found):
        raise InputError(f"{where} is not a pandas, polars or pyarrow data frame with named columns.")
    return list(found)


def _cells(column: Any) -> Array:
    """One column. Types that know of missing cells become those of numpy."""
    values = np.asarray(column)
    if values.dtype.kind in "biufUM":
        return values
    gone = _gone(column, values)
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


def _gone(column: Any, values: Array) -> Array:
    """Which cells are missing."""
    find = next((getattr(column, name) for name in ("isna", "is_null", "isnull") if hasattr(column, name)), None)
    return np.array([v is None for v in values]) if find is None else np.asarray(find()).astype(np.bool_)
