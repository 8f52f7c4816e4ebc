"""FedAvg whose clients also say, class by class, where their rows would push a linear head."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from fedquilt.core.exchange import Context, Exchange, Reply
from fedquilt.core.holders import HasPrivate, HasShared
from fedquilt.core.params import Params
from fedquilt.core.table import ClientId, Site
from fedquilt.core.train import Job, Trained
from fedquilt.methods.fedavg import C, FedAvg, S
from fedquilt.methods.on_base import OnBase
from fedquilt.pieces.class_gradients import (
    ClassGradients,
    GradientUpload,
    check_gradients,
    class_gradients,
    head_of,
    mean_gradients,
)

D = TypeVar("D", bound=HasShared)


@dataclass(frozen=True, init=False)
class WithGradients(OnBase, ABC, Generic[S, D]):
    """The base; a client also sends the class gradients of its rows at the model it was sent, before it trains.

    What is sent down must have ``shared``, as the base's does.
    """

    base: FedAvg

    @abstractmethod
    def learn(self, state: S, shared: Params, classes: ClassGradients, context: Context) -> S:
        """The next state, from the averaged model and the gradients averaged over the clients that have a class."""

    def head(self, sent: S | D) -> Params:
        """The head along which gradients are taken, in a state or a download: the model's own."""
        return head_of(sent.shared)

    def exchanges(self) -> tuple[Exchange, ...]:
        """The base's exchange, with gradients."""
        (train,) = self.base.exchanges()
        train = train.training(start=self.start, finish=self.finish)
        return (replace(train, down=self.down, check=self.check, up=self.up),)

    @abstractmethod
    def down(self, state: S, client_id: ClientId) -> D:
        """What a client is sent."""

    def start(self, download: D, client: HasPrivate, site: Site, context: Context) -> Job:
        """As the base, remembering the gradients."""
        job, head = self.base.start(download, client, site, context), self.head(download)
        return replace(job, memo=class_gradients(self.base.net, {**job.params, **head}, site.train, head))

    def finish(self, job: Job, trained: Trained, client: C, site: Site, context: Context) -> tuple[C, GradientUpload]:
        """As the base, with the gradients."""
        client, upload = self.base.finish(job, trained, client, site, context)
        return client, GradientUpload(upload.delta, job.memo)

    def check(self, state: S, upload: GradientUpload) -> None:
        """The change fits the model, the gradients the head."""
        self.base.check(state, upload)
        check_gradients(upload.classes, self.head(state))

    def up(self, state: S, replies: Iterable[Reply[GradientUpload]], context: Context) -> S:
        """Average, and learn from the gradients."""
        heard = list(replies)
        if not heard:
            return state
        shared = self.base.aggregate(state.shared, heard, context)
        return self.learn(state, shared, mean_gradients([r.upload.classes for r in heard]), context)
