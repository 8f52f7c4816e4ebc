"""Several methods, several seeds, one federation: a table with honest intervals, and curves.

Of methods that learn without labels, what their features are worth is compared: probed after every task.
"""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fedquilt.analysis.continual import FILE as PROBES
from fedquilt.analysis.continual import NAMES, evaluate
from fedquilt.config.config import Config, MethodChoice
from fedquilt.config.shown import shown_apart
from fedquilt.core.exchange import Method
from fedquilt.core.plain import JSON, Row
from fedquilt.core.seed import Seed
from fedquilt.data import Federation, Stream
from fedquilt.errors import ConfigError, InputError, RoundError
from fedquilt.metrics.table import main, use_task
from fedquilt.own_code import short
from fedquilt.results.statistics.beside import winner
from fedquilt.results.statistics.intervals import interval
from fedquilt.results.statistics.paired import Accuracies, versus
from fedquilt.results.statistics.targets import MEGABYTE
from fedquilt.results.tables import FRAME, as_csv, mean_of, summary_of
from fedquilt.results.views import CELLS, RunView, looks_for, read_json, views_in
from fedquilt.rounds.engine import Engine
from fedquilt.runs.build import federation_of
from fedquilt.storage.federation_file import FILE, constants, write_federation
from fedquilt.storage.files import to_json, write_atomic
from fedquilt.storage.finished import result_of
from fedquilt.studies.player import Audience, Federations, PlannedRun, Player

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

    found = _with_probes(done)
    named = {c.label: {"display": c.display, "kind": c.config.method.kind} for c in done}
    measures = list(next(iter(found.values()))[0]["probes"])
    measure = "probe_all" if "probe_all" in measures else "probe"
    scores: dict[str, Accuracies] = {
        label: [{"all": float(run["probes"][measure]["average"])} for run in runs] for label, runs in found.items()
    }
    pairs = versus(scores)
    rows = [
        {"method": label, **named[label], "frame": named[label]["kind"] == POOLED}
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


def _with_probes(done: Sequence[PlannedRun]) -> dict[str, list[Row]]:
    """The results of each method's runs, with what probes measured."""
    found: dict[str, list[Row]] = {}
    for cell in done:
        probes = read_json(cell.folder / PROBES) or evaluate(cell.folder)
        found.setdefault(cell.label, []).append({**(result_of(cell.folder) or {}), "probes": probes["measures"]})
    return found


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


def cells(config: Config) -> tuple[Path, list[PlannedRun]]:
    """The runs of a comparison, seed by seed, and the folder that holds them."""
    choices = list(config.compare.methods)
    if config.compare.frame:
        able = FRAME[1:] if _common_only(config) else FRAME  # alone, clients have no model for a common test set
        choices += [MethodChoice(kind=kind) for kind in able if kind not in {c.kind for c in choices}]
    labels = _labels(choices)
    display = dict(zip(labels, shown_apart(choices), strict=True))
    made = dict(zip(labels, map(config.with_method, choices), strict=True))
    runs = {
        (label, seed): one.model_copy(update={"seed": seed})
        for seed in config.compare.seeds
        for label, one in made.items()
    }
    identity = hashlib.sha256("".join(c.identity() for c in runs.values()).encode()).hexdigest()[:8]
    top = Path(config.output.folder) / f"compare-{config.name}-{identity}"
    found = [PlannedRun(label, c, top / f"{label}-seed{seed}", display[label]) for (label, seed), c in runs.items()]
    return top, found


def _labels(choices: Sequence[MethodChoice]) -> list[str]:
    """A short name per method; options are added where two have the same kind."""
    kinds = [short(c.kind) for c in choices]
    labels = []
    for kind, choice in zip(kinds, choices, strict=True):
        options = ",".join(f"{k}={v}" for k, v in choice.options.items())
        labels.append(kind if kinds.count(kind) == 1 or not options else f"{kind},{options}")
    return [label if labels.count(label) == 1 else f"{label}#{i}" for i, label in enumerate(labels)]


def compare(config: Config, audience: Audience | None = None) -> Row:
    """Run every cell that is not finished yet, then make the table and the picture."""
    top, todo = cells(config)
    federation = federation_of(config)
    check_tests(config, federation, _methods(todo, federation))
    return compared(config, top, todo, dict.fromkeys(config.compare.seeds, federation), audience)


def compared(
    config: Config,
    top: Path,
    todo: Sequence[PlannedRun],
    federations: Federations,
    audience: Audience | None = None,
    engine: Engine | None = None,
    drawn: bool = True,
) -> Row:
    """The runs of a comparison in its folder, on the federation of each seed; with pictures and report, if they are to
    be ``drawn``."""
    without_labels = unlabelled(todo, federations)
    begin(config, top, todo)
    keep_federations(top, todo, federations)
    with Player(config, federations, audience, engine) as player:
        player.play(todo)
    trouble = {f["method"] for f in player.failed}
    done = [cell for cell in todo if cell.label not in trouble]
    if not done:
        raise RoundError(player.all_failed("method"))
    if without_labels:
        return probed(config, top, done, federations, player.failed)
    return conclude(config, top, done, federations, player.failed, drawn)


def keep_federations(top: Path, todo: Sequence[PlannedRun], federations: Federations) -> None:
    """Labels by client, for those who look later: once, or beside each run where seeds have federations of their
    own."""
    if len(set(federations.values())) == 1:
        write_federation(top, next(iter(federations.values())))
        return
    (top / FILE).unlink(missing_ok=True)
    for cell in todo:
        write_federation(cell.folder, federations[cell.config.seed])


def _common_only(config: Config) -> bool:
    """Whether clients have no test samples of their own."""
    return config.data.test == 0 and not config.data.local_tests


def _methods(todo: Sequence[PlannedRun], federation: Federation | Stream) -> dict[str, Method]:
    """The method of each label, by what people read for it; one that cannot be made is refused before the first run."""
    made: dict[str, Method] = {}
    problems: dict[str, list[str]] = {}
    for cell in {cell.label: cell for cell in todo}.values():
        try:
            made[cell.display] = cell.method(federation)
        except InputError as error:
            problems.setdefault(str(error), []).append(cell.display)
    if problems:
        raise ConfigError([f"{', '.join(names)}: {told}" for told, names in problems.items()])
    return made


def check_tests(config: Config, federation: Federation | Stream, methods: Mapping[str, Method]) -> None:
    """There are rows to compare methods on, and every method has a model for them."""
    if not _common_only(config):
        return
    if getattr(federation, "global_test", None) is None:
        raise ConfigError(
            [
                "data.test: a comparison needs test samples, got 0.0, and these data have no test set; give "
                "clients a share (data.test=0.2), or hold back a common one (data.common_test=0.2)"
            ]
        )
    for display, method in methods.items():
        if method.global_model(method.init_server(Seed(0))) is None:
            raise ConfigError(
                [
                    f"data.test: got 0.0, so methods are compared by their global model on the common test set, and "
                    f"{display} has none: what its clients use is their own; leave it out, or give them test "
                    "samples"
                ]
            )


def begin(config: Config, top: Path, todo: Sequence[PlannedRun]) -> None:
    """What there will be, so that whoever looks early knows what is missing."""
    planned = [{"label": c.label, "display": c.display, "seed": c.config.seed, "folder": c.folder.name} for c in todo]
    content = {"name": config.name, "target": config.compare.target, "rounds": config.rounds, "cells": planned}
    write_atomic(top / CELLS, to_json(content, indent=1).encode())


def _draw(views: Sequence[RunView], summary: Row, kinds: Mapping[str, MethodChoice], top: Path) -> None:
    """The pictures of methods all of whose runs have scores."""
    from fedquilt.results.comparison_plots import draw_all, drawn, rounds_plot
    from fedquilt.results.plots import curves

    histories, ends = drawn(views, summary["measure"] == main().id)
    looks = looks_for(views_in(top))
    if histories:
        curves(histories, summary["majority_class"], top / "curves", looks)
        draw_all(histories, ends, summary["majority_class"], summary["target"], top, looks)
    stitches = next((k for k in kinds.values() if k.kind == "localize_stitch"), None)
    if stitches is not None:
        keep = stitches.options.get("keep", stitches.options.get("k_init", 0.95))
        rounds_plot(histories, f"Localize-and-Stitch beside others; initial K {keep}", top / "rounds", looks)


def conclude(
    config: Config,
    top: Path,
    done: Sequence[PlannedRun],
    federations: Federations,
    failed: Sequence[Mapping[str, JSON]] = (),
    drawn: bool = True,
) -> Row:
    """The table, the pictures and the report of finished runs, and which did not finish."""
    from fedquilt.report import write_report

    use_task(getattr(next(iter(federations.values())), "task", None))
    views = [RunView(c.folder, c.label, c.config.seed, c.display) for c in done]
    constant = {seed: constants(federation) for seed, federation in federations.items()}
    common = mean_of([federation.majority().global_test for federation in federations.values()])
    summary: Row = {"folder": str(top), **summary_of(views, constant, config.compare.target, common)}
    summary |= {"clients": max(len(federation.ids) for federation in federations.values()), "failed": list(failed)}
    summary["missing"] = [f"{v.folder.name}: {line}" for v in views for line in v.missing]
    if drawn:
        _draw(views, summary, {c.label: c.config.method for c in done}, top)
    write_atomic(top / "table.csv", as_csv(summary["rows"], summary["majority_class"], common).encode())
    summary["report"] = str(top / "report.html")
    write_atomic(top / "summary.json", to_json(summary, indent=1).encode())
    if drawn:
        write_report(top)
    return summary
