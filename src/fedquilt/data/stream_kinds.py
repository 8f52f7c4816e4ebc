"""Streams by name: how a recipe's data become tasks. Each kind is called with a way to make federations.

``divide(source, classes)`` makes one as the recipe's data section says: of another data set when a source is given, of
the rows of some classes when those are given.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from fedquilt.core.errors import InputError
from fedquilt.data.federation import Federation
from fedquilt.data.streams import Stream

Shift = Callable[[Federation], Federation]


class Divide(Protocol):
    """Makes a federation as the data section of a recipe says."""

    def __call__(self, source: str | None = None, classes: Sequence[int] | None = None) -> Federation:
        """Of another source, or of the rows of these classes only."""
        ...


@dataclass(frozen=True, kw_only=True)
class Stages:
    """One task after the other; see :meth:`fedquilt.data.streams.Stream.of`."""

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
            otherwise all rows are divided first. Groups may then not share a class: a row could be a test row in one
            task and a training row in another.
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
                f"With each = true every task is divided by itself, and class {shared[0]} is in two groups: a test row "
                "of one task would be a training row of the other. Leave each out, or give every class to one group."
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
