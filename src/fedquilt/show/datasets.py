"""What the command ``fedquilt datasets`` does: list, download, check, clear."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn
from rich.table import Table

from fedquilt.core.plain import JSON, Row
from fedquilt.data import available, fetch, verify
from fedquilt.data.sources import cache, places, sources
from fedquilt.errors import InputError
from fedquilt.results.statistics.targets import MEGABYTE
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
    with Progress(*columns, console=console) as bars:
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
