"""FedDyn: a regulariser that changes each round, so that local optima and the global one agree in the limit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

from fedquilt.core.exchange import Context, Exchange, Reply
from fedquilt.core.holders import HasShared
from fedquilt.core.params import Params, add, scale, sub, zeros_like
from fedquilt.core.seed import Seed
from fedquilt.core.table import Site
from fedquilt.core.train import Job, Trained
from fedquilt.errors import InputError
from fedquilt.methods.fedavg import FedAvg, Upload
from fedquilt.methods.on_base import OnBase
from fedquilt.pieces.aggregators import uniform_mean
from fedquilt.pieces.objectives import prox, tilt
from fedquilt.records.record import record


@record(name="fedquilt.methods.feddyn:Balanced")
class Balanced:
    """The model, and h: minus the mean of all clients' gradients at their last models."""

    shared: Params
    h: Params


@record(name="fedquilt.methods.feddyn:SlopedClient")
class GradientClient:
    """The private part, and the gradient of the client's loss at its last model, as FedDyn reckons it."""

    private: Params
    gradient: Params


@dataclass(frozen=True, init=False)
class FedDyn(OnBase):
    """Client k trains f_k(w) - <g_k, w> + alpha/2 |w - x|^2 from x to x_k, then g_k <- g_k - alpha (x_k - x).

    Server, with m clients of which those in P answered: h <- h - alpha/m sum_P (x_k - x);  x <- mean_P x_k - h / alpha.

    Args:
        base: FedAvg in which every client counts the same.
        alpha: Strength of the regulariser, > 0.

    Reference: Acar et al., Federated Learning Based on Dynamic Regularization, 2021, algorithm 1.
    """

    base: FedAvg
    alpha: float = 0.01
    defaults: ClassVar = {"aggregate": uniform_mean}

    def __post_init__(self) -> None:
        if not self.alpha > 0:
            raise InputError(f"FedDyn needs alpha > 0, got {self.alpha}.")

    def init_server(self, seed: Seed) -> Balanced:
        """h = 0."""
        shared = self.base.init_server(seed).shared
        return Balanced(shared, zeros_like(self.base.trained(shared)))

    def init_client(self, seed: Seed) -> GradientClient:
        """g_k = 0."""
        gradient = zeros_like(self.base.trained(self.base.net.init(seed)))
        return GradientClient(self.base.init_client(seed).private, gradient)

    def exchanges(self) -> tuple[Exchange, ...]:
        """The base's exchange with two more terms in the loss."""
        (train,) = self.base.exchanges()
        loss = self.base.loss.plus(tilt, prox(self.alpha))
        return (replace(train.training(start=self.start, objective=loss, finish=self.finish), up=self.up),)

    def start(self, download: HasShared, client: GradientClient, site: Site, context: Context) -> Job:
        """As the base, with -g_k as the linear term."""
        job = self.base.start(download, client, site, context)
        return replace(job, fixed={**job.fixed, "tilt": scale(client.gradient, -1)})

    def finish(
        self, job: Job, trained: Trained, client: GradientClient, site: Site, context: Context
    ) -> tuple[GradientClient, Upload]:
        """As the base; the client's gradient follows."""
        client, upload = self.base.finish(job, trained, client, site, context)
        return replace(client, gradient=add(client.gradient, self.base.trained(upload.delta), -self.alpha)), upload

    def up(self, state: Balanced, replies: Iterable[Reply[Upload]], context: Context) -> Balanced:
        """Move h, then x past the mean of the clients' models."""
        heard = list(replies)
        if not heard:
            return state
        merged = self.base.aggregate(state.shared, heard, context)
        change = sub(self.base.trained(merged), state.shared)
        h = add(state.h, change, -self.alpha * len(heard) / context.clients)
        return Balanced({**merged, **add(self.base.trained(merged), h, -1 / self.alpha)}, h)
