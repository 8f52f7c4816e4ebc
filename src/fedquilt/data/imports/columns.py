"""What a label column, a user column and number columns mean, wherever they come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedquilt.core.columns import PerColumn
from fedquilt.core.plain import Array
from fedquilt.core.task import Task
from fedquilt.data.npz import Arrays
from fedquilt.data.reading import Reading
from fedquilt.data.sources.formats.text import encoded, vocabulary
from fedquilt.data.tabular import check_cells, stored
from fedquilt.errors import InputError


@dataclass(frozen=True)
class Words:
    """Columns of text as x: word ids, int32 [rows, length], 0 for padding, 1 for unknown words.

    Attributes:
        columns: Their texts are joined by a space, in this order.
        size: Words in the vocabulary, with padding and unknown: the most frequent ones of the whole table.
        length: Words kept of each row, from its beginning.

    Example:
        >>> Words(("text",), length=4)({"text": np.array(["to be or not", "to be"])}).tolist()
        [[3, 2, 5, 4], [3, 2, 0, 0]]
    """

    columns: tuple[str, ...]
    size: int = 20_000
    length: int = 64

    def __call__(self, columns: Mapping[str, Array]) -> Array:
        """The word ids of each row."""
        return self.read(columns)[0]

    def read(self, columns: Mapping[str, Array]) -> tuple[Array, Reading]:
        """The word ids of each row, and the vocabulary they are of."""
        texts = joined(columns, self.columns)
        words = vocabulary(texts, self.size)
        return encoded(texts, words, self.length), Reading(text=self.columns, words=tuple(words), length=self.length)


@dataclass(frozen=True)
class Targets:
    """Columns of numbers as y: float64 [rows], or [rows, columns] of several.

    Example:
        >>> Targets(("a", "b"))({"a": np.array(["1", "2"]), "b": np.array(["0.5", "1"])}, "my.csv").tolist()
        [[1.0, 0.5], [2.0, 1.0]]
    """

    columns: tuple[str, ...]

    def __call__(self, columns: Mapping[str, Array], where: str) -> Array:
        """The targets of each row."""
        found = []
        for name in self.columns:
            numbers = _as_numbers(columns[name])
            if numbers is None:
                _refuse_empty(columns[name], f"{where}, column {name!r},")
                raise InputError(f"{where}, column {name!r}, holds names, but targets are numbers. Name other columns.")
            found.append(numbers.astype(np.float64))
        return found[0] if len(found) == 1 else np.stack(found, axis=1)


def labelled(label: str | Sequence[str], options: Mapping[str, Any]) -> str | Targets:
    """The label column, or the target columns where the options have a task whose targets are numbers."""
    task: Task | None = options.get("task")
    if task is not None and task.numeric:
        return Targets((label,) if isinstance(label, str) else tuple(label))
    if not isinstance(label, str):
        raise InputError(f"label = {list(label)!r} names several columns, and a row has one class label. Name one.")
    return label


def joined(columns: Mapping[str, Array], names: Sequence[str]) -> list[str]:
    """The text of each row: that of these columns with spaces between."""
    return [" ".join(row) for row in zip(*(columns[n].astype(str) for n in names), strict=True)]


def arrays_from(
    columns: Mapping[str, Array],
    where: str,
    label: str | Targets,
    user: str | None,
    features: Sequence[str] | None,
    words: Words | str | None = None,
    categories: Sequence[str] = (),
) -> Arrays:
    """The number columns and categories side by side as x (see :mod:`fedquilt.data.tabular`), or the words of the text
    columns (int32); the label column as y, the user column as user."""
    words = Words((words,)) if isinstance(words, str) else words
    wanted = label.columns if isinstance(label, Targets) else (label,)
    _check_asked(columns, where, wanted, (user,) if user else (), features, words.columns if words else ())
    table, reading = None, Reading()
    if words:
        x, reading = words.read(columns)
    else:
        x, table = _side_by_side(columns, where, wanted, user, features, categories)
        reading = Reading(columns=tuple(c.name for c in table.columns))
    names: tuple[str, ...] = ()
    if isinstance(label, Targets):
        y = label(columns, where)
    else:
        y, names = labels(columns[label], f"{where}, column {label!r}")
    people = users(columns[user], f"{where}, column {user!r}") if user else None
    reading = replace(reading, names=names, label=", ".join(wanted))
    return Arrays(x, y, user=people, classes=len(names) or None, name=where, table=table, reading=reading)


def _check_asked(
    columns: Mapping[str, Array],
    where: str,
    wanted: Sequence[str],
    users: Sequence[str],
    features: Sequence[str] | None,
    texts: Sequence[str],
) -> None:
    """The columns that are named are there, and none is named for two things; ``wanted`` are the labels."""
    inputs, beside = (*(features or ()), *texts), (*wanted, *users)
    lacking = [name for name in (*beside, *inputs) if name not in columns]
    if lacking:
        raise InputError(f"{where} has no column {lacking[0]!r}. Its columns are {', '.join(columns)}.")
    for name in set(wanted).intersection(inputs):
        raise InputError(f"{where}: features names {name!r}, the column of labels. Remove it: it would leak the label.")
    if texts and features is not None:
        raise InputError(f"{where}: text and features are mutually exclusive; give only one of them.")
    for name in (*beside, *texts):
        check_cells(columns[name], f"{where}, column {name!r}")


def _side_by_side(
    columns: Mapping[str, Array],
    where: str,
    label: Sequence[str],
    user: str | None,
    features: Sequence[str] | None,
    categories: Sequence[str],
) -> tuple[Array, PerColumn]:
    chosen = [n for n in columns if n not in (*label, user)] if features is None else list(features)
    if not chosen:
        raise InputError(f"{where} has no columns beside {', '.join(label)!r}; there is nothing to learn from.")
    return stored({name: columns[name] for name in chosen}, where, categories)


def labels(values: Array, where: str) -> tuple[Array, tuple[str, ...]]:
    """Class numbers as they are; names numbered in their order. And those names, () where there are none."""
    found = _as_numbers(values)
    if found is None:
        _refuse_empty(values, where)
        names, numbered = np.unique(values.astype(str), return_inverse=True)
        return numbered.astype(np.int64), tuple(map(str, names))
    if found.dtype.kind == "f":
        odd = found[(found != np.floor(found)) | (np.abs(found.astype(np.float64)) >= 2.0**63)]  # NaN is odd too
        if len(odd):
            raise InputError(f"{where} holds {odd[0]:g}, but labels are classes: whole numbers from 0, or names.")
    return found.astype(np.int64), ()


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
