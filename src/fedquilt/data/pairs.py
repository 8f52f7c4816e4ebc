"""Inputs and labels as the columns of a federation."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from fedquilt.core.lazy import LazyColumn
from fedquilt.core.table import Columns
from fedquilt.core.task import Task
from fedquilt.data.checks import input_column, label_column
from fedquilt.data.lazy.files import file_rows
from fedquilt.errors import InputError


def pair_columns(x: object, y: object, where: str, table: bool = False, task: Task | None = None) -> Columns:
    """The columns of inputs and labels of equal length, or of inputs alone if y is None; ``where`` is for errors. Of a
    ``task`` labels are its targets.

    An array that is mapped from a file stays there.
    """
    inputs = _inputs(x, where, table)
    if y is None:
        return {"x": inputs}
    labels = label_column(y, where) if task is None else task.targets(y, where)
    if len(inputs) != len(labels):
        raise InputError(f"{where}: x has {len(inputs)} rows but y has {len(labels)}. Give one label for each row.")
    return {"x": inputs, "y": labels}


def _inputs(x: object, where: str, table: bool) -> Tensor:
    if isinstance(x, LazyColumn):
        return x
    rows = file_rows(x)
    if rows is None or (table and rows.ndim == 2 and rows.dtype.kind == "f"):  # tables are looked at as a whole
        return input_column(np.asarray(x) if rows is not None else x, where, table)
    return rows.column(where)
