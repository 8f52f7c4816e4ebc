"""For methods around other methods: their records wrapped, their aggregator exchanged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fedquilt.core.exchange import Context
from fedquilt.core.table import Site
from fedquilt.core.train import InTurn, Job, Train, Trained
from fedquilt.errors import InputError
from fedquilt.methods.fedavg import FedAvg
from fedquilt.pieces.aggregators import Aggregator

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
