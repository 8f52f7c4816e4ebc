"""A small table of the kind that hospitals have: scales far apart, names, and empty cells."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

HEADER = ("age", "glucose", "income", "sex", "town", "site", "label")


def rows(count: int = 240, seed: int = 0) -> list[tuple[str, ...]]:
    """Rows as texts. The label follows from glucose and the town; income, the largest number, says nothing."""
    rng = np.random.default_rng(seed)
    age, glucose = rng.normal(50, 12, count), rng.normal(5.5, 1.0, count)
    income, towns = rng.normal(4e5, 1e5, count), np.array(["Oslo", "Bergen", "Narvik"])[rng.integers(3, size=count)]
    label = (glucose + (towns == "Bergen") > 5.8).astype(int)
    sexes = np.array(["f", "m"])[rng.integers(2, size=count)]
    empty = rng.random(count) < 0.15
    return [
        (
            "" if empty[i] else f"{age[i]:.1f}",
            f"{glucose[i]:.3f}",
            f"{income[i]:.0f}",
            sexes[i],
            towns[i],
            ("east", "north", "west")[i % 3],
            str(label[i]),
        )
        for i in range(count)
    ]


def write(path: Path, only: str | None = None, count: int = 240) -> Path:
    """The table as a csv file; only the rows of one site, without that column, if asked for."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        if only is None:
            writer.writerows([HEADER, *rows(count)])
        else:
            writer.writerow([n for n in HEADER if n != "site"])
            writer.writerows([(*row[:5], row[6]) for row in rows(count) if row[5] == only])
    return path
