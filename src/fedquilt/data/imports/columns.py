"""What a label column, a user column and number columns mean, wherever they come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fedquilt.core.errors import InputError
from fedquilt.data.npz import Array, Arrays


def arrays_from(
    columns: Mapping[str, Array], where: str, label: str, user: str | None, features: Sequence[str] | None
) -> Arrays:
    """The number columns side by side as x (float32), the label column as y, the user column as user."""
    for name in (label, *((user,) if user else ()), *(features or ())):
        if name not in columns:
            raise InputError(f"{where} has no column {name!r}. Its columns are {', '.join(columns)}.")
    if label in (features or ()):
        raise InputError(
            f"{where}: features names {label!r}, the column of labels. Leave it out: it would tell the answer."
        )
    chosen = [n for n in columns if n not in (label, user)] if features is None else list(features)
    if not chosen:
        raise InputError(f"{where} has no columns beside {label!r}; there is nothing to learn from.")
    x = np.stack([_numbers(columns[name], f"{where}, column {name!r}") for name in chosen], axis=1)
    y, classes = labels(columns[label], f"{where}, column {label!r}")
    return Arrays(
        x, y, user=users(columns[user], f"{where}, column {user!r}") if user else None, classes=classes, name=where
    )


def labels(values: Array, where: str) -> tuple[Array, int | None]:
    """Class numbers as they are; names numbered in their order. And the number of classes, where that is known."""
    found = _as_numbers(values)
    if found is None:
        _refuse_empty(values, where)
        names, numbered = np.unique(values.astype(str), return_inverse=True)
        return numbered.astype(np.int64), len(names)
    if found.dtype.kind == "f":
        odd = found[(found != np.floor(found)) | (np.abs(found) >= 2.0**63)]  # NaN is odd too
        if len(odd):
            raise InputError(f"{where} holds {odd[0]:g}, but labels are classes: whole numbers from 0, or names.")
    return found.astype(np.int64), None


def users(values: Array, where: str) -> Array:
    """Who each row comes from: whole numbers where all are, names otherwise."""
    _refuse_empty(values, where)
    found, names = _as_numbers(values), values.astype(str)
    whole = found is not None and found.dtype.kind in "iu" and np.array_equal(found.astype(str), names)  # '07' is not 7
    return found.astype(np.int64) if found is not None and whole else names


def _refuse_empty(values: Array, where: str) -> None:
    empty = int(np.sum(np.char.strip(values) == "")) if values.dtype.kind == "U" else 0
    if empty:
        raise InputError(f"{where} has {empty} empty cells. Fill them in, or drop those rows.")


def _numbers(values: Array, where: str) -> Array:
    found = _as_numbers(values)
    if found is not None:
        with np.errstate(over="ignore"):  # too large for float32: refused as infinite, with the row
            return found.astype(np.float32)
    row = next(i for i, value in enumerate(values) if _as_numbers(values[i : i + 1]) is None)
    raise InputError(
        f"{where} holds {values[row]!s:.40} in row {row + 1}, not a number. Fill it in, turn it into numbers, or "
        "leave the column out with features=[...]."
    )


def _as_numbers(values: Array) -> Array | None:
    """Numbers, also from their text: whole ones as int64, others as float64; None when something is no number."""
    if values.dtype.kind in "biuf":
        return values
    for kind in (np.int64, np.float64):
        try:
            return values.astype(kind) if values.dtype.kind in "US" else None
        except (ValueError, OverflowError):
            continue
    return None
