"""Streams: federations whose data change from round to round. The tasks are federations; a clock says which is on.

Several federations on common columns, and a federation cut down to some classes: what streams are made of.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedquilt.core.columns import PerColumn
from fedquilt.core.plain import JSON, Ints, Row
from fedquilt.core.table import ClientId, Columns, Prepare, Site, Table
from fedquilt.data import look
from fedquilt.data.checks import few, same_kind
from fedquilt.data.federation import Federation
from fedquilt.data.rows import chosen, moved, united
from fedquilt.data.streams.clock import Clock, Delays, delays_of
from fedquilt.data.tabular import fit, standardised
from fedquilt.errors import InputError


def only_classes(federation: Federation, classes: Sequence[int]) -> Federation:
    """The federation with the rows of these classes only, in every split; columns are shared, not copied."""
    mask = np.isin(federation.columns["y"].numpy(), list(classes))
    if not mask.any():
        raise InputError(f"There is no row of the classes {list(classes)}.")
    valid = chosen(federation.valid, mask)
    held = valid if federation.evaluation_valid is federation.valid else chosen(federation.evaluation_valid, mask)
    return replace(
        federation,
        train=chosen(federation.train, mask),
        valid=valid,
        evaluation_valid=held,
        test=chosen(federation.test, mask),
        unlabelled=None if federation.unlabelled is None else chosen(federation.unlabelled, mask),
    )


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
    common: dict[str, Any] = {"columns": columns, "global_columns": wide, "classes": max(known, default=None)}
    return tuple(replace(task, **common, **_rows_from(task, base)) for task, base in zip(tasks, bases, strict=True))


def _rows_from(task: Federation, base: int) -> dict[str, Any]:
    """The rows of a task whose columns begin at row ``base`` of longer ones."""
    valid = moved(task.valid, base)
    return {
        "train": moved(task.train, base),
        "valid": valid,
        "evaluation_valid": valid if task.evaluation_valid is task.valid else moved(task.evaluation_valid, base),
        "test": moved(task.test, base),
        "unlabelled": None if task.unlabelled is None else moved(task.unlabelled, base),
    }


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
    if task.ids != first.ids or task.evaluated != first.evaluated:
        raise InputError(f"Task {number} has the clients {few(task.ids)}, task 0 has {few(first.ids)}. Give the same.")
    if task.columns.keys() != first.columns.keys() or _kind(task) != _kind(first):
        raise InputError(f"Task {number} has other columns, or prepares them otherwise, than task 0. Make them alike.")
    empty = [client for client, count in zip(task.ids, task.train.counts(), strict=True) if not count]
    if empty:
        raise InputError(
            f"{len(empty)} of {len(task.ids)} clients have no training samples in task {number}: {few(empty)}. Divide "
            "each task by itself (one federation for each, with the same clients), or use fewer classes per client."
        )


def _kind(task: Federation) -> object:
    """How rows are prepared; tables are alike if their columns are, and are then standardised together."""
    return task.prepare.blank() if isinstance(task.prepare, PerColumn) else task.prepare


@dataclass(frozen=True, eq=False, repr=False)
class Stream:
    """A source whose data at round t are a function of t: an ordered list of tasks, each a federation of its own.

    A client trains on the rows of the task that is on, and is evaluated on the rows of all tasks it has seen so far.
    Nothing is remembered, so a run on a stream resumes exactly. Make one with :meth:`of`, :meth:`by_class` or
    :meth:`drift`.

    Args:
        tasks: The federations, on common columns, with the same clients.
        clock: Which task is on in which round.
        delays: Clients that are so many rounds behind the clock; those not named are on time.

    Example:
        >>> import numpy as np
        >>> x, y = np.random.default_rng(0).normal(size=(80, 4)), np.arange(80) % 4
        >>> data = Federation.from_arrays(x, y, clients=2)
        >>> stream = Stream.by_class(data, ((0, 1), (2, 3)), rounds_per_task=5, delays=(0, 2))
        >>> [stream.task_at(client, 5) for client in stream.ids]
        [1, 0]
    """

    tasks: tuple[Federation, ...]
    clock: Clock
    delays: Mapping[ClientId, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        tasks: Sequence[Federation],
        rounds_per_task: int = 3,
        *,
        order: Sequence[int] | None = None,
        recurring: bool = False,
        delays: Delays | None = None,
    ) -> Stream:
        """One task after the other (domain-incremental when they differ in x, class-incremental when in y).

        Args:
            tasks: Federations with the same clients and the same shape of rows; every client trains in every task.
            rounds_per_task: How long each stage lasts.
            order: The tasks of the stages, for example (0, 1, 0); by default each once.
            recurring: Whether it all begins again after the last stage; otherwise the last task stays.
            delays: How many rounds each client is behind: a mapping, or numbers dealt to the clients in turn. Until
                its clock begins, a client stays with its first task (or, recurring, with the end of the round before).
        """
        if not tasks or rounds_per_task < 1:
            asked = f"{len(tasks)} and {rounds_per_task!r}"
            raise InputError(f"A stream needs at least 1 task and 1 round per task, got {asked}.")
        stages = tuple(range(len(tasks)) if order is None else order)
        starts = tuple(rounds_per_task * stage for stage in range(len(stages)))
        clock = Clock(starts, stages, rounds_per_task * len(stages) if recurring else None)
        return cls._made(tasks, clock, delays)

    @classmethod
    def by_class(
        cls, federation: Federation, groups: Sequence[Sequence[int]], rounds_per_task: int = 3, **options: Any
    ) -> Stream:
        """Class-incremental: task i holds the rows of the classes in group i. Options as for :meth:`of`."""
        return cls.of([only_classes(federation, group) for group in groups], rounds_per_task, **options)

    @classmethod
    def drift(cls, before: Federation, after: Federation, at: int, delays: Delays | None = None) -> Stream:
        """A change at a round (from 0); with delays it reaches each client in its own round."""
        if at < 1:
            raise InputError(f"A drift needs a round of at least 1, got {at!r}.")
        return cls._made([before, after], Clock((0, at), (0, 1)), delays)

    @classmethod
    def _made(cls, tasks: Sequence[Federation], clock: Clock, delays: Delays | None) -> Stream:
        common = joined(tasks)
        for odd in set(clock.order) - set(range(len(tasks))):
            raise InputError(f"order names the task {odd}, but the tasks are 0 to {len(tasks) - 1}.")
        return cls(common, clock, delays_of(common[0].ids, delays))

    def task_at(self, client: ClientId, round: int) -> int:
        """The number of the task that is on for this client in this round."""
        return self.clock.task(round - self.delays.get(client, 0))

    def seen(self, client: ClientId, round: int) -> tuple[int, ...]:
        """The tasks this client has met up to and including this round, in that order."""
        met = self._first_rounds(self.delays.get(client, 0))
        return tuple(task for task, first in met.items() if first <= round)

    def _first_rounds(self, delay: int) -> dict[int, int]:
        found = self._met.get(delay)
        if found is None:
            found = self._met[delay] = {}
            for round in range((self.clock.period or self.clock.starts[-1] + 1) + delay):
                found.setdefault(self.clock.task(round - delay), round)
        return found

    @cached_property
    def _met(self) -> dict[int, dict[int, int]]:
        return {}

    # What engines ask of a source

    @property
    def ids(self) -> tuple[ClientId, ...]:
        """The clients that train, ascending."""
        return self.tasks[0].ids

    @property
    def evaluated(self) -> tuple[ClientId, ...]:
        """The clients whose models are scored, ascending."""
        return self.tasks[0].evaluated

    def site(self, client: ClientId, round: int) -> Site:
        """The client's samples of the task that is on."""
        return self.tasks[self.task_at(client, round)].site(client, round)

    def evaluation(self, client: ClientId, split: str, round: int = 0) -> Table | None:
        """The client's 'valid' or 'test' rows of all tasks seen so far, each once, or None when it has none."""
        tables = [self.evaluation_of(client, split, task) for task in self.seen(client, round)]
        index = [table.all_rows() for table in tables if table is not None]
        if not index:
            return None
        rows = torch.cat(index)
        once = torch.unique(rows)  # tasks may share classes, and then rows
        return Table(self.tasks[0].columns, rows if len(once) == len(rows) else once, self.prepare)

    def evaluation_of(self, client: ClientId, split: str, task: int) -> Table | None:
        """The client's 'valid' or 'test' rows of one task: for what was forgotten, and what was not yet learned."""
        return self.tasks[task].evaluation(client, split)

    def size(self, client: ClientId) -> int:
        """How many training samples the client has in its largest task."""
        return max(task.size(client) for task in self.tasks)

    @property
    def classes(self) -> int | None:
        """How many classes there are in all tasks."""
        return self.tasks[0].classes

    @property
    def prepare(self) -> Prepare | None:
        """Turns stored rows into what a network takes."""
        return self.tasks[0].prepare

    @property
    def preparation(self) -> PerColumn | None:
        """What was done to the columns of a table."""
        return self.tasks[0].preparation

    @property
    def groups(self) -> Mapping[ClientId, int] | None:
        """The planted groups, of the first task."""
        return self.tasks[0].groups

    @property
    def global_test(self) -> Table | None:
        """The test sets that belong to no client, of all tasks together."""
        return self.tasks[0].global_test

    def together(self) -> Federation:
        """The rows of all tasks, each once, as one federation without time: for looking at, and for baselines."""
        first, rest = self.tasks[0], self.tasks[1:]
        for task in rest:
            valid = united(first.valid, task.valid)
            held = (
                valid if task.evaluation_valid is task.valid else united(first.evaluation_valid, task.evaluation_valid)
            )
            bare = (
                None
                if first.unlabelled is None or task.unlabelled is None
                else united(first.unlabelled, task.unlabelled)
            )  # all tasks have such rows, or none
            first = replace(
                first,
                train=united(first.train, task.train),
                valid=valid,
                evaluation_valid=held,
                test=united(first.test, task.test),
                unlabelled=bare,
            )
        return first

    def label_counts(self, split: str = "train") -> Ints:
        """How many rows of each class each client has in all tasks: [clients, classes]."""
        return self.together().label_counts(split)

    def majority(self) -> look.Majority:
        """The majority baseline over all tasks: what answering the most frequent label gives once all were seen."""
        return self.together().majority()

    def pooled(self) -> Stream:
        """The same with one training client, 'pooled'; all clients must be on time."""
        if self.delays:
            raise InputError("Clients with individual delays see different tasks at a time and cannot be pooled.")
        return replace(self, tasks=tuple(task.pooled() for task in self.tasks))

    def fingerprint(self) -> str:
        """What data this is, and when."""
        when = repr((self.clock, sorted(self.delays.items(), key=repr)))
        return hashlib.sha256((look.fingerprint(self) + when).encode()).hexdigest()

    def columns_for_sharing(self) -> dict[str, Tensor]:
        """Every tensor under a flat name; columns, which are common to all tasks, once."""
        tensors: dict[str, Tensor] = {}
        for number, task in enumerate(self.tasks):
            for name, tensor in task.columns_for_sharing().items():
                tensors[name if name.startswith(("columns.", "global.")) else f"{number}:{name}"] = tensor
        return tensors

    def layout(self) -> Row:
        """The rest, as plain values that can be packed."""
        clock, delays = self.clock, [self.delays.get(client, 0) for client in self.evaluated]
        when = [list(clock.starts), list(clock.order), clock.period]
        return {"tasks": [task.layout() for task in self.tasks], "clock": when, "delays": delays}

    @classmethod
    def from_shared(cls, tensors: Mapping[str, Tensor], layout: Mapping[str, JSON], prepare: Prepare | None) -> Stream:
        """The stream on these very tensors; nothing is copied."""
        tasks = [
            Federation.from_shared({n.removeprefix(f"{i}:"): t for n, t in tensors.items()}, own, prepare)
            for i, own in enumerate(layout["tasks"])
        ]
        starts, order, period = layout["clock"]
        delays = dict(zip(tasks[0].evaluated, layout["delays"], strict=True))
        return cls(tuple(tasks), Clock(tuple(starts), tuple(order), period), delays_of(tasks[0].evaluated, delays))

    def __repr__(self) -> str:
        return f"Stream({len(self.tasks)} tasks, {len(self.ids)} clients, {self.classes} classes)"
