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
        {**row, "method": v.label, "place": found.places[v.label], "seed": v.seed, "client": str(row["client"])}
        for group in found.begun.values() for v in group for row in v.rows("ledger.jsonl")
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
