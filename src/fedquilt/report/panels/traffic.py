"""What a run took: messages by exchange, direction and part, replies that were dropped, and time by phase."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from fedquilt.core.plain import JSON, Floats, Row
from fedquilt.errors import FedquiltError
from fedquilt.report.blocks import RUN, Block, Panel, chart, column, table, text
from fedquilt.report.gather import Gathered
from fedquilt.results.statistics.targets import MEGABYTE
from fedquilt.results.traffic import summary
from fedquilt.results.views import RunView
from fedquilt.rounds.phases import PHASES
from fedquilt.runs.meters import LOG

MOST = 2000


DROPPED = "Dropped replies"


def dropped(found: Gathered) -> Panel | None:
    """Replies that the server did not use, of all runs, and why."""
    if not found.begun:
        return None
    rows = [
        {**row, **found.named(v), "client": str(row["client"])}
        for group in found.begun.values()
        for v in group
        for row in v.rows("dropped.jsonl")
    ]
    if not rows:
        return Panel(DROPPED, "dropped", DROPPED, [text("No replies were dropped.")])
    columns = (
        *RUN,
        column("round", "round", "number", digits=0),
        column("exchange", "exchange"),
        column("client", "client"),
        column("reason", "reason"),
    )
    cut = f" The first {MOST} are shown." if len(rows) > MOST else ""
    return Panel(
        DROPPED, "dropped", DROPPED, [table("dropped", columns, rows[:MOST], filter=True)], f"{_told(rows)}{cut}"
    )


def _told(rows: Sequence[Row]) -> str:
    """How many were not used, and how many for less than they asked."""
    less = sum(bool(row.get("used")) for row in rows)
    bounded = f" {less} were used, and bounded." if less else ""
    return f"{len(rows) - less} replies were dropped.{bounded}"


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
        table("parts", columns, rows, filter=True, fold="Traffic by tensor"),
    ]
    return Panel(TAB, "messages", "What travelled", blocks, "Means over seeds; sizes of the serialised messages.")


def _mean_parts(runs: Sequence[Sequence[Mapping[str, JSON]]]) -> dict[tuple[str, str, str], tuple[float, ...]]:
    sums: dict[tuple[str, str, str], Floats] = {}
    for run in runs:
        for p in run:
            key = (p["exchange"], p["direction"], p["part"])
            sums[key] = sums.get(key, 0) + np.array([p["messages"], p["raw"], p["wire"]], dtype=float) / len(runs)
    return {key: tuple(value.tolist()) for key, value in sums.items()}


def compression(found: Gathered) -> Panel | None:
    """Where codecs made messages smaller: by how much, and against plain FedAvg."""
    rows = [
        {"method": label, "place": found.places[label], **saved}
        for label, runs in _summaries(found).items()
        if runs and (saved := _saved(runs))  # no message of it may count yet, or its logs of traffic are gone
    ]
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


def _saved(runs: Sequence[Row]) -> Row:
    """What codecs saved, means over a method's runs; nothing where messages are hardly smaller."""
    raw_up, wire_up, raw_down, wire_down = (
        float(np.mean([run[name] for run in runs])) for name in ("raw_up", "wire_up", "raw_down", "wire_down")
    )
    sent = wire_up + wire_down
    if raw_up + raw_down < WORTH * sent:
        return {}
    plain = [run["fedavg"]["up"] + run["fedavg"]["down"] for run in runs if run["fedavg"]]
    return {
        "up": wire_up / MEGABYTE,
        "up_ratio": raw_up / wire_up if wire_up else None,
        "down": wire_down / MEGABYTE,
        "down_ratio": raw_down / wire_down if wire_down else None,
        "fedavg_ratio": float(np.mean(plain)) / sent if plain and sent else None,
    }


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
    bars = {kind: _bars(found, logs, of) for kind, of in KINDS.items()}
    variants = [{"keys": {"seconds of": kind}, "bars": made} for kind, made in bars.items() if made]
    if not variants:
        return None
    drawn = chart("bars", "seconds", "Seconds per run", variants=variants, x_name="seconds")
    note = (
        "Phases of the server: creating downloads, waiting for clients (or computing their updates, in one process), "
        "reading uploads, and updating its state. Client time is summed over clients, so with several processes it "
        "exceeds the wall clock."
    )
    return Panel("Communication", "seconds", "Time by phase", [drawn, *_by_phases(found, logs)], note)


COLUMNS = (
    column("method", "method"),
    column("exchange", "exchange"),
    column("phase", "phase"),
    column("seconds", "seconds", "number", digits=3, help="of the server's clock, per run"),
    column("megabytes", "MB", "number", digits=3, help="sent in this phase, per run"),
    column("memory", "memory, MB", "number", digits=0, help="peak resident memory of the server process in this phase"),
    column("joules", "joules", "number", digits=1, help="of the whole machine, if energy counters are available"),
    column("virtual_seconds", "virtual seconds", "number", digits=3, help="on the links of [network], per run"),
)


def _by_phases(found: Gathered, logs: Mapping[str, Sequence[Rows]]) -> list[Block]:
    """The table of all methods, if their runs tell of phases."""
    lines = [line for label in logs for line in _lines(found, label, logs[label])]
    keys: set[str] = set().union(*lines)
    known = [c for c in COLUMNS if c["key"] in keys]
    return [table("phases", known, lines, filter=True, fold="By exchange and phase")] if lines else []


def _lines(found: Gathered, label: str, logs: Sequence[Rows]) -> list[Row]:
    """One method's table."""
    seen = dict.fromkeys((row["exchange"], row["phase"]) for rows in logs for row in rows)
    order = list(dict.fromkeys(exchange for exchange, _ in seen))
    keys = sorted(seen, key=lambda key: (order.index(key[0]), PHASES.index(key[1])))
    whose = {"method": label, "place": found.places[label]}
    return [
        {**whose, "exchange": exchange or "", "phase": phase, **_spent(exchange, phase, logs)}
        for exchange, phase in keys
    ]


def _spent(exchange: str | None, phase: str, logs: Sequence[Rows]) -> Row:
    """What a phase of an exchange took: sums over rounds, means over seeds; of memory the largest."""
    held = [row for rows in logs for row in rows if (row["exchange"], row["phase"]) == (exchange, phase)]
    sums = {
        name: sum(row.get(key, 0.0) for row in held) / unit / len(logs)
        for name, key, unit in SUMS
        if any(key in row for row in held)
    }
    return {**sums, "memory": max(row.get("memory", 0) for row in held) / MEGABYTE or None}


def _bars(
    found: Gathered, logs: Mapping[str, Sequence[Rows]], of: Callable[[RunView, Rows], dict[str, float]]
) -> list[Row]:
    """The parts of each method's seconds."""
    return [
        {"name": label, "part": part, "value": value}
        for label, group in found.begun.items()
        for part, value in _mean([of(v, rows) for v, rows in zip(group, logs[label], strict=True)]).items()
    ]


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


KINDS: Mapping[str, Callable[[RunView, Rows], dict[str, float]]] = {
    "wall clock by phase": _by_phase,
    "wall clock by exchange and phase": _by_exchange,
    "clients' work by exchange": _work,
    "virtual clock by exchange": _virtual,
}
