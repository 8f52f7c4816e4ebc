"""Several federations on common columns, and a federation cut down to some classes: what streams are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from fedquilt.core.columns import PerColumn
from fedquilt.core.errors import InputError
from fedquilt.core.table import Columns
from fedquilt.data.checks import few, same_kind
from fedquilt.data.federation import Federation
from fedquilt.data.rows import chosen, moved
from fedquilt.data.tabular import fit, standardised


def only_classes(federation: Federation, classes: Sequence[int]) -> Federation:
    """The federation with the rows of these classes only, in every split; columns are shared, not copied."""
    mask = np.isin(federation.columns["y"].numpy(), list(classes))
    if not mask.any():
        raise InputError(f"There is no row of the classes {list(classes)}.")
    valid = chosen(federation.valid, mask)
    held = valid if federation.exam_valid is federation.valid else chosen(federation.exam_valid, mask)
    return replace(
        federation, train=chosen(federation.train, mask), valid=valid, exam_valid=held,
        test=chosen(federation.test, mask),
        unlabelled=None if federation.unlabelled is None else chosen(federation.unlabelled, mask),
    )  # fmt: skip


def joined(tasks: Sequence[Federation]) -> tuple[Federation, ...]:
    """The federations on common columns; those that had common ones before share them as they are."""
    for number, task in enumerate(tasks):
        _check_like(tasks[0], task, number)
    prepare = tasks[0].prepare
    if isinstance(prepare, PerColumn) and any(task.prepare != prepare for task in tasks):
        prepare = fit(tasks, prepare)
        tasks = [standardised(task, prepare) for task in tasks]
    columns, bases = _stacked([dict(task.columns) for task in tasks])
    tests = [dict(task.global_columns) for task in tasks if task.global_columns is not None]
    wide = _stacked(tests)[0] if tests else None
    known = [task.classes for task in tasks if task.classes is not None]
    made = []
    for task, base in zip(tasks, bases, strict=True):
        valid = moved(task.valid, base)
        held = valid if task.exam_valid is task.valid else moved(task.exam_valid, base)
        made.append(replace(
            task, columns=columns, train=moved(task.train, base), valid=valid, exam_valid=held,
            test=moved(task.test, base), global_columns=wide, classes=max(known, default=None),
            unlabelled=None if task.unlabelled is None else moved(task.unlabelled, base),
        ))  # fmt: skip
    return tuple(made)


def _stacked(parts: Sequence[Columns]) -> tuple[Columns, list[int]]:
    """All different columns one below the other, and where each part begins."""
    places: dict[tuple[int, ...], int] = {}
    different: list[Columns] = []
    bases, end = [], 0
    for part in parts:
        key = tuple(id(column) for column in part.values())
        if key not in places:
            places[key] = end
            different.append(part)
            end += len(part["x"])
        bases.append(places[key])
    if len(different) == 1:
        return different[0], bases
    return {name: torch.cat([part[name] for part in different]) for name in parts[0]}, bases


def _check_like(first: Federation, task: Federation, number: int) -> None:
    same_kind(first.columns["x"], task.columns["x"], f"task {number}")
    if task.ids != first.ids or task.examined != first.examined:
        raise InputError(f"Task {number} has the clients {few(task.ids)}, task 0 has {few(first.ids)}. Give the same.")
    if task.columns.keys() != first.columns.keys() or _kind(task) != _kind(first):
        raise InputError(f"Task {number} has other columns, or prepares them otherwise, than task 0. Make them alike.")
    empty = [client for client, count in zip(task.ids, task.train.counts(), strict=True) if not count]
    if empty:
        raise InputError(
            f"{len(empty)} of {len(task.ids)} clients have no training rows in task {number}: {few(empty)}. Divide "
            "each task by itself (one federation for each, with the same clients), or use fewer classes per client."
        )


def _kind(task: Federation) -> object:
    """How rows are prepared; tables are alike if their columns are, and are then standardised together."""
    return task.prepare.blank() if isinstance(task.prepare, PerColumn) else task.prepare
