"""APFL: each client deploys a mixture of the global model and a model of its own, and learns how to mix."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedquilt.core.exchange import Context, Exchange
from fedquilt.core.holders import Fixed, HasShared
from fedquilt.core.net import Net
from fedquilt.core.objective import OnLoss
from fedquilt.core.params import Params
from fedquilt.core.seed import Seed
from fedquilt.core.table import Batch, Site
from fedquilt.core.train import Job, Trained
from fedquilt.errors import InputError
from fedquilt.methods.fedavg import FedAvg, Upload
from fedquilt.methods.on_base import OnBase
from fedquilt.records.record import record

OWN = "own/"  # before the names of v, where w and v are trained together


@record(name="fedquilt.methods.apfl:Mixer")
class Mixer:
    """The private part (of w), the own model v ({} before the first client update), and how much of v is used."""

    private: Params
    own: Params
    alpha: float


def mixture(net: Net, own: Mapping[str, Tensor], other: Mapping[str, Tensor], alpha: Tensor | float) -> Params:
    """alpha v + (1 - alpha) w; buffers are v's."""
    mixed = {n: alpha * own[n] + (1 - alpha) * other[n] for n in net.trainable}
    return {n: mixed.get(n, own[n]) for n in net.names}


@dataclass(frozen=True)
class Blend(OnLoss):
    """f(w) + f(alpha v + (1 - alpha) w) of one batch, where the second term moves v only."""

    @property
    def trainable(self) -> tuple[str, ...]:
        """Those of w and of v."""
        return (*self.net.trainable, *(OWN + n for n in self.net.trainable))

    def __call__(self, params: Params, fixed: Fixed, batch: Batch) -> Tensor:
        w = {n: params[n] for n in self.net.names}
        v = {n: params[OWN + n] for n in self.net.names}
        mixed = mixture(self.net, v, {n: t.detach() for n, t in w.items()}, fixed["alpha"])
        return self.loss(w, fixed, batch) + self.loss(mixed, fixed, batch)


@dataclass(frozen=True, init=False)
class APFL(OnBase):
    """Steps, on the same batch: w <- w - lr grad f(w);  v <- v - lr grad_v f(alpha v + (1 - alpha) w).

    Once a client update, before training: alpha <- alpha - alpha_rate lr <v - w, grad f(alpha v + (1 - alpha) w)>, in
    [0, 1].

    Args:
        base: How w is averaged.
        alpha: How much of v a client uses at first, in [0, 1].
        alpha_rate: Multiplies the learning rate of alpha; 0 keeps it.

    Reference: Deng et al., Adaptive Personalized Federated Learning, 2020, algorithm 1.
    """

    base: FedAvg
    alpha: float = 0.5
    alpha_rate: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1 or self.alpha_rate < 0:
            raise InputError(f"APFL needs alpha in [0, 1] and alpha_rate >= 0, got {self.alpha}, {self.alpha_rate}.")

    def init_client(self, seed: Seed) -> Mixer:
        """No own model yet."""
        return Mixer(self.base.init_client(seed).private, {}, self.alpha)

    def exchanges(self) -> tuple[Exchange, ...]:
        """The base's exchange, training two models at once."""
        (train,) = self.base.exchanges()
        return (train.training(start=self.start, objective=Blend(self.base.loss), finish=self.finish),)

    def start(self, download: HasShared, client: Mixer, site: Site, context: Context) -> Job:
        """Learn how to mix, then begin from w and v."""
        job = self.base.start(download, client, site, context)
        own = client.own or job.params
        alpha = self._mixed(own, job, client.alpha, site, context) if client.own and self.alpha_rate else client.alpha
        params = {**job.params, **{OWN + n: t for n, t in own.items()}}
        return replace(job, params=params, fixed={**job.fixed, "alpha": alpha})

    def _mixed(self, own: Params, job: Job, alpha: float, site: Site, context: Context) -> float:
        net, lr = self.base.net, self.base.optimizer.lr * self.base.schedule(context.round) * self.alpha_rate
        seed = context.seed.fold("alpha")
        batch = next(site.train.batches(self.base.batch_size, 1, seed, 1, lone=not net.normalises))
        now = torch.tensor(alpha, requires_grad=True)
        with seed.ambient():
            value = self.base.loss(mixture(net, net.own(own), job.params, now), job.fixed, batch)
        (gradient,) = torch.autograd.grad(value, now)
        return min(1.0, max(0.0, alpha - lr * float(gradient)))

    def finish(self, job: Job, trained: Trained, client: Mixer, site: Site, context: Context) -> tuple[Mixer, Upload]:
        """Send what w learned, keep v and alpha."""
        w = {n: trained.params[n] for n in self.base.net.names}
        client, upload = self.base.finish(job, replace(trained, params=w), client, site, context)
        own = {n: trained.params[OWN + n] for n in self.base.net.names}
        return replace(client, own=own, alpha=job.fixed["alpha"]), upload

    def personal_model(self, download: HasShared, client: Mixer) -> Params:
        """The mixture of v with the present w."""
        whole = self.base.personal_model(download, client)
        return mixture(self.base.net, client.own, whole, client.alpha) if client.own else whole
