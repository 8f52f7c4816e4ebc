"""FedALA: each client learns, weight by weight, how much of the global model to take in before it trains."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace

import torch

from fedquilt.core.exchange import Context, Exchange
from fedquilt.core.holders import HasShared
from fedquilt.core.memory import ask
from fedquilt.core.params import Params
from fedquilt.core.seed import Seed
from fedquilt.core.table import Site, Table
from fedquilt.core.train import Job, Trained
from fedquilt.errors import InputError
from fedquilt.methods.fedavg import FedAvg, Upload
from fedquilt.methods.on_base import OnBase
from fedquilt.records.record import record

WINDOW = 10  # epochs over which the loss must be steady


@record(name="fedquilt.methods.fedala:Blender")
class Blender:
    """The private part, the client's model after its last client update, and how much of the global model it takes
    in."""

    private: Params
    own: Params
    takes: Params


@dataclass(frozen=True, init=False)
class FedALA(OnBase):
    """Train from w = w_own + (w_global - w_own) * A, where A is learned for the last ``top`` tensors and 1 elsewhere.

    A starts at 1 and is kept between client updates. On a random share of the client's samples, batch by batch:
    A <- clip(A - rate grad_w f(w) * (w_global - w_own), 0, 1); the first time until the loss is steady, then one pass.

    Args:
        base: How models are trained and averaged.
        rate: Learning rate of A, > 0.
        share: Of the client's samples, in (0, 1].
        top: How many of the network's last trainable tensors are mixed, 0 for all; the paper counts layers.
        steady: The first time, stop when the losses of the last 10 epochs deviate by less.
        most_epochs: The first time, stop at the latest after so many.

    Reference: Zhang et al., FedALA: Adaptive Local Aggregation for Personalized Federated Learning, 2023.

    Example:
        >>> from fedquilt import Net, models
        >>> method = FedALA(Net.of(models.MLP, features=64, classes=10), top=1)
    """

    base: FedAvg
    rate: float = 1.0
    share: float = 0.8
    top: int = 2
    steady: float = 0.1
    most_epochs: int = 50

    def __post_init__(self) -> None:
        if not (self.rate > 0 and 0 < self.share <= 1 and self.top >= 0 and self.most_epochs >= 1):
            raise InputError(
                "FedALA needs rate > 0, share in (0, 1], top >= 0 and most_epochs >= 1, "
                f"got {self.rate}, {self.share}, {self.top}, {self.most_epochs}."
            )

    def init_client(self, seed: Seed) -> Blender:
        """Nothing learned yet."""
        return Blender(self.base.init_client(seed).private, {}, {})

    def exchanges(self) -> tuple[Exchange, ...]:
        """The base's exchange with another beginning."""
        (train,) = self.base.exchanges()
        return (train.training(start=self.start, finish=self.finish),)

    def start(self, download: HasShared, client: Blender, site: Site, context: Context) -> Job:
        """Learn A where the models differ; begin from the mixture."""
        job = self.base.start(download, client, site, context)
        names = self.base.net.trainable[-self.top :]
        if not client.own or all(torch.equal(client.own[n], job.params[n]) for n in names):
            return replace(job, memo=client.takes)
        takes = self._learn(job, client, names, site, context)
        return replace(job, params={**job.params, **_mixed(client.own, job.params, takes)}, memo=takes)

    def _learn(self, job: Job, client: Blender, names: tuple[str, ...], site: Site, context: Context) -> Params:
        net, seed = self.base.net, context.seed.fold("takes")
        rows, whole = self._some(site.train, seed), net.own(job.params)
        takes = client.takes or {n: torch.ones_like(client.own[n]) for n in names}
        losses: list[float] = []
        for epoch in range(1 if client.takes else self.most_epochs):
            ask(None, -(-len(rows) // self.base.batch_size))
            total, count = 0.0, 0
            here = seed.fold(epoch)
            with here.ambient():
                for batch in rows.batches(self.base.batch_size, 1, here, lone=not net.normalises):
                    free = {n: t.detach().requires_grad_() for n, t in takes.items()}
                    value = self.base.loss({**whole, **_mixed(client.own, job.params, free)}, job.fixed, batch)
                    gradients = torch.autograd.grad(value, list(free.values()), materialize_grads=True)
                    moved = zip(free.items(), gradients, strict=True)
                    takes = {n: (t.detach() - self.rate * g).clamp(0, 1) for (n, t), g in moved}
                    total, count = total + float(value.detach()) * len(batch), count + len(batch)
            losses.append(total / count)
            if len(losses) > WINDOW and statistics.pstdev(losses[-WINDOW:]) < self.steady:
                break
        return takes

    def _some(self, table: Table, seed: Seed) -> Table:
        rows = table.all_rows()
        chosen = torch.randperm(len(rows), generator=seed.fold("rows").torch())[: math.ceil(self.share * len(rows))]
        return replace(table, index=rows[chosen])

    def finish(
        self, job: Job, trained: Trained, client: Blender, site: Site, context: Context
    ) -> tuple[Blender, Upload]:
        """As the base; the trained model stays the client's own."""
        client, upload = self.base.finish(job, trained, client, site, context)
        return replace(client, own=trained.params, takes=job.memo), upload

    def personal_model(self, download: HasShared, client: Blender) -> Params:
        """The client's own model, once it has been asked."""
        return client.own or self.base.personal_model(download, client)


def _mixed(own: Params, whole: Params, takes: Params) -> Params:
    return {n: own[n] + (whole[n] - own[n]) * take for n, take in takes.items()}
