"""Less of a federation: only some clients, clients held out for later, rows that lose their labels."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeVar

import numpy as np

from fedquilt.core.columns import PerColumn
from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId
from fedquilt.data.checks import as_seed
from fedquilt.data.federation import Federation
from fedquilt.data.rows import ClientRows, shuffled
from fedquilt.data.streams.streams import Stream
from fedquilt.data.tabular import fit
from fedquilt.errors import InputError

Data = TypeVar("Data", Federation, Stream)


def only_clients(data: Data, clients: Iterable[ClientId]) -> Data:
    """The same with these clients only; columns are shared, not copied."""
    wanted = set(clients)
    _check_own(data)
    odd = [client for client in wanted if client not in set(data.ids)]
    if odd or not wanted:
        raise InputError(f"There is no client {odd[0]!r} here." if odd else "A federation needs at least one client.")
    chosen = np.array([client in wanted for client in data.ids])
    return _each(data, lambda task: _kept(task, chosen))


def held_out(data: Data, newcomers: int, seed: int | Seed = 0) -> tuple[Data, Data]:
    """The clients that take part, and as many newcomers, drawn at random, that never do."""
    ids = data.ids
    if not 1 <= newcomers < len(ids):
        raise InputError(f"Of {len(ids)} clients from 1 to {len(ids) - 1} can be newcomers, got {newcomers!r}.")
    drawn = as_seed(seed).fold("newcomers").numpy().choice(len(ids), newcomers, replace=False)
    new = {ids[i] for i in drawn}
    part, rest = only_clients(data, [c for c in ids if c not in new]), only_clients(data, new)
    return _refitted(part, part), _refitted(rest, part)


def _refitted(data: Data, part: Data) -> Data:
    """A table's numbers are those of the training samples of who takes part."""
    tasks = (part,) if isinstance(part, Federation) else part.tasks
    prepare = tasks[0].prepare
    if not isinstance(prepare, PerColumn) or prepare == prepare.blank():
        return data
    numbers = fit(tasks, prepare)
    return _each(data, lambda task: task.prepared(numbers))


def without_labels(data: Data, share: float, seed: int | Seed = 0) -> Data:
    """The same where a random part of each client's training samples has lost its labels (``Site.unlabelled``).

    A client with n training samples loses round(share * n) labels, halves rounded up, but never all of them. Validation
    and test samples keep theirs.
    """
    if not 0 <= share < 1:
        raise InputError(f"The share of unlabelled samples must be from 0 to below 1, got {share!r}.")
    _check_own(data)
    if share and isinstance(data, Stream):
        _check_apart(data)
    root = as_seed(seed).fold("unlabelled")
    return _each(data, lambda task: _unlabelled(task, share, root)) if share else data


def _each(data: Data, change: Callable[[Federation], Federation]) -> Data:
    if isinstance(data, Federation):
        return change(data)
    tasks = tuple(change(task) for task in data.tasks)
    return replace(data, tasks=tasks, delays={c: d for c, d in data.delays.items() if c in set(tasks[0].ids)})


def _check_own(data: Federation | Stream) -> None:
    first = data if isinstance(data, Federation) else data.tasks[0]
    if first.evaluated != first.ids or first.evaluation_valid is not first.valid:
        raise InputError(
            "In a pooled federation clients have no training samples of their own; do this before pooling."
        )


def _check_apart(stream: Stream) -> None:
    """A label that one task hides must not show in another."""
    index = np.concatenate([task.train.index.numpy() for task in stream.tasks])
    if len(np.unique(index)) < len(index):
        raise InputError(
            "Tasks of this stream share training samples, so that a label hidden in one would be seen in another. Give "
            "every class to one task, or keep all labels."
        )


def _kept(task: Federation, chosen: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Federation:
    ids = tuple(client for client, stays in zip(task.ids, chosen, strict=True) if stays)
    valid = task.valid.keep(chosen)
    return replace(
        task,
        ids=ids,
        evaluated=ids,
        train=task.train.keep(chosen),
        valid=valid,
        evaluation_valid=valid,
        test=task.test.keep(chosen),
        unlabelled=None if task.unlabelled is None else task.unlabelled.keep(chosen),
        groups=None if task.groups is None else {client: task.groups[client] for client in ids},
    )


def _unlabelled(task: Federation, share: float, seed: Seed) -> Federation:
    if task.unlabelled is not None:
        raise InputError("Some rows of this federation have lost their labels already; do it once.")
    counts = task.train.counts()
    draws = [seed.fold(c).numpy().random(n) for c, n in zip(task.ids, counts, strict=True)]
    mixed, lost = shuffled(task.train, np.concatenate(draws)), np.floor(counts * share + 0.5).astype(np.int64)
    lost = np.minimum(lost, np.maximum(counts - 1, 0))
    owners, index = mixed.owners(), mixed.index.numpy()
    bare = np.arange(len(index)) - mixed.offsets.numpy()[owners] < lost[owners]
    order = np.lexsort((index, owners, bare))
    labelled, rest = np.split(index[order], [int((~bare).sum())])
    return replace(task, train=ClientRows.cut(labelled, counts - lost), unlabelled=ClientRows.cut(rest, lost))
