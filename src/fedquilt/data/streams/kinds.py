"""Streams by name: how a recipe's data become tasks. Each kind is called with a way to make federations.

``divide(source, classes)`` makes one as the recipe's data section says: of another data set when a source is given, of
the rows of some classes when those are given.

Streams in which every client has a list of data sets of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from fedquilt.data.federation import Federation
from fedquilt.data.streams.streams import Stream
from fedquilt.errors import InputError

Shift = Callable[[Federation], Federation]


class Divide(Protocol):
    """Makes a federation as the data section of a recipe says."""

    def __call__(self, source: str | None = None, classes: Sequence[int] | None = None) -> Federation:
        """Of another source, or of the rows of these classes only."""
        ...


@dataclass(frozen=True, kw_only=True)
class Stages:
    """One task after the other; see :meth:`fedquilt.data.streams.streams.Stream.of`."""

    rounds_per_task: int = 3
    order: tuple[int, ...] | None = None
    recurring: bool = False
    delays: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.rounds_per_task < 1:
            raise InputError(f"rounds_per_task must be at least 1, got {self.rounds_per_task}.")

    def _stream(self, tasks: Sequence[Federation]) -> Stream:
        return Stream.of(
            tasks, self.rounds_per_task, order=self.order, recurring=self.recurring, delays=self.delays or None
        )


@dataclass(frozen=True, kw_only=True)
class ByClass(Stages):
    """Class-incremental: task i holds the rows of the classes in group i.

    Args:
        groups: The classes of each task.
        each: Divide the rows of every task over the clients by itself, so that everyone has some of each task;
            otherwise all rows are divided first. Groups may then not share a class: a row could be a test sample in one
            task and a training sample in another.
    """

    groups: tuple[tuple[int, ...], ...]
    each: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.groups or not all(self.groups):
            raise InputError(f"groups must be one or more lists of classes, got {self.groups!r}.")
        times = Counter(label for group in self.groups for label in set(group))
        shared = [label for label, count in times.items() if count > 1]
        if self.each and shared:
            raise InputError(
                f"With each = true every task is divided by itself, and class {shared[0]} is in two groups: a test sample "
                "of one task would be a training sample of the other. Leave each out, or give every class to one group."
            )

    def __call__(self, divide: Divide, shift: Shift | None) -> Stream:
        no_shift(shift)
        if self.each:
            return self._stream([divide(classes=group) for group in self.groups])
        whole = Stream.by_class(divide(), self.groups)
        return self._stream(whole.tasks)


@dataclass(frozen=True, kw_only=True)
class Datasets(Stages):
    """Domain-incremental: every task is another data set, divided by the same settings.

    Args:
        sources: Their names; inputs must have one shape.
    """

    sources: tuple[str, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.sources:
            raise InputError("sources must name at least one data set, got none.")

    def __call__(self, divide: Divide, shift: Shift | None) -> Stream:
        no_shift(shift)
        return self._stream([divide(source) for source in self.sources])


@dataclass(frozen=True, kw_only=True)
class Drift:
    """One change: from a round on (counted from 0), all data are seen through the shift.

    Args:
        at: The round.
        delays: Numbers dealt to the clients in turn: how many rounds later it reaches each.
    """

    at: int
    delays: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.at < 1:
            raise InputError(f"A drift needs a round of at least 1, got {self.at}.")

    def __call__(self, divide: Divide, shift: Shift | None) -> Stream:
        if shift is None:
            raise InputError("A drift needs the shift that happens: give stream.shift, for example kind = 'rotation'.")
        before = divide()
        return Stream.drift(before, shift(before), self.at, self.delays or None)


def no_shift(shift: Shift | None) -> None:
    """Raise if a shift was given to a stream in which none happens."""
    if shift is not None:
        raise InputError("stream.shift is for the kind 'drift'. For shifted clients in all tasks give data.shift.")


@dataclass(frozen=True, kw_only=True)
class ClientDatasets(Stages):
    """In stage t, client i has the whole of the data set ``sources[i][t]``. Every data set has classes of its own.

    Args:
        sources: For each client the names of its data sets, as many for each.
        size: Side to which images are brought, in three colours; None if they have one shape already.
    """

    sources: tuple[tuple[str, ...], ...]
    size: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.sources or not self.sources[0] or len({len(names) for names in self.sources}) > 1:
            raise InputError(f"sources must list data sets for each client, as many for each, got {self.sources!r}.")
        if self.size is not None and self.size < 1:
            raise InputError(f"size must be at least 1, got {self.size}.")

    def __call__(self, divide: Divide, shift: Shift | None) -> Stream:
        no_shift(shift)
        names = list(dict.fromkeys(name for own in self.sources for name in own))
        whole = {name: divide(name) for name in names}
        first, end = dict[str, int](), 0
        for name in names:
            first[name], end = end, end + (whole[name].classes or 0)
        made = {name: self._columns(whole[name], first[name]) for name in names}
        tasks = [_task([(whole[n], made[n]) for n in stage], end) for stage in zip(*self.sources, strict=True)]
        return self._stream(tasks)

    def _columns(self, federation: Federation, first: int) -> dict[str, Tensor]:
        """The rows of a data set, with images of the common shape and labels from ``first`` on."""
        x = federation.columns["x"]
        if self.size is not None:
            if x.dim() != 4:
                raise InputError(f"size is for images, but a data set has rows of shape {tuple(x.shape[1:])}.")
            x = torch.cat([_resized(part, self.size) for part in x.split(1000)])
        return {"x": x, "y": federation.columns["y"] + first}


def _resized(x: Tensor, size: int) -> Tensor:
    """Images [n, C, H, W] of bytes or floats as [n, 3, size, size] of the same kind."""
    wide = x.float() if x.shape[1] == 3 else x.float().expand(-1, 3, -1, -1)
    if tuple(x.shape[2:]) != (size, size):
        wide = F.interpolate(wide, size=(size, size), mode="bilinear", antialias=True)
    return wide if x.is_floating_point() else wide.round().clamp(0, 255).to(x.dtype)


def _task(parts: Sequence[tuple[Federation, dict[str, Tensor]]], classes: int) -> Federation:
    """One client for each data set."""
    clients, base = {}, 0
    for client, (federation, columns) in enumerate(parts):
        splits = {"train": federation.train, "valid": federation.valid, "test": federation.test}
        clients[client] = {name: (rows.index + base).numpy() for name, rows in splits.items()}
        base += len(columns["y"])
    shapes = {tuple(columns["x"].shape[1:]) for _, columns in parts}
    if len(shapes) > 1:
        raise InputError(f"The data sets have images of shapes {sorted(shapes)}. Give stream.size.")
    kinds = {(str(columns["x"].dtype), repr(federation.prepare)) for federation, columns in parts}
    if len(kinds) > 1:
        raise InputError(f"The data sets of a stage must be prepared alike, but are {' and '.join(map(str, kinds))}.")
    together = {name: torch.cat([columns[name] for _, columns in parts]) for name in ("x", "y")}
    return Federation.from_rows(together, clients, classes=classes, prepare=parts[0][0].prepare)
