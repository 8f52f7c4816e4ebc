"""Scores under a long tail, in the terminal."""

from __future__ import annotations

from collections.abc import Mapping

from rich.box import SIMPLE_HEAD
from rich.table import Table

from fedquilt.core.plain import JSON
from fedquilt.metrics.table import PRIMARY, metric
from fedquilt.terminal import say, show_table

MEASURES = {
    "accuracy": "acc",
    "worst": "worst",
    "balanced_accuracy": "bal",
    "macro_f1": "F1",
    "calibration_error": "ECE",
}
GROUPS = {
    "by_share": {"head": "head", "middle": "mid", "tail": "tail"},
    "by_count": {"head": ">100", "middle": "mid", "tail": "<20"},
}


def tails_tables(found: Mapping[str, JSON]) -> None:
    """The common test set and the clients' own samples, in every mode."""
    if found["global"]:
        _table(f"{found['method']}, {found['rounds']} rounds: common test set, %", found["global"])
    for how in ("plain", "masked"):
        rows = {name: kinds[how] for name, kinds in found["clients"].items()}
        what = "all classes" if how == "plain" else "only classes that the client has training samples of"
        _table(f"mean over {found['examined']} clients, own test samples, {what}, %", rows)
    say("± is the 95 % interval that the number of test samples leaves.")
    groups = found["groups"]["by_share"]
    say("groups by share of rows: " + "; ".join(f"{name} {classes}" for name, classes in groups.items()))
    if found["fallback"]:
        say(f"never asked, so with the realigned global head: {found['fallback']}")
    if "collapse" in found:
        measures = found["collapse"]
        say(
            f"features: within / between classes {measures['within']:.3f}, angles {measures['angle']:.1f} ± "
            f"{measures['angle_std']:.1f} degrees (collapse: {measures['ideal']:.1f})"
        )


def _table(title: str, rows: Mapping[str, Mapping[str, JSON]]) -> None:
    """Columns: the measures, then the groups by share and by count of training samples."""
    first = next(iter(rows.values()))
    share = metric(PRIMARY)
    names = {name: short for name, short in MEASURES.items() if name in first}
    groups = [(kind, group, short) for kind, tiers in GROUPS.items() for group, short in tiers.items()]
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=0, collapse_padding=True)
    table.add_column("mode", min_width=10)
    for short in (*names.values(), *(short for _, _, short in groups)):
        table.add_column(short, justify="right", min_width=5)
    for mode, row in rows.items():
        told = [share.told(row, name) for name in names]
        told += [share.written(row[kind][group]) for kind, group, _ in groups]
        table.add_row(mode, *(text.replace(" ± ", "\n± ") or "-" for text in told))  # below each other: fits 80 columns
    show_table(table)
