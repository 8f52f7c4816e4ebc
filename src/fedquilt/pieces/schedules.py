"""Learning-rate schedules over rounds: ``round -> factor``, rounds counted from 0."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedquilt.errors import InputError


@dataclass(frozen=True)
class exponential:
    """gamma ** round."""

    gamma: float

    def __post_init__(self) -> None:
        if not 0 < self.gamma <= 1:
            raise InputError(f"exponential needs gamma in (0, 1], got {self.gamma}.")

    def __call__(self, round: int) -> float:
        return self.gamma**round


@dataclass(frozen=True)
class step_down:
    """factor ** (how many of the milestones are reached)."""

    milestones: tuple[int, ...]
    factor: float = 0.1

    def __call__(self, round: int) -> float:
        return float(self.factor ** sum(round >= m for m in self.milestones))


@dataclass(frozen=True)
class cosine:
    """From 1 down to ``floor`` along half a cosine over ``rounds`` rounds, then ``floor``."""

    rounds: int
    floor: float = 0.0

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise InputError(f"cosine needs rounds >= 1, got {self.rounds}.")

    def __call__(self, round: int) -> float:
        done = min(round / self.rounds, 1.0)
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * done)) / 2


@dataclass(frozen=True)
class warm_up:
    """Linear from 1/rounds to 1 over the first rounds, then 1."""

    rounds: int

    def __call__(self, round: int) -> float:
        return min(1.0, (round + 1) / self.rounds) if self.rounds > 0 else 1.0
