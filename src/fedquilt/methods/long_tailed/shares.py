"""An exchange on which every client says how many training samples of each class it has; the server keeps the sum."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fedquilt.core.exchange import Context, Exchange, Reply, everyone
from fedquilt.core.table import ClientId, Site, Table
from fedquilt.errors import InputError
from fedquilt.pieces.objectives import class_counts
from fedquilt.records.record import record


class HasCounts(Protocol):
    """A server's state with samples per class: zeros before anybody was asked."""

    @property
    def counts(self) -> Tensor: ...


S = TypeVar("S", bound=HasCounts)
C = TypeVar("C")


@record
class Asked:
    """What a client is sent: how many classes there are."""

    classes: int


@record
class ClassCounts:
    """What a client answers: its training samples of each class."""

    counts: Tensor


def counts_of(table: Table, classes: int) -> Tensor:
    """How many rows of each class a table has."""
    found = class_counts(table)
    return F.pad(found, (0, classes - len(found)))


def check_counts(counts: Tensor, classes: int) -> None:
    """Whole numbers, one for each class."""
    if counts.shape != (classes,) or counts.dtype != torch.int64 or bool((counts < 0).any()):
        raise InputError(f"upload: counts should be {classes} whole numbers of rows.")


def answered(state: HasCounts) -> bool:
    """Whether anybody has answered."""
    return bool(state.counts.any())


def counting() -> Exchange:
    """The exchange: it asks everyone, and trains nothing."""
    return Exchange("count", _down, _counted, _up, cohort=everyone, check=_check)


def _down(state: HasCounts, client_id: ClientId) -> Asked:
    return Asked(len(state.counts))


def _counted(download: Asked, client: C, site: Site, context: Context) -> tuple[C, ClassCounts]:
    return client, ClassCounts(counts_of(site.train, download.classes))


def _check(state: HasCounts, upload: ClassCounts) -> None:
    check_counts(upload.counts, len(state.counts))


def _up(state: S, replies: Iterable[Reply[ClassCounts]], context: Context) -> S:
    total = state.counts
    for reply in replies:
        rows = int(reply.upload.counts.double().sum())  # which no number of rows overflows
        if rows > reply.samples:
            raise InputError(f"counts of {rows} rows, of a client that has {reply.samples}.")
        total = total + reply.upload.counts
    return replace(state, counts=total)  # type: ignore[type-var]
