"""A sweep as a picture and as a table of plain values."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib import rc_context

from fedquilt.core.plain import JSON
from fedquilt.results.plots import COLOURS, STYLE, save, subplots
from fedquilt.results.ranking import best_first
from fedquilt.storage.files import to_json

Rows = Sequence[Mapping[str, JSON]]
COLUMNS = ("valid", "valid_half_95", "seeds", "rounds", "megabytes", "seconds", "best")


def as_csv(rows: Rows) -> str:
    """One line for each point, best first; of test numbers there are none."""
    text = io.StringIO()
    names = list(rows[0]["values"]) if rows else []
    writer = csv.writer(text)
    writer.writerow(["point", *names, *("valid_accuracy" if c == "valid" else c for c in COLUMNS)])
    for row in best_first([dict(r) for r in rows]):
        writer.writerow([row["point"], *(plain(row["values"][n]) for n in names), *(row[c] for c in COLUMNS)])
    return text.getvalue()


def plain(value: JSON) -> JSON:
    """A value as one cell."""
    return value if isinstance(value, int | float | str) else to_json(value)


def draw(rows: Rows, names: Sequence[str], path: Path) -> Path:
    """Validation accuracy by each setting that was varied; the best point stands out."""
    scored = [row for row in rows if row["valid"] is not None]
    with rc_context(STYLE):
        figure, axes = subplots(1, len(names), figsize=(1.5 + 3.0 * len(names), 3.4), sharey=True, squeeze=False)
        for axis, name in zip(axes[0], names, strict=True):
            values = [row["values"][name] for row in scored]
            numeric = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
            shown = values if numeric else [str(plain(v)) for v in values]
            axis.scatter(shown, [row["valid"] for row in scored], color=COLOURS[0], s=22, alpha=0.8)
            for row, value in zip(scored, shown, strict=True):
                if row["best"]:
                    axis.scatter([value], [row["valid"]], color=COLOURS[1], s=70, marker="*", zorder=3, label="best")
            if numeric and min(values) > 0 and max(values) >= 20 * min(values):
                axis.set_xscale("log")
            axis.set(xlabel=name)
        axes[0][0].set(ylabel="validation accuracy")
        axes[0][-1].legend(loc="best")
        told = [(row["point"], *(plain(row["values"][n]) for n in names), row["valid"]) for row in scored]
        return save(figure, path, ("point", *names, "valid_accuracy"), told)
