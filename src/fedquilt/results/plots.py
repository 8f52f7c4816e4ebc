"""Pictures: curves of a comparison, and who has which labels, and how much: a federation, or each task of a stream.

Numbers are always written beside pictures.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgba_array
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from fedquilt.core.plain import JSON, Floats, Ints, Row
from fedquilt.data import Federation, Stream
from fedquilt.data.partitions.measures import MOST, label_distances, label_entropy, measures
from fedquilt.metrics.table import main, trivial
from fedquilt.results.looks import COLOURS as COLOURS
from fedquilt.results.looks import Looks, looks_of
from fedquilt.storage.files import storage

STYLE: Any = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "font.size": 10,
    "axes.titlesize": 11,
    "legend.frameon": False,
    "figure.dpi": 110,
    "svg.hashsalt": "fedquilt",
}


Histories = Mapping[str, Sequence[Sequence[Mapping[str, JSON]]]]  # for each method, for each seed, its rounds


class Picture(Figure):
    """A figure that notebooks show without pyplot."""

    def _repr_png_(self) -> bytes:
        content = io.BytesIO()
        self.savefig(content, format="png")
        return content.getvalue()


def subplots(rows: int = 1, columns: int = 1, *, figsize: tuple[float, float], **arranged: Any) -> tuple[Figure, Any]:
    """A figure and its axes, outside pyplot: whatever backend a notebook or a window uses stays in use."""
    figure = Picture(figsize=figsize, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, **arranged)


def curves(histories: Histories, majority: float, path: Path, looks: Looks | None = None) -> Path:
    """Accuracy by round and by megabytes, as files."""
    with rc_context(STYLE):
        figure, rows = curves_of(histories, majority, looks)
        return save(figure, path, ("method", "round", "mean", "lowest", "highest", "megabytes"), rows)


def curves_of(
    histories: Histories, majority: float, looks: Looks | None = None
) -> tuple[Figure, list[tuple[object, ...]]]:
    """Accuracy by round and by megabytes, mean over seeds with the range between them; and the numbers."""
    with rc_context(STYLE):
        figure, (left, right) = subplots(1, 2, figsize=(10, 4.4), sharey=True)
        rows: list[tuple[object, ...]] = []
        shown = looks_of(histories, looks)
        for label, seeds in histories.items():
            rounds, accuracy, traffic = _series(seeds)
            mean, look = accuracy.mean(0), shown[label]
            dot = "o" if len(rounds) == 1 else None
            left.plot(rounds, mean, label=look.name, marker=dot, markersize=4, **look.line)
            left.fill_between(rounds, accuracy.min(0), accuracy.max(0), color=look.colour, alpha=0.15, linewidth=0)
            marker = "o" if len(rounds) == 1 or traffic[-1] - traffic[0] < 1e-3 else None
            right.plot(traffic, mean, marker=marker, markersize=4, **look.line)
            rows += [
                (label, int(r), m, low, high, t)
                for r, m, low, high, t in zip(rounds, mean, accuracy.min(0), accuracy.max(0), traffic, strict=True)
            ]
        name = main().name
        for axis in (left, right):
            level(axis, majority)
        left.set(
            xlabel="round", ylabel=f"test {name}, mean over clients", title=f"{name[0].upper()}{name[1:]} by round"
        )
        left.xaxis.set_major_locator(MaxNLocator(integer=True))
        right.set(xlabel="megabytes sent up and down", title=f"{name[0].upper()}{name[1:]} by traffic")
        figure.legend(loc="outside lower center", ncols=min(4, len(histories)))
        return figure, rows


def level(axis: Axes, majority: float) -> None:
    """The score of the answer that needs no input (the majority class), with its name on its line; nothing where it is
    not known."""
    if math.isnan(majority):
        return
    axis.axhline(majority, color="#777777", linestyle=(0, (1, 2)), linewidth=1)
    at: Any = ("axes fraction", "data")
    axis.annotate(trivial(), (1, majority), xycoords=at, ha="right", va="bottom", color="#777777", fontsize=9)


def _series(seeds: Sequence[Sequence[Mapping[str, JSON]]]) -> tuple[Ints, Floats, Floats]:
    """Rounds at which every seed was scored, accuracies [seeds, rounds], and mean traffic so far in MB."""
    scored = [
        {r["round"]: r[f"test_{main().id}"] for r in rows if r.get(f"test_{main().id}") is not None} for rows in seeds
    ]
    rounds = np.array(sorted(set.intersection(*map(set, scored))))
    accuracy = np.array([[s[r] for r in rounds] for s in scored])
    sent = []
    for rows in seeds:  # by the round's number: a log may lack rows
        sums = np.cumsum([r["bytes_up"] + r["bytes_down"] for r in rows]) / 1e6
        sofar = dict(zip((r["round"] for r in rows), sums.tolist(), strict=True))
        sent.append([sofar[r] for r in rounds])
    traffic = np.mean(sent, axis=0)
    return rounds, accuracy, traffic


def accuracy_by_traffic(rounds: Sequence[Mapping[str, JSON]], title: str, path: Path) -> Path:
    """Test accuracy by all megabytes sent so far, up and down: those that travelled, and what they would have been
    without codecs."""
    wire, raw = (np.cumsum([r[f"{k}_up"] + r[f"{k}_down"] for r in rounds]) / 1e6 for k in ("bytes", "raw"))
    scored = [i for i, row in enumerate(rounds) if row.get(f"test_{main().id}") is not None]
    accuracy = [rounds[i][f"test_{main().id}"] for i in scored]
    with rc_context(STYLE):
        figure, axis = subplots(figsize=(6, 4))
        axis.plot(wire[scored], accuracy, color=COLOURS[0], marker="o", markersize=3, label="sent")
        if (raw != wire).any():
            axis.plot(raw[scored], accuracy, color=COLOURS[1], linestyle="--", label="the same without codecs")
            axis.set_xscale("log")
        axis.set(
            xlabel="megabytes sent up and down so far", ylabel=f"test {main().name}, mean over clients", title=title
        )
        axis.legend(loc="lower right")
        rows = [(rounds[i]["round"], wire[i], raw[i], a) for i, a in zip(scored, accuracy, strict=True)]
        return save(figure, path, ("round", "megabytes", "megabytes_without_codecs", f"test_{main().id}"), rows)


def partition(counts: ArrayLike, names: Sequence[str], title: str, path: Path) -> Path:
    """Clients x labels as bubbles, the size and label entropy of each client, and how far the labels of each pair of
    clients are apart (up to 1000 clients)."""
    counts = np.asarray(counts)
    clients, classes = counts.shape
    entropy, places = label_entropy(counts), range(clients)
    with rc_context(STYLE), storage(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        figure, (left, size, bits, right) = subplots(
            1, 4, figsize=(15, min(12.0, 2.5 + 0.22 * clients)), sharey=True, width_ratios=(3, 1, 1, 2.4)
        )
        y, x = np.nonzero(counts)
        largest = _bubble(figure, clients, classes)
        left.scatter(x, y, s=counts[y, x] / counts.max() * largest**2, color=COLOURS[0], alpha=0.8, linewidths=0)
        left.set(
            xlabel=f"label (area: rows; the largest is {counts.max()})",
            ylabel="client",
            title=title,
            xlim=(-0.7, classes - 0.3),
        )
        left.set_xticks(range(classes) if classes <= 30 else range(0, classes, classes // 20))
        if clients <= 60:
            left.set_yticks(places, names)
        thick = 0.8 if clients <= 60 else 1.0  # gaps of less than a pixel would only flicker
        size.barh(places, counts.sum(1), thick, color=COLOURS[2])
        size.set(xlabel="training samples", title="size")
        bits.barh(places, entropy, thick, color=COLOURS[4])
        bits.set(xlabel="bits", title="label entropy", xlim=(0, max(float(np.log2(max(classes, 2))), 1)))
        if clients <= MOST:
            _heat_map(figure, right, counts, names, path)
        else:
            right.set_visible(False)
        left.set_ylim(clients - 0.5, -0.5)
        header = ("client", *(f"label {c}" for c in range(classes)))
        return save(figure, path, header, [(n, *r) for n, r in zip(names, counts.tolist(), strict=True)])


def _bubble(figure: Figure, clients: int, classes: int) -> float:
    """The diameter of the largest bubble, in points: at most 2.5 cells wide, so that crowded bubbles do not
    run into stripes; about a third of the figure's width and nine tenths of its height hold the cells."""
    width, height = figure.get_size_inches() * 72
    return float(np.clip(2.5 * min(0.33 * width / classes, 0.9 * height / clients), 4, 13))


def _heat_map(figure: Figure, axis: Axes, counts: Ints, names: Sequence[str], path: Path) -> None:
    """Pairs of clients by the Jensen-Shannon distance of their labels; the numbers go to NAME-distances.csv."""
    distances, edges = label_distances(counts), np.arange(len(counts) + 1) - 0.5
    mesh = axis.pcolormesh(edges, edges, distances, cmap="viridis", vmin=0, vmax=1, rasterized=True)
    axis.set(xlabel="client", title="distance of labels (Jensen-Shannon)")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.grid(False)
    figure.colorbar(mesh, ax=axis)
    rows = [(n, *(round(d, 6) for d in r)) for n, r in zip(names, distances.tolist(), strict=True)]
    write_csv(path.with_name(f"{path.stem}-distances.csv"), ("client", *names), rows)


def save(figure: Figure, path: Path, header: Sequence[str], rows: Sequence[Sequence[object]]) -> Path:
    """A picture as PNG, SVG and EPS, and its numbers as CSV; equal pictures are equal files."""
    with storage(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        if figure.get_layout_engine() is not None:  # laid out once, not for every format
            figure.draw_without_rendering()
            figure.set_layout_engine("none")
        figure.savefig(path.with_suffix(".png"))
        figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
        path.with_suffix(".eps").write_bytes(_postscript(figure))
        write_csv(path.with_suffix(".csv"), header, rows)
    return path.with_suffix(".png")


def _postscript(figure: Figure) -> bytes:
    """As EPS, without its date. PostScript has no transparency: colours are mixed with white instead."""
    for artist in figure.findobj(lambda a: a.get_alpha() not in (None, 1)):
        share = artist.get_alpha() or 0.0
        for kind in ("facecolor", "edgecolor", "color"):
            read = getattr(artist, f"get_{kind}", None)
            if read is not None and np.size(read()):
                colour = to_rgba_array(read())
                mixed = np.hstack([1 - share + share * colour[:, :3], np.where(colour[:, 3:] > 0, 1.0, 0.0)])
                getattr(artist, f"set_{kind}")(mixed if len(mixed) > 1 else tuple(mixed[0]))
        artist.set_alpha(None)
    content = io.BytesIO()
    figure.savefig(content, format="eps")
    return b"".join(line for line in content.getvalue().splitlines(True) if not line.startswith(b"%%CreationDate"))


def write_csv(path: Path, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)


def looked_at(federation: Federation, title: str, plot: Path) -> Row:
    """Counts, measures and a picture of a division."""
    counts, ids = federation.label_counts("train"), [str(c) for c in federation.ids]
    picture = partition(counts, ids, f"{title}, {len(ids)} clients", plot)
    return {
        **federation.summary(),
        "measures": measures(counts),
        "labels": {c: row.tolist() for c, row in zip(ids, counts, strict=True)},
        "entropy": {c: float(h) for c, h in zip(ids, label_entropy(counts), strict=True)},
        "groups": None if federation.groups is None else {str(c): g for c, g in federation.groups.items()},
        "unlabelled": 0 if federation.unlabelled is None else len(federation.unlabelled.index),
        "plot": str(picture),
    }


def stream_looked_at(stream: Stream, title: str, plot: Path) -> Row:
    """Every task, and when it is on; one picture each."""
    tasks = []
    for number, task in enumerate(stream.tasks):
        place = plot.with_name(f"{plot.stem}-task{number}{plot.suffix}")
        found = looked_at(task, f"{title}, task {number}", place)
        tasks.append({**found, "classes": np.flatnonzero(task.label_counts().sum(0)).tolist()})
    return {
        "clients": len(stream.ids),
        "stages": stages(stream),
        "recurring": stream.clock.period is not None,
        "delays": {str(client): delay for client, delay in stream.delays.items()},
        "tasks": tasks,
    }


def stages(stream: Stream) -> list[Row]:
    """Which task is on in which rounds, counted from 1, for clients without delay."""
    clock = stream.clock
    ends: Sequence[int | None] = [*clock.starts[1:], clock.period]
    return [
        {"rounds": f"{low + 1}-{'' if high is None else high}", "task": task}
        for low, high, task in zip(clock.starts, ends, clock.order, strict=True)
    ]
