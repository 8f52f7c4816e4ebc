"""Panels made of files that other commands leave in the folder: scores under a long tail, leakage."""

from __future__ import annotations

import numpy as np

from fedquilt.core.plain import Row
from fedquilt.report.blocks import Block, Panel, chart, column, numbers, table
from fedquilt.report.gather import Gathered
from fedquilt.results.views import read_json

TAILS = ("tails/tails.json", "modes/scores.json")
AUDITS = ("audit/audit.json", "audit.json")


def tails(found: Gathered) -> Panel | None:
    """Head, middle and tail, and accuracy by class; from 'fedquilt tails RUN' or 'fedquilt realign RUN'."""
    rows: list[Row] = []
    lines: list[Block] = []
    for view in found.views:
        scored = next((s for name in TAILS if (s := read_json(view.folder / name))), {})
        for where, modes in (("common test set", scored.get("global", {})), ("clients, own samples", _plain(scored))):
            for mode, numbers_ in modes.items():
                share = numbers_.get("by_share", {})
                rows.append(
                    {
                        "method": view.label,
                        "place": found.places[view.label],
                        "seed": view.seed,
                        "where": where,
                        "mode": mode,
                        "accuracy": numbers_.get("accuracy"),
                        "balanced": numbers_.get("balanced_accuracy"),
                        **{tier: share.get(tier) for tier in ("head", "middle", "tail")},
                    }
                )
        if scored.get("global"):
            order = np.argsort(-np.asarray(scored["rows"]), kind="stable").tolist()
            bars = [
                {"name": f"{c} ({scored['rows'][c]})", "part": mode, "value": one["per_class"][c]}
                for mode, one in scored["global"].items()
                for c in order
            ]
            kept = [{**bar, "value": numbers([bar["value"]])[0] or 0} for bar in bars]
            lines.append({"keys": {"method": view.label, "seed": str(view.seed)}, "bars": kept})
    if not rows:
        return None
    columns = (
        column("method", "method"),
        column("seed", "seed", "number", digits=0),
        column("where", "rows"),
        column("mode", "mode"),
        column("accuracy", "accuracy", "percent"),
        column("balanced", "balanced", "percent"),
        column("head", "head", "percent"),
        column("middle", "middle", "percent"),
        column("tail", "tail", "percent"),
    )
    blocks: list[Block] = [table("tails", columns, rows, filter=True)]
    if lines:
        blocks.append(
            chart(
                "bars",
                "classes",
                "Share right by class (training samples), most frequent first",
                variants=lines,
                x_name="share right",
                grouped=True,
            )
        )
    return Panel(
        "Methods",
        "tails",
        "Head, middle and tail",
        blocks,
        "Tiers by share of training samples: the classes that hold 75 % of them are the head, those beyond 95 % the tail.",
    )


def _plain(scored: Row) -> Row:
    return {mode: kinds["plain"] for mode, kinds in scored.get("clients", {}).items()}


def leakage(found: Gathered) -> Panel | None:
    """What an attacker makes of uploads; from 'fedquilt audit ... --out FOLDER/audit'."""
    audit = next((a for name in AUDITS if (a := read_json(found.folder / name)).get("rows")), None)
    if audit is None:
        return None
    names = list(audit["rows"][0])
    kinds = {n: any(isinstance(row.get(n), float | int) for row in audit["rows"]) for n in names}
    columns = [
        column(n, n.replace("_", " "), "number" if kinds[n] else "text", **({"digits": 3} if kinds[n] else {}))
        for n in names
    ]
    return Panel(
        "Methods",
        "leakage",
        "Leakage",
        [table("leakage", columns, audit["rows"], filter=True)],
        "What attacks on uploads found; see the page on the audit.",
    )
