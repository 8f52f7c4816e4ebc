"""Data sets and models in the terminal.

Of data sets: which there are, and downloads under a progress bar. Of models: pretraining and merging under progress
bars, scores under a long tail, and what a run on a stream remembers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.progress import Progress as Bars
from rich.table import Table

from fedquilt.analysis.continual import NAMES, NUMBERS
from fedquilt.analysis.merging import Request, card_of, merge_files, part_of
from fedquilt.analysis.pretrain import Pretraining, pretrain
from fedquilt.analysis.pretrain_card import PICTURE, TEXT
from fedquilt.config.config import Config
from fedquilt.core.plain import JSON, Row
from fedquilt.core.tree import unused
from fedquilt.data import available, fetch, verify
from fedquilt.data.sources import cache, places, sources
from fedquilt.errors import InputError, Stopped
from fedquilt.metrics.energy import Meter, in_words
from fedquilt.metrics.table import PRIMARY, metric
from fedquilt.results.statistics.targets import MEGABYTE
from fedquilt.runs.energy import OFF
from fedquilt.runs.progress import Bar, Progress
from fedquilt.terminal import console, say, show_table


def table(rows: Sequence[Mapping[str, JSON]]) -> None:
    """All data sets, in 80 columns."""
    shown = Table(title="datasets", title_justify="left", box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    shown.add_column("name", no_wrap=True)
    for name in ("shape", "rows", "classes", "MB"):
        shown.add_column(name, justify="right", no_wrap=True)
    shown.add_column("here", no_wrap=True)
    shown.add_column("licence", overflow="fold")
    for row in rows:
        shape = "x".join(map(str, row["shape"] or ()))
        size = "" if row["download"] is None else f"{row['download'] / MEGABYTE:.0f}"
        facts = ["" if row[n] is None else str(row[n]) for n in ("count", "classes")]
        shown.add_row(
            row["name"], shape, *facts, size, _here(row), row["licence"], style="" if row["present"] else "dim"
        )
    show_table(shown)
    say(f"Data folder (FEDQUILT_DATA): {places.data_folder() or 'not set'}. MB: size of the download.")
    say("One data set, its files and how to get them: fedquilt datasets NAME")


def _here(row: Mapping[str, JSON]) -> str:
    """How it is here, or what to do."""
    if not row["present"]:
        return "by hand" if not row["downloadable"] else "in part" if row["by_hand"] else "--download"
    if row["where"].startswith("the package"):
        return "package"
    return "npz" if row["where"].endswith(".npz") else "folder"


def card(row: Mapping[str, JSON]) -> None:
    """One data set in the terminal."""
    for label in ("name", "source", "licence", "shape", "count", "classes", "hub"):
        value = row[label]
        if value is not None:
            say(f"{label:8} {'x'.join(map(str, value)) if label == 'shape' else value}")
    say(f"here     {row['where']}" if row["present"] else f"not here\n{row['where']}")


def tell(name: str | None, echo: Callable[[object], None] | None) -> None:
    """All data sets, or one: to ``echo`` as values, or as a table."""
    rows = available()
    if name is None:
        (echo or table)(rows)
        return
    found = [row for row in rows if row["name"] == name]
    if not found:
        raise InputError(sources.unknown(name))
    (echo or card)(found[0])


def downloaded(name: str, via: str, quiet: bool) -> list[Row]:
    """Download a data set with a bar for each file; the files and their sizes."""
    if quiet or not console.is_terminal:
        return _sizes(fetch(name, via))
    columns = TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    with Bars(*columns, console=console) as bars:
        tasks: dict[str, TaskID] = {}

        def report(file: str, done: int, total: int | None) -> None:
            if file not in tasks:
                tasks[file] = bars.add_task(file, total=total)
            bars.update(tasks[file], completed=done, total=total)

        return _sizes(fetch(name, via, report))


def rest(name: str) -> str:
    """What a person still has to do after a download."""
    entry = sources.find(name)
    return entry.by_hand if entry is not None and entry.by_hand else f'Use it: data.source = "{name}" in a recipe.'


def _sizes(paths: list[Path]) -> list[Row]:
    return [{"file": str(path), "bytes": path.stat().st_size} for path in paths]


def verified(name: str) -> list[Row]:
    """The check of every official file of a data set."""
    rows = verify(name)
    return [{"file": r.file, "here": not r.state.endswith("not here"), "ok": r.ok, "state": r.state} for r in rows]


def cleared() -> list[Row]:
    """Clear the cache; what went."""
    removed, places = cache.clear()
    return [{"folders": len(places), "MB": f"{removed / MEGABYTE:.1f}", "where": "\n".join(map(str, cache.folders()))}]


def shown(config: Config, out: Path, how: Pretraining, fresh: bool, quiet: bool) -> Row:
    """Pretrain, say how it goes, and return the facts of the card."""
    with Progress(quiet) as progress:
        bars: list[Bar] = []

        def step(done: int, total: int, loss: float) -> None:
            if not bars:
                if devices := unused("It knows no other place yet.", "pretraining runs"):
                    progress.note(devices)
                bars.append(progress.bar("pretraining", total))
            bars[0].title = f"pretraining, loss {loss:.4f}"
            bars[0].round(done, {})

        meter = Meter.here() if config.meters.energy else Meter(why=OFF)
        try:
            with meter.phase("train"):
                facts = pretrain(config, out, how, fresh, step)
        except KeyboardInterrupt as error:
            raise Stopped(
                "Interrupted. The same command continues from a checkpoint of at most half a minute ago."
            ) from error
    note = "trained before" if not bars else "of this command" if meter.spent else meter.why
    spent = {"source": meter.source, "joules": meter.spent if bars else {}, "note": note}
    if not quiet:
        first, last = facts.curve[0], facts.curve[-1]
        scored = "" if last[1] is None or last[1] != last[1] else f", validation {first[1]:.4f} -> {last[1]:.4f}"
        say(
            f"{facts.rows} images, {len(facts.curve)} epochs, {facts.seconds:.1f} s"
            + ("" if bars else " (done before)")
        )
        say(f"loss {first[0]:.4f} -> {last[0]:.4f}{scored}")
        say(in_words(spent))
        say(f"sha256 {facts.sha256}")
        say(f"model   {out}: set model.pretrained to it")
        say(f"card    {out / TEXT}")
        say(f"picture {out / PICTURE}")
    return {"out": str(out), **asdict(facts), "energy": spent}


MEASURES = {
    "accuracy": "acc",
    "worst": "worst",
    "balanced_accuracy": "bal",
    "macro_f1": "F1",
    "calibration_error": "ECE",
}
TIERS = (
    *(("by_share", group, short) for group, short in (("head", "head"), ("middle", "mid"), ("tail", "tail"))),
    *(("by_count", group, short) for group, short in (("head", ">100"), ("middle", "mid"), ("tail", "<20"))),
)


def tails_tables(found: Mapping[str, JSON]) -> None:
    """The common test set and the clients' own samples, in every mode."""
    if found["global"]:
        _by_mode(f"{found['method']}, {found['rounds']} rounds: common test set, %", found["global"])
    for how in ("plain", "masked"):
        rows = {name: kinds[how] for name, kinds in found["clients"].items()}
        what = "all classes" if how == "plain" else "only classes in the client's training set"
        _by_mode(f"mean over {found['evaluated']} clients, own test samples, {what}, %", rows)
    say("± is the 95 % interval due to the number of test samples.")
    groups = found["groups"]["by_share"]
    say("groups by share of rows: " + "; ".join(f"{name} {classes}" for name, classes in groups.items()))
    if found["fallback"]:
        say(f"never asked, so with the realigned global head: {found['fallback']}")
    if "collapse" in found:
        measures = found["collapse"]
        say(
            f"features: within / between classes {measures['within']:.3f}, angles {measures['angle']:.1f} ± "
            f"{measures['angle_std']:.1f} degrees (collapse: {measures['ideal']:.1f})"
        )


def _by_mode(title: str, rows: Mapping[str, Mapping[str, JSON]]) -> None:
    """Columns: the measures, then the groups by share and by count of training samples."""
    first = next(iter(rows.values()))
    share = metric(PRIMARY)
    names = {name: short for name, short in MEASURES.items() if name in first}
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=0, collapse_padding=True)
    table.add_column("mode", min_width=10)
    for short in (*names.values(), *(short for _, _, short in TIERS)):
        table.add_column(short, justify="right", min_width=5)
    for mode, row in rows.items():
        told = [share.told(row, name) for name in names]
        told += [share.written(row[kind][group]) for kind, group, _ in TIERS]
        table.add_row(mode, *(text.replace(" ± ", "\n± ") or "-" for text in told))  # below each other: fits 80 columns
    show_table(table)


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


def merged_models(request: Request, quiet: bool) -> Row:
    """Merge saved models under a progress bar, and tell what happened."""
    columns = (TextColumn("merging"), BarColumn(), MofNCompleteColumn(), TextColumn("numbers"), TimeRemainingColumn())
    with Bars(*columns, console=console, disable=quiet, transient=True) as bars:
        bar = bars.add_task("merging", total=None)
        found = merge_files(request, lambda name, numbers: bars.advance(bar, numbers))
    if not quiet:
        for place, model in enumerate(found["models"]):
            say(f"{model['path']}  {part_of(found, place)}".rstrip())
        if found["base"] is not None:
            say(
                f"changed by any model {100 * found['touched']:.2f} %, by two or more {100 * found['shared']:.2f} %, "
                f"with both signs {100 * found['conflicts']:.2f} %"
            )
        say(f"{found['numbers']} weights in {found['tensors']} tensors, {found['seconds']:.1f} s")
        say(f"model {found['out']}")
        say(f"card  {card_of(request.out)}")
    return found
