"""Comparisons of methods that learn without labels: what their features are worth is probed after every task."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fedquilt.analysis.continual import FILE, NAMES, evaluate
from fedquilt.config.config import Config
from fedquilt.core.plain import JSON, Row
from fedquilt.data import Stream
from fedquilt.errors import InputError
from fedquilt.results.statistics.beside import winner
from fedquilt.results.statistics.intervals import interval
from fedquilt.results.statistics.paired import Accuracies, versus
from fedquilt.results.statistics.targets import MEGABYTE
from fedquilt.results.views import read_json
from fedquilt.storage.files import to_json, write_atomic
from fedquilt.storage.finished import result_of
from fedquilt.studies.player import Federations, PlannedRun

POOLED = "mae_pooled"  # trains on all rows in one place: the upper frame


def unlabelled(planned: Sequence[PlannedRun], federations: Federations) -> bool:
    """Whether these methods learn without labels, so that probes compare them. All must, or none."""
    able = {c.display: bool(getattr(c.method(federations[c.config.seed]), "reconstructs", False)) for c in planned}
    found, others = (", ".join(name for name, one in able.items() if one is way) for way in (True, False))
    if found and others:
        raise InputError(
            f"{found} {'does' if sum(able.values()) == 1 else 'do'} not classify, so there is no accuracy to compare "
            f"with {others}. Compare with fedmae, mae_alone and mae_pooled, which learn without labels too."
        )
    if found and any(cell.given is not None for cell in planned):
        raise InputError(
            f"{found}: methods that do not classify are compared from recipes only, with 'fedquilt compare'. Run each "
            "by itself, with a folder, and probe it: fedquilt.analysis.continual.evaluate."
        )
    if found and not all(isinstance(federation, Stream) for federation in federations.values()):
        raise InputError("Methods that learn without labels are compared task by task. Give the recipe a [stream].")
    return bool(found)


def probed(
    config: Config,
    top: Path,
    done: Sequence[PlannedRun],
    federations: Federations,
    failed: Sequence[Mapping[str, JSON]] = (),
) -> Row:
    """The table and the report of finished runs, each probed as ``fedquilt continual`` does.

    Methods are compared by the average over tasks, after the last one, of a linear probe: among the classes of all
    tasks where tasks share none, otherwise among those of each task.
    """
    from fedquilt.report import write_report

    found: dict[str, list[Row]] = {}
    for cell in done:
        probes = read_json(cell.folder / FILE) or evaluate(cell.folder)
        found.setdefault(cell.label, []).append({**(result_of(cell.folder) or {}), "probes": probes["measures"]})
    kinds = {cell.label: cell.config.method.kind for cell in done}
    displays = {cell.label: cell.display for cell in done}
    measures = list(next(iter(found.values()))[0]["probes"])
    measure = "probe_all" if "probe_all" in measures else "probe"
    scores: dict[str, Accuracies] = {
        label: [{"all": float(run["probes"][measure]["average"])} for run in runs] for label, runs in found.items()
    }
    pairs = versus(scores)
    rows = [
        {"method": label, "display": displays[label], "kind": kinds[label], "frame": kinds[label] == POOLED}
        | _row(runs, measures)
        | {f"versus_first_{name}": value for name, value in pairs.get(label, {}).items()}
        for label, runs in found.items()
    ]
    start = [run["probes"][measure]["before"] for run in next(iter(found.values()))]
    summary: Row = {
        "folder": str(top),
        "seeds": list(dict.fromkeys(cell.config.seed for cell in done)),
        "clients": max(len(federation.ids) for federation in federations.values()),
        "tasks": len(start[0]),
        "measure": f"{measure}_average",
        "probe": NAMES[measure],
        "untrained": float(np.mean(start)),
        "rows": rows,
        "winner": winner([row for row in rows if not row["frame"]], scores, f"{measure}_average"),
        "failed": list(failed),
        "report": str(top / "report.html"),
    }
    write_atomic(top / "table.csv", _csv(rows).encode())
    write_atomic(top / "summary.json", to_json(summary, indent=1).encode())
    write_report(top)
    return summary


def _row(runs: Sequence[Row], measures: Sequence[str]) -> Row:
    """A method's means over seeds, each with half of its 95 % interval."""
    row: Row = {}
    for name in measures:
        for number in ("average", "forgetting"):
            values = [run["probes"][name][number] for run in runs]
            known = None if None in values else interval(values)  # one task leaves nothing to forget
            row[f"{name}_{number}"] = None if known is None else known.mean
            row[f"{name}_{number}_half_95"] = None if known is None else known.half
    means = {n: float(np.mean([run[n] for run in runs])) for n in ("bytes_up", "bytes_down", "seconds")}
    sent = {f"megabytes_{way}": means[f"bytes_{way}"] / MEGABYTE for way in ("up", "down")}
    return {**row, **sent, "seconds": means["seconds"]}


def _csv(rows: Sequence[Mapping[str, JSON]]) -> str:
    text = io.StringIO()
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(text, names)
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
