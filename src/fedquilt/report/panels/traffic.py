"""What travelled, by exchange, direction and part.

Replies that were left out, and why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fedquilt.core.plain import JSON, Floats, Row
from fedquilt.errors import FedquiltError
from fedquilt.report.blocks import Block, Panel, chart, column, table, text
from fedquilt.report.gather import Gathered
from fedquilt.results.statistics.targets import MEGABYTE
from fedquilt.results.traffic import summary

MOST = 2000


def ledger(found: Gathered) -> Panel | None:
    """All entries of all runs."""
    if not found.begun:
        return None
    rows = [
        {**row, "method": v.label, "place": found.places[v.label], "seed": v.seed, "client": str(row["client"])}
        for group in found.begun.values()
        for v in group
        for row in v.rows("dropped.jsonl")
    ]
    if not rows:
        return Panel("Ledger", "ledger", "Quarantine", [text("Every reply was taken: none was left out.")])
    columns = (
        column("method", "method"),
        column("seed", "seed", "number", digits=0),
        column("round", "round", "number", digits=0),
        column("exchange", "exchange"),
        column("client", "client"),
        column("reason", "reason"),
    )
    cut = f" The first {MOST} are shown." if len(rows) > MOST else ""
    return Panel(
        "Ledger",
        "ledger",
        "Quarantine",
        [table("ledger", columns, rows[:MOST], filter=True)],
        f"{len(rows)} replies were left out of their rounds.{cut}",
    )


TAB = "Communication"
WORTH = 1.01  # times smaller, from which on messages count as compressed


def _summaries(found: Gathered) -> dict[str, list[Row]]:
    """The traffic of each run that has any, by method."""
    held: dict[str, list[Row]] = {}
    for label, group in found.begun.items():
        for view in group:
            try:
                held.setdefault(label, []).append(summary(view.folder))
            except (FedquiltError, KeyError, ValueError):
                continue
    return held


def messages(found: Gathered) -> Panel | None:
    """Megabytes by exchange and direction, and by part of the message; means over seeds."""
    bars: list[Row] = []
    rows: list[Row] = []
    for label, runs in _summaries(found).items():
        parts = _mean_parts([run["parts"] for run in runs])
        total: dict[tuple[str, str], float] = {}
        for (exchange, way, part), (count, raw, wire) in parts.items():
            total[exchange, way] = total.get((exchange, way), 0.0) + wire
            rows.append(
                {
                    "method": label,
                    "place": found.places[label],
                    "exchange": exchange,
                    "way": way,
                    "part": part,
                    "messages": count,
                    "raw": raw / MEGABYTE,
                    "wire": wire / MEGABYTE,
                    "ratio": raw / wire if wire else None,
                }
            )
        bars += [
            {"name": label, "part": f"{exchange}, {way}", "value": value / MEGABYTE}
            for (exchange, way), value in total.items()
        ]
    if not rows:
        return None
    columns = (
        column("method", "method"),
        column("exchange", "exchange"),
        column("way", "way"),
        column("part", "part"),
        column("messages", "messages", "number", digits=0),
        column("raw", "MB as it is", "number", digits=4),
        column("wire", "MB sent", "number", digits=4),
        column("ratio", "ratio", "number", digits=1),
    )
    blocks: list[Block] = [
        chart(
            "bars",
            "sent",
            "Megabytes per run by exchange and direction",
            variants=[{"keys": {}, "bars": bars}],
            x_name="megabytes",
        ),
        table("parts", columns, rows, filter=True, fold="What the messages were made of"),
    ]
    return Panel(
        TAB, "messages", "What travelled", blocks, "Means over seeds; lengths of the frames as they were sent."
    )


def _mean_parts(runs: Sequence[Sequence[Mapping[str, JSON]]]) -> dict[tuple[str, str, str], tuple[float, ...]]:
    sums: dict[tuple[str, str, str], Floats] = {}
    for run in runs:
        for p in run:
            key = (p["exchange"], p["direction"], p["part"])
            sums[key] = sums.get(key, 0) + np.array([p["messages"], p["raw"], p["wire"]], dtype=float) / len(runs)
    return {key: tuple(value.tolist()) for key, value in sums.items()}


def compression(found: Gathered) -> Panel | None:
    """Where codecs made messages smaller: by how much, and against plain FedAvg."""
    rows = []
    for label, runs in _summaries(found).items():
        if not runs:  # no message of it counts yet, or its logs of traffic are gone
            continue
        mean = {k: float(np.mean([run[k] for run in runs])) for k in ("raw_up", "wire_up", "raw_down", "wire_down")}
        if mean["raw_up"] + mean["raw_down"] < WORTH * (mean["wire_up"] + mean["wire_down"]):
            continue
        plain = [run["fedavg"]["up"] + run["fedavg"]["down"] for run in runs if run["fedavg"]]
        sent = mean["wire_up"] + mean["wire_down"]
        rows.append(
            {
                "method": label,
                "place": found.places[label],
                "up": mean["wire_up"] / MEGABYTE,
                "up_ratio": mean["raw_up"] / mean["wire_up"] if mean["wire_up"] else None,
                "down": mean["wire_down"] / MEGABYTE,
                "down_ratio": mean["raw_down"] / mean["wire_down"] if mean["wire_down"] else None,
                "fedavg_ratio": float(np.mean(plain)) / sent if plain and sent else None,
            }
        )
    if not rows:
        return None
    columns = (
        column("method", "method"),
        column("up", "MB up", "number", digits=3),
        column("up_ratio", "times smaller, up", "number", digits=1),
        column("down", "MB down", "number", digits=3),
        column("down_ratio", "times smaller, down", "number", digits=1),
        column("fedavg_ratio", "times less than plain FedAvg", "number", digits=1, help="head included, both ways"),
    )
    return Panel("Methods", "compression", "Compression", [table("compression", columns, rows)])
