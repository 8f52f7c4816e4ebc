"""Tables of studies as objects that print well: as text, and in a notebook."""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from fedquilt.core.plain import JSON, Row
from fedquilt.metrics.table import headline, main, trivial
from fedquilt.results.ranking import best_first
from fedquilt.results.statistics.beside import apart
from fedquilt.results.tables import ScoreColumn, names, score_columns
from fedquilt.terminal import broken, show_table


def _percent(value: float | None, half: float | None = None) -> str:
    """A value of the main metric."""
    return main().written(value, half)


@dataclass(frozen=True)
class Shown:
    """A table of texts: ``print`` shows it, and a notebook renders it.

    Args:
        title: What stands above it.
        columns: Their names.
        rows: Their cells.
        bold: Which rows are the best.
        note: What stands below it.
        minor: Columns that are left out where the terminal is too narrow.

    Example:
        >>> print(Shown("Two", ("method", "accuracy"), (("FedAvg", "91.0"), ("Ditto", "95.5")), frozenset({1})))
        Two
        method   accuracy
        ─────────────────
        FedAvg       91.0
        Ditto        95.5
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    bold: frozenset[int] = frozenset()
    note: str = ""
    minor: frozenset[int] = frozenset()

    def __str__(self) -> str:
        screen = sys.stdout.isatty()
        width = shutil.get_terminal_size().columns if screen else 10_000
        text = io.StringIO()
        console = Console(file=text, width=width, force_terminal=screen, markup=False)
        show_table(self._fitting(width), console)
        lines = [self.title, *(line.rstrip() for line in text.getvalue().rstrip("\n").split("\n"))]
        return "\n".join([*lines, *([broken(self.note, width)] if self.note else [])])

    def _fitting(self, width: int) -> Table:
        """The table without the columns for which this width has no room."""
        kept = [i for i in range(len(self.columns)) if i not in self.minor or width >= 32 + 12 * len(self.columns)]
        table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)
        for i in kept:
            table.add_column(self.columns[i], justify="right" if i else "left", no_wrap=i > 0, overflow="fold")
        for place, row in enumerate(self.rows):
            table.add_row(*(row[i] for i in kept), style="bold" if place in self.bold else "")
        return table

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(name)}</th>" for name in self.columns)
        body = "".join(
            "<tr>" + "".join(_cell(cell, place in self.bold) for cell in row) + "</tr>"
            for place, row in enumerate(self.rows)
        )
        caption = f"<caption>{escape(self.title)}</caption>" if self.title else ""
        note = f"<p>{escape(self.note)}</p>" if self.note else ""
        return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{note}"


def _cell(text: str, bold: bool) -> str:
    return f"<td><strong>{escape(text)}</strong></td>" if bold else f"<td>{escape(text)}</td>"


def comparison_shown(summary: Mapping[str, JSON]) -> Shown:
    """Scores of all methods, those of the frame first, and the majority class; the numbers of the command's table."""
    rows = sorted(summary["rows"], key=lambda row: not row["frame"])
    scores = [c for c in score_columns() if any(row.get(c.key) is not None for row in rows)]
    won = summary["winner"] or {"method": None, "tied": [], "versus": {}}
    least = {summary["measure"]: summary["majority_class"], f"common_{main().id}": summary["majority_class_common"]}
    lines = [(trivial(), *(_percent(least.get(c.key), None) for c in scores), "", "")]
    lines += [_line(row, scores) for row in rows]
    best = {won["method"], *won["tied"]} if won["versus"] else set()
    seeds, called = len(summary["seeds"]), names(summary)
    return Shown(
        f"{summary['clients']} clients, {seeds} seed{'s' if seeds > 1 else ''}; {headline()}",
        ("method", *(c.label for c in scores), "MB", "sec"),
        tuple(lines),
        frozenset(i for i, row in enumerate(rows, 1) if row["method"] in best),
        f"Best: {called[won['method']]}. {apart(won, called)}" if won["versus"] else "",
        frozenset(i for i, c in enumerate(scores, 1) if c.metric.minor),
    )


def _line(row: Row, scores: Sequence[ScoreColumn]) -> tuple[str, ...]:
    """A method's scores, megabytes and seconds."""
    told = (c.metric.written(row.get(c.key), row.get(c.key + c.half)) for c in scores)
    return row["display"], *told, f"{row['megabytes_up'] + row['megabytes_down']:.1f}", f"{row['seconds']:.1f}"


def sweep_shown(rows: Sequence[Row]) -> Shown:
    """The points of a sweep, best first."""
    ordered = best_first(list(rows))
    lines = [
        (row["label"], "failed", "", "", "")
        if row["valid"] is None
        else (
            row["label"],
            _percent(row["valid"], row["valid_half_95"]),
            f"{row['rounds']:.1f}",
            f"{row['megabytes']:.1f}",
            f"{row['seconds']:.1f}",
        )
        for row in ordered
    ]
    best = next((row for row in ordered if row["best"]), None)
    told = (
        ""
        if best is None
        else f"Best on validation: {best['label']}; test {_percent(best['test'], best['test_half_95'])}"
    )
    bold = frozenset(i for i, row in enumerate(ordered) if row["best"])
    columns = ("point", "validation", "round", "MB", "sec")
    return Shown(f"{len(lines)} points; {headline()}", columns, tuple(lines), bold, told)
