"""What server and clients of Localize-and-Stitch keep and say, and how they are put around another method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedquilt.core.exchange import Context
from fedquilt.core.params import Names, Params
from fedquilt.core.table import Site
from fedquilt.core.train import InTurn, Job, Train, Trained
from fedquilt.errors import InputError
from fedquilt.methods.fedavg import FedAvg
from fedquilt.pieces.aggregators import Aggregator
from fedquilt.pieces.merging.standing import Standing
from fedquilt.records.record import record


@record(name="fedquilt.methods.votes:Stitched")
class Stitched:
    """The server's state: the base's, the held-out accuracy of the merged model (None before it is known), if it is to
    be remembered, the last merge, and the share of their weights that clients really sent in the last round."""

    inner: Any
    accuracy: float | None
    standing: Standing | None = None
    sent: float | None = None

    @property
    def shared(self) -> Params:
        """The merged model."""
        shared: Params = self.inner.shared
        return shared


@record(name="fedquilt.methods.votes:Counting")
class Counting(Stitched):
    """The same where K follows the number of merges so far."""

    merges: int = 0


@record(name="fedquilt.methods.votes:Order")
class Order:
    """What a client is sent: the base's download, and which share of its changes it may send."""

    inner: Any
    keep: float


@record(name="fedquilt.methods.votes:Vote")
class MaskedVote:
    """What a client sends: the base's upload, and which classes it has rows of (None: all may vote)."""

    inner: Any
    seen: Tensor | None


def seen_classes(site: Site, delta: Params, head: Names) -> Tensor:
    """Which classes the client has training samples of."""
    rows = next(t.shape[0] for n, t in delta.items() if head(n))
    labels = site.train.columns["y"].index_select(0, site.train.all_rows())
    return torch.bincount(labels.long(), minlength=rows)[:rows] > 0


def without_rows(delta: Params, head: Names, seen: Tensor) -> Params:
    """The change with 0 in the head's rows of other classes."""
    kept = {
        n: torch.where(seen.view(-1, *[1] * (t.dim() - 1)), t, 0.0).to(t.dtype) for n, t in delta.items() if head(n)
    }
    return {**delta, **kept}


Unwrap = Callable[[Any], Any]
Sending = Callable[[Job, Trained, object, Any, Site, Context, Any], Any]


def innermost(method: object) -> FedAvg:
    """The FedAvg that a method is built around."""
    while not isinstance(method, FedAvg):
        method = getattr(method, "base", None)
        if method is None:
            raise InputError("This method is not built on FedAvg, so its training cannot be changed from outside.")
    return method


def aggregating(method: Any, aggregate: Aggregator) -> Any:
    """The same method with another aggregator at its core."""
    if isinstance(method, FedAvg):
        return replace(method, aggregate=aggregate)
    innermost(method)
    return replace(method, base=aggregating(method.base, aggregate))


def rewired(work: Any, unwrap: Unwrap, sending: Sending | None) -> Any:
    """The same work on a wrapped download; ``sending`` turns the upload, if there is one, into what is sent."""
    if isinstance(work, InTurn):
        return InTurn(tuple(rewired(w, unwrap, sending) for w in work.works))
    if not isinstance(work, Train):
        return _Wrapped(work, unwrap, sending)

    def start(download: Any, client: object, site: Site, context: Context) -> Job:
        job = work.start(unwrap(download), client, site, context)
        return replace(job, memo=(job.memo, download))

    def finish(job: Job, trained: Trained, client: object, site: Site, context: Context) -> tuple[object, object]:
        memo, download = job.memo
        own = replace(job, memo=memo)
        client, upload = work.finish(own, trained, client, site, context)
        if sending is None or upload is None:
            return client, upload
        return client, sending(own, trained, client, upload, site, context, download)

    return replace(work, start=start, finish=finish)


class _Wrapped:
    """Work that is no training."""

    def __init__(self, work: Any, unwrap: Unwrap, sending: Sending | None) -> None:
        if sending is not None:
            raise InputError("The work of the exchange 'train' is no local training, so its changes cannot be chosen.")
        self._work, self._unwrap = work, unwrap

    def __call__(self, download: Any, client: object, site: Site, context: Context) -> tuple[object, object]:
        client, upload = self._work(self._unwrap(download), client, site, context)
        return client, upload
