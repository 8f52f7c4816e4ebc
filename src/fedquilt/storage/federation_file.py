"""federation.json: who has which labels, kept beside runs for those who look at them later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedquilt.core.plain import Row
from fedquilt.core.table import ClientId
from fedquilt.data.partitions.measures import measures
from fedquilt.storage.files import to_json, write_atomic

FILE = "federation.json"
MOST = 500_000  # clients times classes, above which the counts are left out


def constants(federation: Any) -> dict[ClientId, float]:
    """Each client's test accuracy with its commonest training label; without those that have no test samples."""
    values = federation.majority().clients.tolist()
    return {c: v for c, v in zip(federation.evaluated, values, strict=True) if v == v}


def write_federation(folder: Path, federation: Any) -> None:
    """Write the file; nothing for data that are elsewhere or have no classes."""
    if getattr(federation, "label_counts", None) is None or getattr(federation, "classes", None) is None:
        return
    groups = getattr(federation, "groups", None)
    content = {
        "classes": federation.classes,
        "clients": list(federation.ids),
        "groups": None if groups is None else [[c, g] for c, g in groups.items()],
        "majority": [[c, v] for c, v in constants(federation).items()],
        "table": None if getattr(federation, "preparation", None) is None else federation.preparation.describe(),
        "majority_common": federation.majority().global_test,
        "tasks": [_counts(task) for task in getattr(federation, "tasks", (federation,))],
    }
    write_atomic(folder / FILE, to_json(content).encode())


def _counts(task: Any) -> Row:
    counts = task.label_counts("train")
    shown = counts.tolist() if counts.size <= MOST else None
    return {"clients": list(task.ids), "rows": counts.sum(1).tolist(), "labels": shown, "measures": measures(counts)}
