"""A sweep in the terminal."""

from __future__ import annotations

from collections.abc import Mapping

from rich.box import SIMPLE_HEAD
from rich.table import Table

from fedquilt.core.plain import JSON
from fedquilt.results.ranking import best_first
from fedquilt.terminal import say, show_table

MOST = 20  # lines


def sweep_table(summary: Mapping[str, JSON]) -> None:
    """The best points, and where the rest is."""
    rows, seeds = best_first(summary["points"]), len(summary["seeds"])
    title = f"{len(rows)} points ({summary['search']}), {seeds} seed{'s' if seeds > 1 else ''}; accuracy in %"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("point", overflow="fold")
    for name in ("validation", "round", "MB", "sec"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows[:MOST]:
        if row["valid"] is None:
            table.add_row(row["label"], "failed", "", "", "", style="dim")
            continue
        half = f" ± {100 * row['valid_half_95']:.1f}" if row["valid_half_95"] == row["valid_half_95"] else ""
        table.add_row(
            row["label"],
            f"{100 * row['valid']:.1f}{half}",
            f"{row['rounds']:.1f}",
            f"{row['megabytes']:.1f}",
            f"{row['seconds']:.1f}",
            style="bold" if row["best"] else "",
        )
    show_table(table)
    if len(rows) > MOST:
        say(f"and {len(rows) - MOST} more: {summary['folder']}/sweep.csv")
    best = summary["best"]
    half = f" ± {100 * best['test_half_95']:.1f}" if best["test_half_95"] == best["test_half_95"] else ""
    say(f"best on validation: {best['label']}; its test accuracy is {100 * best['test']:.1f}{half} %")
    for run in summary["failed"]:
        say(f"{run['method']}, seed {run['seed']} failed: {run['reason']}")
    for name in ("report", "recipe", "folder"):
        say(f"{name} {summary[name]}")
