"""The comparison as bars: seconds and peak memory of each system."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from work import WORKS


def draw(found: dict[str, dict[str, dict[str, Any]]], path: Path) -> None:
    """Two rows of bars, one column for each workload."""
    from matplotlib.figure import Figure

    names = [name for name in WORKS if any(row["seconds"] for row in found.get(name, {}).values())]
    if not names:
        return
    figure = Figure(figsize=(4.2 * len(names), 5.2), layout="constrained")
    axes = figure.subplots(2, len(names), squeeze=False)
    for column, name in enumerate(names):
        rows = {system: row for system, row in found[name].items() if row["seconds"]}
        colours = ["tab:blue" if s.startswith("fedquilt") else "tab:gray" for s in rows]
        seconds = [statistics.median(row["seconds"]) for row in rows.values()]
        peaks = [max(row["peak"], default=0) / 1e6 for row in rows.values()]
        bars = (
            (seconds, "seconds, " + ("whole" if WORKS[name].whole else "a round"), "%.2f"),
            (peaks, "peak MB", "%.0f"),
        )
        for axis, (values, label, form) in zip(axes[:, column], bars, strict=True):
            axis.bar_label(axis.barh(list(rows), values, color=colours), fmt=form, padding=3, fontsize=8)
            axis.set_xlabel(label)
            axis.margins(x=0.15)
            axis.invert_yaxis()
            axis.tick_params(labelsize=8)
        axes[0, column].set_title(f"{name}: {WORKS[name].about}", fontsize=8)
    figure.savefig(path, dpi=110)
