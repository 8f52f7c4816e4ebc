"""Replies that were left out, and why."""

from __future__ import annotations

from fedquilt.runs.report.blocks import Panel, column, table, text
from fedquilt.runs.report.gather import Gathered

MOST = 2000


def ledger(found: Gathered) -> Panel | None:
    """All entries of all runs."""
    if not found.begun:
        return None
    rows = [
        {"method": view.label, "place": found.places[view.label], "seed": view.seed, **row, "client": str(row["client"])}
        for group in found.begun.values() for view in group for row in view.rows("ledger.jsonl")
    ]  # fmt: skip
    if not rows:
        return Panel("Ledger", "ledger", "Quarantine", [text("Every reply was taken: none was left out.")])
    columns = (
        column("method", "method"), column("seed", "seed", "number", digits=0),
        column("round", "round", "number", digits=0), column("exchange", "exchange"), column("client", "client"),
        column("reason", "reason"),
    )  # fmt: skip
    cut = f" The first {MOST} are shown." if len(rows) > MOST else ""
    return Panel("Ledger", "ledger", "Quarantine", [table("ledger", columns, rows[:MOST], filter=True)],
                 f"{len(rows)} replies were left out of their rounds.{cut}")  # fmt: skip
