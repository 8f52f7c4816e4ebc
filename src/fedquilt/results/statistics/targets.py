"""What a run costs until it is good enough, and how good it is all along."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedquilt.core.plain import JSON, Floats
from fedquilt.metrics.table import best_of, main

MEGABYTE = 1e6
COSTS = ("rounds", "megabytes", "joules", "seconds")
Rows = Sequence[Mapping[str, JSON]]  # of metrics/rounds.jsonl


@dataclass(frozen=True)
class Cost:
    """Mean over the seeds that reached the target, how many did, and how many there are; None if no seed did, or if it
    was not measured."""

    mean: float | None
    reached: int
    seeds: int

    @property
    def always(self) -> bool:
        """Every seed reached the target."""
        return self.reached == self.seeds and self.mean is not None


def first_reach(values: Sequence[float] | Floats, target: float) -> int | None:
    """The place of the first value of the main metric that is not worse than the target."""
    found = np.asarray(values, dtype=float)
    places = np.flatnonzero(found >= target if main().higher_is_better else found <= target)
    return int(places[0]) if len(places) else None


def costs_until(rows: Rows, target: float, joules: Mapping[int, float] | None = None) -> dict[str, float | None] | None:
    """Rounds, megabytes up and down, joules and seconds of one run up to the first scored round whose mean test
    accuracy reaches the target; None if none does. ``joules`` are those of each round, if they were measured. Seconds
    are virtual ones where the run has a virtual clock."""
    name = f"test_{main().id}"
    scored = [i for i, row in enumerate(rows) if row.get(name) is not None]
    place = first_reach([rows[i][name] for i in scored], target)
    if place is None:
        return None
    played = rows[: scored[place] + 1]
    spent = [] if joules is None else [joules[r["round"]] for r in played if r["round"] in joules]
    return {
        "rounds": float(played[-1]["round"]),
        "megabytes": sum(r["bytes_up"] + r["bytes_down"] for r in played) / MEGABYTE,
        "joules": sum(spent) if len(spent) == len(played) else None,
        "seconds": seconds_of(played)[-1],
    }


def seconds_of(rows: Rows) -> list[float]:
    """Seconds since the beginning at the end of each round: virtual ones where every round has them."""
    if rows and all(row.get("virtual_seconds") is not None for row in rows):
        return [float(row["virtual_seconds"]) for row in rows]
    return [float(value) for value in np.cumsum([row["seconds"] for row in rows])]


def costs_to(
    seeds: Sequence[Rows], target: float, joules: Sequence[Mapping[int, float] | None] = ()
) -> dict[str, Cost]:
    """The same over seeds."""
    given = [*joules, *[None] * (len(seeds) - len(joules))]
    found = [costs_until(rows, target, spent) for rows, spent in zip(seeds, given, strict=True)]
    costs = {}
    for name in COSTS:
        reached = [f[name] for f in found if f is not None]
        values = [v for v in reached if v is not None]
        mean = float(np.mean(values)) if values and len(values) == len(reached) else None
        costs[name] = Cost(mean, len(reached), len(seeds))
    return costs


def joules_by_round(updates: Rows) -> dict[int, float] | None:
    """The joules of clients' work in each round, from metrics/client_updates.jsonl; None if they were not measured."""
    found: dict[int, float] = {}
    for row in updates:
        if row.get("joules") is None:
            return None
        found[row["round"]] = found.get(row["round"], 0.0) + row["joules"]
    return found or None


def area_under(rows: Rows, name: str | None = None) -> float:
    """The mean height of the curve between the first and the last scored round (trapezoids over their distance); the
    value itself for one round, NaN for none."""
    name = name or f"test_{main().id}"
    points = [(row["round"], row[name]) for row in rows if row.get(name) is not None]
    if not points:
        return math.nan
    rounds, values = np.array(points, dtype=float).T
    span = float(rounds[-1] - rounds[0])
    return float((np.diff(rounds) * (values[1:] + values[:-1]) / 2).sum() / span) if span else float(values[0])


def best_test_round(rows: Rows) -> tuple[int, float] | None:
    """The scored round with the best test score (accuracy), and that score: chosen on test samples, so it promises too
    much. For showing beside what validation chose, under this name."""
    name = f"test_{main().id}"
    scored = [row for row in rows if row.get(name) is not None]
    if not scored:
        return None
    best = next(row for row in scored if row[name] == best_of(r[name] for r in scored))
    return int(best["round"]), float(best[name])
