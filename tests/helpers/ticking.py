"""A counter of energy for tests."""

from __future__ import annotations


class Ticking:
    """A counter that gives one joule at each look."""

    def __init__(self) -> None:
        self.looks = 0

    def read(self) -> int:
        self.looks += 1
        return self.looks

    def between(self, before: int, after: int) -> float:
        return float(after - before)
