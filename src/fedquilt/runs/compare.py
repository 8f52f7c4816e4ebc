"""Several methods, several seeds, one federation: a table with honest intervals, and curves."""

from __future__ import annotations

import csv
import hashlib
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedquilt.core.errors import ConfigError, ExchangeError, RoundError
from fedquilt.data import Federation
from fedquilt.runs.build import engine_of, federation_of, method_of, result_for, result_of, run_of
from fedquilt.runs.clusters import LOG
from fedquilt.runs.config import Config, Kinded
from fedquilt.runs.files import to_json, write_atomic
from fedquilt.runs.runner import Run, Snapshot
from fedquilt.runs.statistics.beside import beside, winner
from fedquilt.runs.statistics.intervals import interval
from fedquilt.runs.statistics.paired import Paired, accuracies_at, versus
from fedquilt.runs.statistics.targets import MEGABYTE, joules_by_round
from fedquilt.runs.storage import RunFolder

FRAME = ("local_only", "centralised")  # the lower and the upper frame of a table
_FIRST = dict.fromkeys((*Paired.__dataclass_fields__, "significant"))  # the first method is not compared with itself


@dataclass(frozen=True)
class Cell:
    """One run of a comparison: a label, its settings, its folder."""

    label: str
    config: Config
    folder: Path


def cells(config: Config) -> tuple[Path, list[Cell]]:
    """The runs of a comparison, seed by seed, and the folder that holds them."""
    choices = list(config.compare.methods)
    if config.compare.frame:
        choices += [Kinded(kind=kind) for kind in FRAME if kind not in {c.kind for c in choices}]
    labels = _labels(choices)
    seeds = config.compare.seeds
    runs = {
        (label, seed): config.model_copy(update={"method": choice, "seed": seed})
        for seed in seeds
        for label, choice in zip(labels, choices, strict=True)
    }
    identity = hashlib.sha256("".join(c.identity() for c in runs.values()).encode()).hexdigest()[:8]
    top = Path(config.output.folder) / f"compare-{config.name}-{identity}"
    found = [Cell(label, c, top / f"{label}-seed{seed}") for (label, seed), c in runs.items()]
    return top, found


def _labels(choices: Sequence[Kinded]) -> list[str]:
    """A short name per method; options are added where two have the same kind."""
    kinds = [c.kind for c in choices]
    labels = []
    for choice in choices:
        options = ",".join(f"{k}={v}" for k, v in choice.options.items())
        labels.append(choice.kind if kinds.count(choice.kind) == 1 or not options else f"{choice.kind},{options}")
    return [label if labels.count(label) == 1 else f"{label}#{i}" for i, label in enumerate(labels)]


Watch = Callable[[Cell, Snapshot], None]


def compare(config: Config, watch: Watch | None = None) -> dict[str, Any]:
    """Run every cell that is not finished yet, then make the table and the picture."""
    if config.data.test == 0 and not config.data.local_tests:
        raise ConfigError(["data.test: a comparison needs test rows, got 0.0"])
    top, todo = cells(config)
    federation = federation_of(config)
    for cell in todo:
        method_of(cell.config, federation)  # refuse what cannot work before the first run
    engine, failed = engine_of(config), list[dict[str, Any]]()
    try:
        for cell in todo:
            if result_for(cell.folder, federation) is None:
                try:
                    _play(cell, run_of(cell.config, engine, cell.folder, federation), watch)
                except (ExchangeError, RoundError) as error:  # one method's trouble; the others go on
                    failed.append({"method": cell.label, "seed": cell.config.seed, "reason": str(error)})
    finally:
        engine.close()
    trouble = {f["method"] for f in failed}
    done = [cell for cell in todo if cell.label not in trouble]
    if not done:
        raise RoundError("Every method failed. " + "; ".join(f"{f['method']}: {f['reason']}" for f in failed[:3]))
    return conclude(config, top, done, federation, failed)


def _play(cell: Cell, run: Run, watch: Watch | None) -> None:
    for snapshot in run:
        if watch is not None:
            watch(cell, snapshot)


def conclude(
    config: Config, top: Path, done: Sequence[Cell], federation: Federation, failed: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """The table and the curves of finished runs, and which did not finish."""
    from fedquilt.runs.comparison_plots import draw_all, last_accuracies
    from fedquilt.runs.plots import curves

    labels = list(dict.fromkeys(c.label for c in done))
    folders = {label: [c.folder for c in done if c.label == label] for label in labels}
    results = {label: [result_of(folder) or {} for folder in folders[label]] for label in labels}
    logs = {label: [_log(folder, "metrics/clients.jsonl") for folder in folders[label]] for label in labels}
    scores = {
        label: [accuracies_at(log, r["best_round"]) for log, r in zip(logs[label], results[label], strict=True)]
        for label in labels
    }
    majority = federation.majority().clients
    constant = {c: v for c, v in zip(federation.examined, majority.tolist(), strict=True) if not math.isnan(v)}
    pairs = versus(scores)
    constants = versus({"": [constant] * len(scores[labels[0]]), **scores})
    histories = {label: [_log(folder, "metrics/rounds.jsonl") for folder in folders[label]] for label in labels}
    joules = {label: [_joules(f, r) for f, r in zip(folders[label], results[label], strict=True)] for label in labels}
    kinds = {c.label: c.config.method for c in done}
    rows = [
        row(label, results[label])
        | {"kind": kinds[label].kind, "frame": kinds[label].kind in FRAME}
        | beside(histories[label], scores[label], config.compare.target, joules[label])
        | clusters_found([_log(folder, LOG) for folder in folders[label]])
        | {f"versus_first_{name}": value for name, value in pairs.get(label, _FIRST).items()}
        | {f"versus_majority_{name}": value for name, value in constants[label].items()}
        for label in labels
    ]
    summary: dict[str, Any] = {
        "folder": str(top),
        "seeds": config.compare.seeds,
        "clients": len(federation.ids),
        "chosen_on": "validation" if config.data.valid > 0 else "last round (there are no validation rows)",
        "majority_class": float(np.nanmean(majority)),
        "target": config.compare.target,
        "rows": rows,
        "winner": winner(rows, scores),
        "failed": list(failed),
    }
    curves(histories, summary["majority_class"], top / "curves")
    ends = {label: last_accuracies(logs[label]) for label in labels}
    draw_all(histories, ends, summary["majority_class"], config.compare.target, top)
    stitches = next((k for k in kinds.values() if k.kind == "localize_stitch"), None)
    if stitches is not None:
        from fedquilt.runs.rounds_plot import rounds_plot

        shown = ", ".join(labels) if len(labels) < 4 else f"{labels[0]} and {len(labels) - 1} others"
        title = f"{shown}; initial K {stitches.options.get('keep', stitches.options.get('k_init', 0.95))}"
        rounds_plot(histories, [kinds[label].kind for label in labels], title, top / "rounds")
    write_atomic(top / "table.csv", _csv(rows, summary["majority_class"]).encode())
    write_atomic(top / "summary.json", to_json(summary, indent=1).encode())
    return summary


def _log(folder: Path, name: str) -> list[dict[str, Any]]:
    return RunFolder(folder).rows(name)


def _joules(folder: Path, result: Mapping[str, Any]) -> dict[int, float] | None:
    """The joules of each round; the long log of visits is read only where something was measured."""
    measured = result.get("energy", {}).get("joules")
    return joules_by_round(_log(folder, "metrics/visits.jsonl")) if measured else None


def clusters_found(logs: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, float | None]:
    """How many clusters there were at the end, and how well they meet planted groups (ARI), means over seeds."""
    ends = [log[-1] for log in logs if log]
    planted = [end["ari"] for end in ends if "ari" in end]
    return {
        "clusters": float(np.mean([end["k"] for end in ends])) if ends else None,
        "ari": float(np.mean(planted)) if planted else None,
    }


def row(label: str, results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One method's line: test numbers at the round that validation chose, over seeds."""
    accuracy = interval([r["best"]["test_accuracy"] for r in results])
    worst = interval([r["best"]["test_accuracy_worst10"] for r in results])
    balanced = interval([r["best"]["test_balanced_accuracy"] for r in results])
    macro = interval([r["best"]["test_macro_f1"] for r in results])
    return {
        "method": label,
        "accuracy": accuracy.mean, "accuracy_half_95": accuracy.half,
        "worst10": worst.mean, "worst10_half_95": worst.half,
        "balanced_accuracy": balanced.mean, "balanced_accuracy_half_95": balanced.half,
        "macro_f1": macro.mean, "macro_f1_half_95": macro.half,
        "last_round_accuracy": float(np.mean([r["last"]["test_accuracy"] for r in results])),
        "updates": float(np.mean([r.get("updates", math.nan) for r in results])),
        "megabytes_up": float(np.mean([r["bytes_up"] for r in results])) / MEGABYTE,
        "megabytes_down": float(np.mean([r["bytes_down"] for r in results])) / MEGABYTE,
        "seconds": float(np.mean([r["seconds"] for r in results])),
        "digests": [r["digest"] for r in results],
    }  # fmt: skip


def _csv(rows: Sequence[Mapping[str, Any]], majority: float) -> str:
    text = io.StringIO()
    names = [n for n in rows[0] if n != "digests"]
    writer = csv.DictWriter(text, names, extrasaction="ignore")
    writer.writeheader()
    writer.writerow({"method": "majority class", "accuracy": majority})
    writer.writerows(rows)
    return text.getvalue()
