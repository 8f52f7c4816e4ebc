"""Who has which labels, and how much."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedquilt.runs.report.blocks import Panel, chart, facts, text
from fedquilt.runs.report.gather import Gathered

MOST = 80  # clients that are drawn as rows of dots


def federation(found: Gathered) -> Panel | None:
    """A picture of the division, and its measures."""
    tasks = found.federation.get("tasks", [])
    shown = [(i, task) for i, task in enumerate(tasks) if task.get("labels")]
    if not tasks:
        return None
    if not shown:
        return Panel("Federation", "federation", "Who has which labels", [
            text("There are too many clients and classes to keep their counts; 'fedquilt partition' draws them."),
        ])  # fmt: skip
    variants = [_task(found, i, task, len(shown) > 1) for i, task in shown]
    kind = "dots" if max(len(v["y"]) for v in variants) <= MOST else "matrix"
    block = chart(kind, "labels", "Training rows by client and label", variants=variants, x_name="label",
                  y_name="client")  # fmt: skip
    table = [text(f"Table: {told}.")] if (told := found.federation.get("table")) else []
    blocks = [facts(*_facts(found, shown[0][1])), *table, block]
    return Panel("Federation", "federation", "Who has which labels", blocks,
                 "Training rows. Colours are planted groups, where there are any.")  # fmt: skip


def _task(found: Gathered, place: int, task: dict[str, Any], several: bool) -> dict[str, Any]:
    clients = [tuple(c) if isinstance(c, list) else c for c in task["clients"]]
    groups = [found.groups.get(c) for c in clients] if found.groups else None
    return {
        "keys": {"task": str(place)} if several else {}, "name": "training rows", "values": task["labels"],
        "x": [str(c) for c in range(found.federation["classes"])], "y": [str(c) for c in clients], "groups": groups,
    }  # fmt: skip


def _facts(found: Gathered, task: dict[str, Any]) -> list[tuple[str, str, str]]:
    rows, measures = np.array(task["rows"]), task["measures"]
    far = measures["label_distance"]
    items = [
        ("clients", str(len(rows)), f"{len(set(found.groups.values()))} planted groups" if found.groups else ""),
        ("training rows", f"{rows.sum():,}", f"{rows.min()} to {rows.max()} per client"),
        ("classes", str(found.federation["classes"]), f"imbalance factor {measures['imbalance_factor']:.3g}"),
        ("size Gini", f"{measures['size_gini']:.3f}", "0: equal sizes"),
    ]  # fmt: skip
    if far is not None:
        items.append(("label distance", f"{far:.3f}", "Jensen-Shannon, mean over pairs"))
    return items
