"""A comparison, or a run, as a PDF for print: the answer, the table and the pictures; drawn by matplotlib."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterator
from pathlib import Path

from matplotlib import rc_context
from matplotlib.backends.backend_pdf import PdfPages
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D

from fedquilt.core.plain import Row
from fedquilt.errors import InputError
from fedquilt.metrics.table import main
from fedquilt.report.gather import Gathered
from fedquilt.report.panels.summary import sentences
from fedquilt.results.comparison_plots import draw_accuracy, draw_clients, draw_loss, draw_speed, drawn
from fedquilt.results.latex import latex_table
from fedquilt.results.looks import plain
from fedquilt.results.paper import PaperRow, caption_of, paper_table
from fedquilt.results.plots import STYLE, subplots
from fedquilt.results.views import looks_for
from fedquilt.storage.files import write_atomic

A4 = (8.27, 11.69)  # inches
LEFT, RIGHT, TOP = 0.09, 0.91, 0.94  # of the page
LINE = 0.019  # of its height
ROWS = 34  # of the table that fit on a page


def write_latex(folder: Path, to: Path) -> Path:
    """Write the table of a run or of a comparison as LaTeX."""
    found = Gathered.of(folder)
    write_atomic(to, latex_table(_summary(found), label=f"tab:{found.title}").encode())
    return to


def write_pdf(folder: Path, to: Path) -> Path:
    """Write a run or a comparison as a PDF; equal folders give equal files."""
    found = Gathered.of(folder)
    summary, content = _summary(found), io.BytesIO()
    with rc_context({**STYLE, "pdf.fonttype": 42}), PdfPages(content, metadata={"CreationDate": None}) as pages:
        for page in _pages(found, summary):
            pages.savefig(page)
    write_atomic(to, content.getvalue())
    return to


def _summary(found: Gathered) -> Row:
    """The table, which must be there."""
    if found.sweep:
        raise InputError(
            f"'{found.folder}' is a sweep, which has no table of methods: its points are in sweep.csv. Give the folder "
            "of a run or of a comparison."
        )
    if found.summary is None:
        raise InputError(
            f"No run of '{found.folder}' is finished and scored, so there is no table yet. 'fedquilt resume RUN' or "
            "'fedquilt compare' continues it."
        )
    return found.summary


def _pages(found: Gathered, summary: Row) -> Iterator[Figure]:
    """The title, the answer and the table, on as many pages as it takes, with the curves below it; other pictures."""
    heads, rows = paper_table(summary)
    histories, ends = drawn(found.complete, summary["measure"] == main().id)
    looks, majority = looks_for(found.views), summary["majority_class"]
    for start in range(0, len(rows), ROWS):
        figure, axis = subplots(figsize=A4)
        height = _title(figure, found, summary) if start == 0 else TOP
        height = _table(figure, heads, rows[start : start + ROWS], height)
        last = start + ROWS >= len(rows)
        if last:
            height = _paragraph(figure, caption_of(summary), height - 0.6 * LINE, 125, size=8, color="#555555")
        if last and histories and height > 0.4:
            draw_accuracy(axis, histories, majority, looks)
            figure.legend(loc="outside lower center", ncols=min(3, len(histories)))
            _inside(figure, height - 1.5 * LINE)
        else:
            axis.set_axis_off()
        yield figure
    if histories:
        figure, (upper, middle, lower) = subplots(3, 1, figsize=A4)
        draw_loss(upper, histories, looks)
        draw_clients(middle, ends, majority, looks)
        middle.set(title="Clients after the last round")
        draw_speed(lower, histories, summary["target"], looks)
        _inside(figure, TOP)
        yield figure


def _inside(figure: Figure, top: float) -> None:
    """Leave margins around pictures."""
    engine = figure.get_layout_engine()
    assert isinstance(engine, ConstrainedLayoutEngine)
    engine.set(rect=(LEFT - 0.02, 0.05, RIGHT - LEFT + 0.02, top - 0.05), hspace=0.04)


def _title(figure: Figure, found: Gathered, summary: Row) -> float:
    """What it is about, and the answer; the height that is left."""
    figure.text(LEFT, TOP, plain(found.title), size=18, weight="bold", va="top")
    about = " · ".join(f"{name} {value}" for name, value in found.about)
    height = _paragraph(figure, about, TOP - 1.9 * LINE, 115, size=9, color="#555555")
    for sentence in sentences(summary):
        height = _paragraph(figure, sentence, height - 0.3 * LINE, 100, size=10)
    return height - LINE


def _paragraph(figure: Figure, text: str, height: float, wide: int, size: float, color: str = "black") -> float:
    """Lines of so many letters; the height below them."""
    for line in textwrap.wrap(text, wide):
        figure.text(LEFT, height, plain(line), size=size, color=color, va="top")
        height -= LINE * size / 10
    return height


def _table(figure: Figure, heads: tuple[str, ...], rows: list[PaperRow], height: float) -> float:
    """Names on the left, numbers on the right, a rule above and below each part; the height below it."""
    widest = [max(len(row[i]) for row in (heads, *(r.cells for r in rows))) + 2 for i in range(len(heads))]
    share = (RIGHT - LEFT) / sum(widest)
    ends = [LEFT + share * sum(widest[: i + 1]) for i in range(len(heads))]
    size = min(9.5, 1150 * share)

    def rule(at: float, thick: float = 0.7) -> None:
        figure.add_artist(Line2D((LEFT, RIGHT), (at, at), color="black", linewidth=thick))

    def line(cells: tuple[str, ...], bold: tuple[int, ...], at: float) -> None:
        for i, cell in enumerate(cells):
            place, side = (LEFT, "left") if i == 0 else (ends[i], "right")
            weight = "bold" if i in bold else "normal"
            figure.text(place, at, plain(cell), size=size, ha=side, va="center", weight=weight)

    rule(height, 1.2)
    line(heads, (), height - 0.7 * LINE)
    rule(height - 1.4 * LINE)
    height -= 2.1 * LINE
    for above, row in zip((None, *rows), rows, strict=False):
        if above is not None and row.frame and not above.frame:
            rule(height + 0.35 * LINE)
            height -= 0.45 * LINE
        line(row.cells, row.bold, height)
        height -= LINE
    rule(height + 0.35 * LINE, 1.2)
    return height
