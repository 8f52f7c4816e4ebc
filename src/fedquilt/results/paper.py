"""The table of a comparison as a paper has it: few columns, the best in bold, the frame below; for LaTeX and PDF."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedquilt.core.plain import JSON, Row
from fedquilt.errors import InputError, did_you_mean
from fedquilt.metrics.table import main, trivial
from fedquilt.results.tables import score_columns
from fedquilt.storage.finished import chosen

COSTS = {"megabytes": "MB", "seconds": "Seconds"}


@dataclass(frozen=True)
class PaperRow:
    """A line of the table: its cells, the places of those in bold, and whether it belongs to the frame."""

    cells: tuple[str, ...]
    bold: tuple[int, ...] = ()
    frame: bool = False


def paper_table(
    summary: Mapping[str, JSON], columns: Sequence[str] | None = None
) -> tuple[tuple[str, ...], list[PaperRow]]:
    """The heads of the columns, and the lines.

    Methods stand by score, the best first; the best and all that cannot be told apart from it are bold. Then comes the
    frame: every client alone, all data in one place, and the majority class.

    Args:
        summary: What :func:`fedquilt.results.tables.summary_of` gives, which is also in ``summary.json``.
        columns: Keys of scores (``accuracy``, ``worst10``, ...), ``megabytes`` or ``seconds``; by default all scores
            that there are, and megabytes.
    """
    rows = sorted(summary["rows"], key=lambda row: (row["frame"], -_score(row, summary["measure"])))
    shown = _columns(rows, columns)
    won = summary["winner"] or {"method": None, "tied": []}
    best = {won["method"], *won["tied"]} if len(rows) > 1 else set()
    lines = [_line(row, list(shown), row["method"] in best, summary["measure"]) for row in rows]
    return ("Method", *shown.values()), [*lines, *_majority(summary, list(shown))]


def _score(row: Row, measure: str) -> float:
    value: float | None = row.get(measure)
    return -math.inf if value is None else value


def _columns(rows: Sequence[Row], asked: Sequence[str] | None) -> dict[str, str]:
    """The keys of columns, and what stands above them."""
    scores = {c.key: f"{c.label[0].upper()}{c.label[1:]}" for c in score_columns()}
    known = scores | COSTS
    if asked is None:
        asked = [key for key in scores if any(row.get(key) is not None for row in rows)] + ["megabytes"]
    if odd := [key for key in asked if key not in known]:
        raise InputError(
            f"A comparison has no column {odd[0]!r}{did_you_mean(odd[0], known)} (known: {', '.join(known)})."
        )
    return {key: known[key] for key in asked}


def _line(row: Row, keys: Sequence[str], best: bool, measure: str) -> PaperRow:
    """One method; of the best its name and the score that it is best by are bold."""
    bold = (0, *(i for i, key in enumerate(keys, 1) if key == measure)) if best else ()
    return PaperRow((row["display"], *(_cell(row, key) for key in keys)), bold, row["frame"])


def _cell(row: Row, key: str) -> str:
    """A number of a row, with its ±."""
    if key in COSTS:
        return f"{row['megabytes_up'] + row['megabytes_down'] if key == 'megabytes' else row['seconds']:.1f}"
    column = next(c for c in score_columns() if c.key == key)
    return column.metric.written(row.get(key), row.get(key + column.half))


def _majority(summary: Mapping[str, JSON], keys: Sequence[str]) -> list[PaperRow]:
    """The line of the majority class, where it is known."""
    least = {summary["measure"]: summary["majority_class"], f"common_{main().id}": summary["majority_class_common"]}
    cells = ["" if (value := least.get(k)) is None or math.isnan(value) else main().written(value) for k in keys]
    return [PaperRow((trivial().capitalize(), *cells), frame=True)] if any(cells) else []


def caption_of(summary: Mapping[str, JSON]) -> str:
    """What the numbers are."""
    seeds, clients = len(summary["seeds"]), summary["measure"] == main().id
    where = "mean over clients" if clients else "global model on the common test set"
    sure = (
        f"over {seeds} seeds; ± is the 95 % t-interval, for columns other than {main().short} combined with that of "
        "the test samples"
        if seeds > 1
        else "one seed; ± is the 95 % interval due to the number of test samples"
    )
    when = chosen(summary["chosen_on"] == "validation")
    told = f"Test scores{' in %' * main().share}, {where}, at the {when}, {sure}. MB: sent per run."
    best = f"the {'highest' if main().higher_is_better else 'lowest'} {main().name}"
    bold = f" Bold: {best}, and all that are not significantly different from it." * (len(summary["rows"]) > 1)
    return told + bold
