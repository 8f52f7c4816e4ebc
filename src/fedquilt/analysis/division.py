"""Who has which labels, and how much: a federation, or each task of a stream, as plain values and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedquilt.core.plain import Row
from fedquilt.data import Federation, Stream
from fedquilt.data.partitions.measures import label_entropy, measures
from fedquilt.results.plots import partition as draw


def looked_at(federation: Federation, title: str, plot: Path) -> Row:
    """Counts, measures and a picture of a division."""
    counts, ids = federation.label_counts("train"), [str(c) for c in federation.ids]
    picture = draw(counts, ids, f"{title}, {len(ids)} clients", plot)
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
