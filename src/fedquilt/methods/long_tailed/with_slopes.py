"""FedAvg whose clients also say, class by class, where their rows would push a linear head."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from fedquilt.core.exchange import Exchange, Reply, Turn
from fedquilt.core.holders import HasPrivate, HasShared
from fedquilt.core.params import Params
from fedquilt.core.table import ClientId, Site
from fedquilt.core.train import Job, Trained
from fedquilt.methods.fedavg import C, FedAvg, S
from fedquilt.pieces.class_slopes import ClassSlopes, SlopedUpload, check_slopes, class_slopes, head_of, mean_slopes

D = TypeVar("D", bound=HasShared)


def own_head(sent: HasShared) -> Params:
    """The model's own, in a state or a download."""
    return head_of(sent.shared)


@dataclass(frozen=True)
class WithSlopes(Generic[S, D]):
    """The base's trip, on which a client also sends the class slopes of its rows at the model it was sent, before it
    trains.

    Args:
        base: How models are trained and averaged.
        down: What a client is sent, with ``shared`` as the base's download.
        learn: The next state, from the averaged model and the slopes averaged over the clients that have a class.
        head: The head along which slopes are taken, in a state or a download.
    """

    base: FedAvg
    down: Callable[[S, ClientId], D]
    learn: Callable[[S, Params, ClassSlopes, Turn], S]
    head: Callable[[Any], Params] = own_head

    def exchange(self) -> Exchange:
        """The trip."""
        (train,) = self.base.exchanges()
        train = train.training(start=self.start, finish=self.finish)
        return replace(train, down=self.down, check=self.check, up=self.up)

    def start(self, download: D, client: HasPrivate, site: Site, turn: Turn) -> Job:
        """As the base, remembering the slopes."""
        job, head = self.base.start(download, client, site, turn), self.head(download)
        return replace(job, memo=class_slopes(self.base.net, {**job.params, **head}, site.train, head))

    def finish(self, job: Job, trained: Trained, client: C, site: Site, turn: Turn) -> tuple[C, SlopedUpload]:
        """As the base, with the slopes."""
        client, upload = self.base.finish(job, trained, client, site, turn)
        return client, SlopedUpload(upload.delta, job.memo)

    def check(self, state: S, upload: SlopedUpload) -> None:
        """The change fits the model, the slopes the head."""
        self.base.check(state, upload)
        check_slopes(upload.classes, self.head(state))

    def up(self, state: S, replies: Iterable[Reply[SlopedUpload]], turn: Turn) -> S:
        """Average, and learn from the slopes."""
        heard = list(replies)
        if not heard:
            return state
        shared = self.base.aggregate(state.shared, heard, turn)
        return self.learn(state, shared, mean_slopes([r.upload.classes for r in heard]), turn)
