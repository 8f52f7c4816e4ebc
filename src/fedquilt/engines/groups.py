"""How many visits or exams go to a worker in one message: enough to be worth it, few enough to end together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")
GRAIN = 0.03  # seconds of work that one message should bring
MOST = 16


@dataclass
class Pace:
    """How long one takes, as far as is known."""

    seconds: float = 0.0
    count: int = 0

    def add(self, seconds: float, count: int) -> None:
        """So many took so long."""
        self.seconds, self.count = self.seconds + seconds, self.count + count

    @property
    def together(self) -> int:
        """How many a message should bring; one, as long as nothing is known."""
        return max(1, int(min(MOST, GRAIN * self.count / self.seconds))) if self.seconds > 0 else 1


def grouped(items: Sequence[T], most: int, workers: int) -> list[tuple[T, ...]]:
    """Neighbours together, at most so many; towards the end fewer, so that no worker is left with many of them.

    Example:
        >>> [len(group) for group in grouped(range(20), 4, 2)]
        [4, 4, 3, 2, 1, 1, 1, 1, 1, 1, 1]
    """
    found, at = [], 0
    while at < len(items):
        size = max(1, min(most, (len(items) - at) // (2 * workers)))
        found.append(tuple(items[at : at + size]))
        at += size
    return found
