"""How long it took and how much memory, by exchange and phase; and on the virtual clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from fedquilt.core.plain import JSON, Row
from fedquilt.report.blocks import Block, Panel, chart, column, table
from fedquilt.report.gather import Gathered
from fedquilt.results.statistics.targets import MEGABYTE
from fedquilt.results.views import RunView
from fedquilt.rounds.phases import PHASES
from fedquilt.runs.meters import LOG

SUMS = (
    ("seconds", "seconds", 1.0),
    ("megabytes", "bytes", MEGABYTE),
    ("joules", "joules", 1.0),
    ("virtual_seconds", "virtual_seconds", 1.0),
)
Rows = Sequence[Mapping[str, JSON]]
ON_LINKS = {"broadcast": "download", "train": "work", "upload": "upload", "aggregate": "server"}


def seconds(found: Gathered) -> Panel | None:
    """Wall clock by phase, by exchange and phase, and clients' work by exchange; memory; means over seeds."""
    logs = {label: [view.rows(LOG) for view in group] for label, group in found.begun.items()}
    kinds: dict[str, Callable[[RunView, Rows], dict[str, float]]] = {
        "wall clock by phase": _by_phase,
        "wall clock by exchange and phase": _by_exchange,
        "clients' work by exchange": _work,
        "virtual clock by exchange": _virtual,
    }
    variants = []
    for kind, of in kinds.items():
        bars = [
            {"name": label, "part": part, "value": value}
            for label, group in found.begun.items()
            for part, value in _mean([of(v, rows) for v, rows in zip(group, logs[label], strict=True)]).items()
        ]
        variants += [{"keys": {"seconds of": kind}, "bars": bars}] if bars else []
    if not variants:
        return None
    blocks: list[Block] = [chart("bars", "seconds", "Seconds per run", variants=variants, x_name="seconds")]
    lines = [line for label in logs for line in _lines(found, label, logs[label])]
    if lines:
        blocks.append(
            table(
                "phases",
                [c for c in COLUMNS if any(c["key"] in line for line in lines)],
                lines,
                filter=True,
                fold="By exchange and phase",
            )
        )
    note = (
        "Phases are the server's: it makes downloads, waits for clients (or does their work, in one process), reads "
        "uploads, and works on its own state. Clients' work is summed over clients, so with several processes it "
        "exceeds the wall clock."
    )
    return Panel("Communication", "seconds", "How long it took", blocks, note)


COLUMNS = (
    column("method", "method"),
    column("exchange", "exchange"),
    column("phase", "phase"),
    column("seconds", "seconds", "number", digits=3, help="of the server's clock, per run"),
    column("megabytes", "MB", "number", digits=3, help="sent in this phase, per run"),
    column(
        "memory",
        "memory, MB",
        "number",
        digits=0,
        help="largest resident memory of the server's process that was seen in this phase",
    ),
    column("joules", "joules", "number", digits=1, help="of the whole machine, where counters were found"),
    column("virtual_seconds", "virtual seconds", "number", digits=3, help="on the links of [network], per run"),
)


def _lines(found: Gathered, label: str, logs: Sequence[Rows]) -> list[Row]:
    """One method's table: sums over rounds, means over seeds; of memory the largest."""
    seen = dict.fromkeys((row["exchange"], row["phase"]) for rows in logs for row in rows)
    order = list(dict.fromkeys(exchange for exchange, _ in seen))
    keys = sorted(seen, key=lambda key: (order.index(key[0]), PHASES.index(key[1])))
    lines = []
    for exchange, phase in keys:
        line = {"method": label, "place": found.places[label], "exchange": exchange or "", "phase": phase}
        held = [row for rows in logs for row in rows if (row["exchange"], row["phase"]) == (exchange, phase)]
        for name, key, unit in SUMS:
            if any(key in row for row in held):
                line[name] = sum(row.get(key, 0.0) for row in held) / unit / len(logs)
        line["memory"] = max((row.get("memory", 0) for row in held), default=0) / MEGABYTE or None
        lines.append(line)
    return lines


def _by_phase(view: RunView, rows: Rows) -> dict[str, float]:
    if rows:
        spent = _sums(rows, lambda row: row["phase"], "seconds")
        return {phase: spent[phase] for phase in PHASES if phase in spent}
    trained = sum(r.get("train_seconds", 0.0) for r in view.rounds)  # a run from before there were phases
    return {"exchanges and aggregation": trained, "evaluation": sum(r["seconds"] for r in view.rounds) - trained}


def _by_exchange(view: RunView, rows: Rows) -> dict[str, float]:
    return _sums([r for r in rows if r["exchange"]], lambda row: f"{row['exchange']}, {row['phase']}", "seconds")


def _virtual(view: RunView, rows: Rows) -> dict[str, float]:
    timed = [r for r in rows if "virtual_seconds" in r]
    return _sums(timed, lambda row: f"{row['exchange']}, {ON_LINKS[row['phase']]}", "virtual_seconds")


def _work(view: RunView, rows: Rows) -> dict[str, float]:
    return _sums(view.rows("metrics/client_updates.jsonl"), lambda row: row["exchange"], "seconds")


def _sums(rows: Rows, name: Callable[[Mapping[str, JSON]], str], key: str) -> dict[str, float]:
    spent: dict[str, float] = {}
    for row in rows:
        spent[name(row)] = spent.get(name(row), 0.0) + row.get(key, 0.0)
    return spent


def _mean(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for run in runs for name in run)
    return {name: float(np.mean([run.get(name, 0.0) for run in runs])) for name in names}
