"""When which task of a stream is on."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from fedquilt.core.table import ClientId
from fedquilt.errors import InputError

Delays = Mapping[ClientId, int] | Sequence[int]


@dataclass(frozen=True)
class Clock:
    """Which task is on in which round.

    Args:
        starts: The rounds (from 0) at which stages begin, ascending, the first 0.
        order: The task of each stage; a task may come again.
        period: After so many rounds it all begins again; None: the last task stays.

    Example:
        >>> clock = Clock((0, 3, 5), (0, 1, 0))
        >>> [clock.task(round) for round in range(7)]
        [0, 0, 0, 1, 1, 0, 0]
    """

    starts: tuple[int, ...]
    order: tuple[int, ...]
    period: int | None = None

    def __post_init__(self) -> None:
        if not self.starts or self.starts[0] != 0 or any(a >= b for a, b in pairwise(self.starts)):
            raise InputError(f"Stages must start at round 0 and then at ascending rounds, got {self.starts!r}.")
        if len(self.order) != len(self.starts):
            raise InputError(f"{len(self.starts)} stages need as many tasks, got the order {self.order!r}.")
        if self.period is not None and self.period <= self.starts[-1]:
            raise InputError(f"The period {self.period} ends before the last stage starts, at {self.starts[-1]}.")

    def task(self, round: int) -> int:
        """The task of a round; before round 0 the first one, or the end of the period before."""
        place = round if self.period is None else round % self.period
        return self.order[max(bisect_right(self.starts, place) - 1, 0)]


def delays_of(ids: Sequence[ClientId], delays: Delays | None) -> dict[ClientId, int]:
    """The clients that are behind, and by how much."""
    if delays is None or not len(delays):
        return {}
    given = delays if isinstance(delays, Mapping) else {c: delays[i % len(delays)] for i, c in enumerate(ids)}
    odd = [(c, d) for c, d in given.items() if c not in set(ids) or int(d) != d or d < 0]
    if odd:
        raise InputError(
            f"delays are whole numbers from 0 for clients of the stream, got {odd[0][1]!r} for {odd[0][0]!r}."
        )
    return {client: int(delay) for client, delay in given.items() if delay}
