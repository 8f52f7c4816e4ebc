"""Looking at a federation: label counts, the majority baseline, a summary, and its fingerprint."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedquilt.core.describe import describe
from fedquilt.core.lazy import LazyColumn
from fedquilt.core.plain import Floats, Ints, Row
from fedquilt.core.table import ClientId, Prepare
from fedquilt.core.task import Task
from fedquilt.data.rows import ClientRows
from fedquilt.errors import InputError
from fedquilt.records.record import pack

if TYPE_CHECKING:
    from fedquilt.data.federation import Federation
    from fedquilt.data.streams.streams import Stream


@dataclass(frozen=True, eq=False)
class Majority:
    """The accuracy of answers that need no model: always the most frequent training label (the smallest on a tie).

    Args:
        clients: Each evaluated client's own label on its own test samples; NaN where there are none.
        personal: The same over all clients' test samples together; NaN without any.
        overall: One label for all, the most frequent of the whole federation, on all clients' test samples.
        global_test: That label on the global test set, or None without one.

    Example:
        >>> from fedquilt.testing import digits
        >>> 0 < digits().majority().personal < 1
        True
    """

    clients: Floats
    personal: float
    overall: float
    global_test: float | None


def labels_of(data: Federation) -> Tensor:
    """The label column."""
    if "y" not in data.columns:
        raise InputError(f"This federation has no labels: its columns are {sorted(data.columns)}.")
    return data.columns["y"]


def labels(data: Federation, client: ClientId, split: str) -> Tensor:
    """The client's labels in one split."""
    if split not in ("train", "valid", "test"):
        raise InputError(f"The splits are train, valid and test, got {split!r}.")
    if split == "test" or (split == "valid" and client not in data.places[0]):
        rows = (data.test if split == "test" else data.evaluation_valid)[data.place(client, evaluated=True)]
    else:
        rows = (data.train if split == "train" else data.valid)[data.place(client)]
    return labels_of(data).index_select(0, rows)


def label_counts(data: Federation, split: str) -> Ints:
    """How many rows of each class each client has: [clients, classes]."""
    kinds = {"train": data.train, "valid": data.valid, "test": data.test}
    if split not in kinds:
        raise InputError(f"The splits are train, valid and test, got {split!r}.")
    rows, (y, classes) = kinds[split], strata_of(data)
    owned = rows.owners() * classes + y[rows.index.numpy()]
    return np.bincount(owned, minlength=len(rows) * classes).reshape(len(rows), classes)


def strata_of(data: Federation) -> tuple[Ints, int]:
    """The class of each row and how many there are; of another task, which rows have like targets."""
    y = labels_of(data).numpy()
    if data.task is None:
        return y, data.classes or 0
    found = data.task.strata(y)
    return found, int(found.max(initial=0)) + 1


def majority(data: Federation) -> Majority:
    """See :class:`Majority`."""
    if data.task is not None:
        return _trivial(data, data.task)
    y = labels_of(data).numpy()
    common = _most_frequent(data.train.together(), y)[0]
    own = dict(zip(data.ids, _most_frequent(data.train, y).tolist(), strict=True))
    answers = np.array([own.get(client, common) for client in data.evaluated], np.int64)
    owners, truth = data.test.owners(), y[data.test.index.numpy()]
    right = np.bincount(owners[answers[owners] == truth], minlength=len(answers))
    asked = data.test.counts()
    per_client = np.where(asked > 0, right / np.maximum(asked, 1), np.nan)
    wide = None if data.global_columns is None else _share(data.global_columns["y"].numpy() == common)
    return Majority(per_client, _share(answers[owners] == truth), _share(truth == common), wide)


def _trivial(data: Federation, task: Task) -> Majority:
    """The same for another task: its main metric for the answers that need no input."""
    y = labels_of(data)

    def answer(rows: Tensor) -> Tensor:
        return task.constant(y.index_select(0, rows))

    def value(out: Sequence[Tensor], rows: Sequence[Tensor]) -> float:
        wide = [o.expand(len(r), -1) for o, r in zip(out, rows, strict=True)]
        return task.value(torch.cat(wide), y.index_select(0, torch.cat(list(rows)))) if wide else float("nan")

    common = answer(data.train.index)
    own = {client: answer(data.train[place]) for place, client in enumerate(data.ids)}
    answers = [own.get(client, common) for client in data.evaluated]
    tests = [data.test[place] for place in range(len(data.evaluated))]
    each = np.array([value([a], [rows]) for a, rows in zip(answers, tests, strict=True)])
    wide = None
    if data.global_columns is not None:
        there = data.global_columns["y"]
        wide = task.value(common.expand(len(there), -1), there)
    return Majority(each, value(answers, tests), value([common] * len(tests), tests), wide)


def _most_frequent(rows: ClientRows, y: Ints) -> Ints:
    """The label each client has most often, the smallest on a tie; every client has a row."""
    width = int(y.max()) + 1
    kinds, counts = np.unique(rows.owners() * width + y[rows.index.numpy()], return_counts=True)
    order = np.lexsort((kinds, -counts, kinds // width))
    _, first = np.unique(kinds[order] // width, return_index=True)
    labels: Ints = kinds[order][first] % width
    return labels


def _share(right: NDArray[np.bool_]) -> float:
    return float(right.mean()) if len(right) else float("nan")


def summary(data: Federation) -> Row:
    """Counts and sizes, as plain values."""
    wide = (data.columns, data.global_columns or {}, data.server_columns or {})
    sizes, held = data.train.counts(), [tensor for columns in wide for tensor in columns.values()]
    facts: Row = {
        "clients": len(data.ids),
        "classes": data.classes,
        "shape": list(data.columns["x"].shape[1:]),
        "rows": {"train": len(data.train.index), "valid": len(data.valid.index), "test": len(data.test.index)},
        "global_test": 0 if data.global_columns is None else len(data.global_columns["x"]),
        "training samples per client": {
            "least": int(sizes.min()),
            "median": float(np.median(sizes)),
            "most": int(sizes.max()),
        },
        "bytes": sum(t.numel() * t.element_size() for t in held),
    }
    if data.preparation is not None:
        facts["table"] = data.preparation.describe()
    if data.server_columns is not None:
        facts["server_valid"] = len(data.server_columns["x"])
    if data.task is not None:
        facts = {"task": data.task.name, **facts, "classes": None}
    if "y" in data.columns and data.task is None:
        kinds = _kinds_per_client(data)
        facts["classes per client"] = {"least": int(kinds.min()), "mean": float(kinds.mean()), "most": int(kinds.max())}
    return facts


def _kinds_per_client(data: Federation) -> Ints:
    width = max(data.classes or 1, 1)
    owned = np.unique(data.train.owners() * width + labels_of(data).numpy()[data.train.index.numpy()])
    return np.bincount(owned // width, minlength=len(data.train))


def fingerprint(data: Federation | Stream) -> str:
    """sha256 over every tensor (name, type, shape, bytes), every id, and how rows are prepared."""
    digest = hashlib.sha256(repr((data.ids, data.evaluated)).encode())
    if data.prepare is not None:
        digest.update(_described(data.prepare))
    wide = getattr(data, "server_columns", None) or {}  # a stream has none
    for name, tensor in sorted({**data.columns_for_sharing(), **{f"server.{n}": t for n, t in wide.items()}}.items()):
        digest.update(repr((name, str(tensor.dtype), tuple(tensor.shape))).encode())
        for part in tensor.in_blocks() if isinstance(tensor, LazyColumn) else (tensor,):
            flat = part.detach().contiguous().reshape(-1)
            if len(flat):
                digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _described(prepare: Prepare) -> bytes:
    """How rows are prepared, as bytes; what cannot be described counts by its name."""
    try:
        return pack(describe(prepare, "prepare"), checksum=False)
    except InputError:
        return getattr(prepare, "__qualname__", type(prepare).__qualname__).encode()
