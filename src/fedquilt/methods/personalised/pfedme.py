"""pFedMe: clients descend the Moreau envelope of their loss; the point that attains it is their own model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from fedquilt.core.exchange import Context, Exchange, Reply
from fedquilt.core.holders import Fixed, HasShared
from fedquilt.core.memory import ask
from fedquilt.core.objective import OnLoss
from fedquilt.core.params import Params, lerp
from fedquilt.core.seed import Seed
from fedquilt.core.table import Batch, Site
from fedquilt.core.train import Job, Trained
from fedquilt.errors import InputError
from fedquilt.methods.fedavg import FedAvg, Owner, Server, Upload
from fedquilt.methods.on_base import OnBase
from fedquilt.pieces.aggregators import uniform_mean


@dataclass(frozen=True)
class Moreau(OnLoss):
    """lam/2 |w - theta|^2 with theta = argmin f(theta) + lam/2 |theta - w|^2, found by a few steps from w.

    theta counts as a constant, so that the gradient is lam (w - theta), that of the envelope.
    """

    lam: float
    inner_lr: float
    inner_steps: int

    def __post_init__(self) -> None:
        if not (self.lam > 0 and self.inner_lr > 0 and self.inner_steps >= 1):
            raise InputError(
                "pFedMe needs lam > 0, inner_lr > 0 and inner_steps >= 1, "
                f"got {self.lam}, {self.inner_lr}, {self.inner_steps}."
            )

    def solve(self, params: Params, fixed: Fixed, batch: Batch) -> Params:
        """theta: ``inner_steps`` steps of gradient descent on this batch."""
        names = [n for n in self.trainable if n in params]
        anchor = [params[n].detach() for n in names]
        points = [a.clone().requires_grad_() for a in anchor]
        for _ in range(self.inner_steps):
            value = self.loss({**params, **dict(zip(names, points, strict=True))}, fixed, batch)
            grads = torch.autograd.grad(value, points, materialize_grads=True)
            with torch.no_grad():
                points = [
                    (p - self.inner_lr * (g + self.lam * (p - a))).requires_grad_()
                    for p, g, a in zip(points, grads, anchor, strict=True)
                ]
        return {**params, **{n: p.detach() for n, p in zip(names, points, strict=True)}}

    def own(self, base: FedAvg, job: Job, trained: Trained, site: Site, context: Context) -> Params:
        """theta at the model that training ended with, for one more batch."""
        ask(None, self.inner_steps)
        net, seed = base.net, context.seed.fold("own")
        batch = next(site.train.batches(base.batch_size, 1, seed, 1, lone=not net.normalises))
        with seed.ambient():
            return self.solve(net.own(trained.params), job.fixed, batch)

    def __call__(self, params: Params, fixed: Fixed, batch: Batch) -> Tensor:
        theta = self.solve(params, fixed, batch)
        pulls = [(params[n] - theta[n]).square().sum() for n in self.trainable if n in params]
        return self.lam / 2 * torch.stack(pulls).sum()


@dataclass(frozen=True, init=False)
class PFedMe(OnBase):
    """Local steps w <- w - lr lam (w - theta(w)), each with a fresh batch; server: x <- (1 - beta) x + beta mean w_i.

    A client's own model is theta at its last w, for one more batch.

    Args:
        base: FedAvg in which every client counts the same; its learning rate times ``lam`` should be below 1.
        lam: Strength of the proximal term between w and theta, > 0.
        inner_lr: Learning rate of the steps that find theta, > 0.
        inner_steps: How many of these steps there are, >= 1.
        beta: The server's step, > 0.

    Reference: Dinh et al., Personalized Federated Learning with Moreau Envelopes, 2020, algorithm 1.

    Example:
        >>> from fedquilt import Net, models
        >>> method = PFedMe(Net.of(models.MLP, features=64, classes=10), lam=10.0)
    """

    base: FedAvg
    lam: float = 15.0
    inner_lr: float = 0.05
    inner_steps: int = 5
    beta: float = 1.0
    defaults: ClassVar = {"aggregate": uniform_mean}

    def __post_init__(self) -> None:
        if not self.beta > 0:
            raise InputError(f"pFedMe needs beta > 0, got {self.beta}.")
        self.envelope  # noqa: B018 - checks the others

    @cached_property
    def envelope(self) -> Moreau:
        """What clients descend."""
        return Moreau(self.base.loss, self.lam, self.inner_lr, self.inner_steps)

    def init_client(self, seed: Seed) -> Owner:
        """No model of its own yet."""
        return Owner(self.base.init_client(seed).private, {})

    def exchanges(self) -> tuple[Exchange, ...]:
        """The base's exchange, on another loss."""
        (train,) = self.base.exchanges()
        return (replace(train.training(objective=self.envelope, finish=self.finish), up=self.up),)

    def finish(self, job: Job, trained: Trained, client: Owner, site: Site, context: Context) -> tuple[Owner, Upload]:
        """Send what w learned, keep theta(w)."""
        client, upload = self.base.finish(job, trained, client, site, context)
        return replace(client, own=self.envelope.own(self.base, job, trained, site, context)), upload

    def up(self, state: Server, replies: Iterable[Reply[Upload]], context: Context) -> Server:
        """Step towards the mean of the clients' models."""
        merged = self.base.aggregate(state.shared, replies, context)
        if merged is state.shared:
            return state
        return Server({**merged, **lerp(self.base.trained(state.shared), merged, self.beta)})

    def personal_model(self, download: HasShared, client: Owner) -> Params:
        """theta, once there is one."""
        return client.own or self.base.personal_model(download, client)
