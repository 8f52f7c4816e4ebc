"""Pictures of a run under a long tail; numbers are written beside them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes

from fedquilt.core.plain import JSON, Row
from fedquilt.results.plots import COLOURS, STYLE, save, subplots


def pictures(found: Mapping[str, JSON], to: Path) -> list[Path]:
    """Accuracy by class, and neural collapse: classes are ordered by their training samples, the most frequent
    first."""
    order = np.argsort(-np.asarray(found["rows"]), kind="stable").tolist()
    made = []
    if found["global"]:
        modes = {name: row["per_class"] for name, row in found["global"].items() if name != "deployed"}
        made.append(_by_rank(modes or _only_deployed(found), order, found["rows"], "share right", to / "classes"))
    if "collapse" in found:
        made.append(collapse_picture(found["collapse"], order, found["rows"], to / "collapse"))
    return made


def _only_deployed(found: Mapping[str, JSON]) -> Row:
    return {"deployed": found["global"]["deployed"]["per_class"]}


def _by_rank(
    lines: Mapping[str, Sequence[float]], order: Sequence[int], rows: Sequence[int], what: str, path: Path
) -> Path:
    with rc_context(STYLE):
        figure, (top, bottom) = subplots(2, 1, figsize=(8, 4.6), sharex=True, height_ratios=(3, 1))
        draw_lines(top, lines, order)
        top.set(ylabel=what, ylim=(0, 1.02), title="Common test set, by class")
        top.legend(loc="lower left")
        bottom.bar(range(len(order)), [rows[c] for c in order], color="#999999")
        bottom.set(yscale="log", ylabel="training samples", xlabel="class, most frequent first")
        return save(figure, path, ("class", "training samples", *lines), table(lines, order, rows))


def collapse_picture(found: Mapping[str, JSON], order: Sequence[int], rows: Sequence[int], path: Path) -> Path:
    """Norms of the heads' rows and of class means, and the angle of class means to the frame."""
    means = {"class means": found["norms"]}
    angles = {} if found["to_frame"] is None else {"to the frame": found["to_frame"]}
    with rc_context(STYLE):
        figure, axes = subplots(1, 3, figsize=(13, 3.8))
        draw_lines(axes[0], found["row_norms"], order)
        axes[0].set(title="norm of head rows", ylim=(0, None))
        axes[0].legend()
        draw_lines(axes[1], means, order)
        axes[1].set(title=f"norm of class means (within / between {found['within']:.2f})", ylim=(0, None))
        draw_lines(axes[2], angles, order)
        axes[2].set(title="angle of class means to the frame, degrees", ylim=(0, 120))
        if not angles:
            axes[2].set_visible(False)
        for axis in axes:
            axis.set_xlabel("class, most frequent first")
        lines = {**{f"norm of {n}": v for n, v in found["row_norms"].items()}, **means, **angles}
        return save(figure, path, ("class", "training samples", *lines), table(lines, order, rows))


def draw_lines(axis: Axes, lines: Mapping[str, Sequence[float]], order: Sequence[int]) -> None:
    """Each line by rank of class."""
    for colour, (name, values) in zip(COLOURS * (1 + len(lines)), lines.items(), strict=False):
        axis.plot(range(len(order)), [values[c] for c in order], color=colour, label=name, marker="o", markersize=3)


def table(
    lines: Mapping[str, Sequence[float]], order: Sequence[int], rows: Sequence[int]
) -> list[list[int | float | str]]:
    """The numbers of a picture, a row per class; empty where there is none."""
    return [[c, rows[c], *("" if math.isnan(v[c]) else v[c] for v in lines.values())] for c in order]
