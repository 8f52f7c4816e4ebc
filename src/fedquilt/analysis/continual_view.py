"""What a run on a stream remembers, in the terminal."""

from __future__ import annotations

from collections.abc import Mapping

from rich.box import SIMPLE_HEAD
from rich.table import Table

from fedquilt.core.plain import JSON
from fedquilt.terminal import say, show_table

NAMES = {
    "probe": "linear probe, own task",
    "neighbours": "20 neighbours, own task",
    "probe_all": "linear probe, all tasks",
    "neighbours_all": "20 neighbours, all tasks",
    "loss": "reconstruction loss",
}
NUMBERS = {"average": "average", "incremental": "increm.", "forgetting": "forgot", "backward": "BWT", "forward": "FWT"}


def continual_tables(found: Mapping[str, JSON]) -> None:
    """One line for each measure, then the matrix of the linear probe."""
    table = _table(f"{found['method']}, {len(found['tasks'])} tasks, after {found['rounds'][-1]} rounds", "measure")
    for short in NUMBERS.values():
        table.add_column(short, justify="right")
    for name, label in NAMES.items():
        if name in found["measures"]:
            row = found["measures"][name]
            table.add_row(label, *(_figure(row[n], name) for n in NUMBERS))
    show_table(table)
    for name in ("probe", "loss"):
        _matrix(found, name)
    banks = [str(row["bank"]) for row in found["by_round"] if "bank" in row]
    if banks:
        say(f"rows of the bank by round: {' '.join(banks)}")


def _matrix(found: Mapping[str, JSON], name: str) -> None:
    row = found["measures"][name]
    table = _table(NAMES[name], "after")
    for task in found["tasks"]:
        table.add_column(f"task {task}", justify="right")
    lines = [
        ("start", row["before"]),
        *((f"round {r}", v) for r, v in zip(found["rounds"], row["matrix"], strict=True)),
    ]
    for label, values in lines:
        table.add_row(label, *(_figure(v, name) for v in values))
    show_table(table)


def _table(title: str, first: str) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    table.add_column(first, no_wrap=True)
    return table


def _figure(value: float | None, name: str) -> str:
    if value is None:
        return "-"
    return f"{value:.4f}" if name == "loss" else f"{100 * value:.1f} %"
