"""SCAFFOLD: control variates that take the clients' drift out of local descent."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

from fedquilt.core.exchange import Context, Exchange, Reply
from fedquilt.core.params import Mean, Params, add, lerp, same_names, scale, sub, zeros_like
from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId, Site
from fedquilt.core.train import Job, Trained
from fedquilt.errors import InputError
from fedquilt.methods.fedavg import FedAvg, refuse_loop
from fedquilt.methods.on_base import OnBase
from fedquilt.pieces.aggregators import uniform_mean
from fedquilt.pieces.objectives import tilt
from fedquilt.pieces.optimizers import SGD
from fedquilt.records.record import record


@record(name="fedquilt.methods.scaffold:Controlled")
class Controlled:
    """A model and the mean gradient c: the server's state, and what a client is sent."""

    shared: Params
    control: Params


@record(name="fedquilt.methods.scaffold:ControlledClient")
class ControlledClient:
    """The private part, and the client's own gradient c_i."""

    private: Params
    control: Params


@record(name="fedquilt.methods.scaffold:ControlledUpload")
class ControlledUpload:
    """How the shared part and the client's gradient changed."""

    delta: Params
    control: Params


@dataclass(frozen=True, init=False)
class Scaffold(OnBase):
    """Local steps y <- y - lr (g_i(y) - c_i + c); then, with K steps and option II of the paper,

    c_i+ = c_i - c + (x - y) / (K lr);   x <- x + server_lr mean(y_i - x);   c <- c + |S|/N mean(c_i+ - c_i).

    Args:
        base: FedAvg with plain SGD; every client counts the same unless ``aggregate`` says otherwise.
        server_lr: The server's step, > 0.

    Reference: Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, 2020, algorithm 1.

    Example:
        >>> from fedquilt import Net, models
        >>> method = Scaffold(Net.of(models.MLP, features=64, classes=10), server_lr=0.5)
    """

    base: FedAvg
    server_lr: float = 1.0
    defaults: ClassVar = {"aggregate": uniform_mean}

    def __post_init__(self) -> None:
        if not self.server_lr > 0:
            raise InputError(f"server_lr must be > 0, got {self.server_lr}.")
        refuse_loop(self.base, "reads the mean gradient off steps of SGD")
        if not isinstance(self.base.optimizer, SGD) or self.base.optimizer.momentum:
            raise InputError(
                f"SCAFFOLD needs SGD without momentum, got {self.base.optimizer}: it reads the mean gradient off "
                "the distance they went, (x - y) / (K lr)."
            )

    def init_server(self, seed: Seed) -> Controlled:
        """c = 0."""
        shared = self.base.init_server(seed).shared
        return Controlled(shared, zeros_like(self.base.trained(shared)))

    def init_client(self, seed: Seed) -> ControlledClient:
        """c_i = 0."""
        control = zeros_like(self.base.trained(self.base.net.init(seed)))
        return ControlledClient(self.base.init_client(seed).private, control)

    def exchanges(self) -> tuple[Exchange, ...]:
        """The base's exchange; the loss gains <c - c_i, y>, whose gradient is the correction."""
        (train,) = self.base.exchanges()
        train = train.training(start=self.start, objective=self.base.loss.plus(tilt), finish=self.finish)
        return (replace(train, down=self.down, check=self.check, up=self.up),)

    def down(self, state: Controlled, client_id: ClientId) -> Controlled:
        """x and c."""
        return state

    def start(self, download: Controlled, client: ControlledClient, site: Site, context: Context) -> Job:
        """As the base, with c - c_i to add to every gradient."""
        job = self.base.start(download, client, site, context)
        return replace(job, fixed={**job.fixed, "tilt": sub(download.control, client.control)}, memo=download.control)

    def finish(
        self, job: Job, trained: Trained, client: ControlledClient, site: Site, context: Context
    ) -> tuple[ControlledClient, ControlledUpload]:
        """c_i+ - c_i = -c + (x - y) / (K lr)."""
        client, upload = self.base.finish(job, trained, client, site, context)
        walked = scale(self.base.trained(upload.delta), -1 / (trained.steps * trained.lr))
        change = sub(walked, job.memo)
        return replace(client, control=add(client.control, change)), ControlledUpload(upload.delta, change)

    def check(self, state: Controlled, upload: ControlledUpload) -> None:
        """Both changes fit what they change."""
        self.base.check(state, upload)
        same_names(state.control, upload.control, "upload.control")

    def up(self, state: Controlled, replies: Iterable[Reply[ControlledUpload]], context: Context) -> Controlled:
        """Step along the mean change; move c by the share of all clients that was heard."""
        heard, total = list(replies), Mean()
        for reply in heard:
            total.add(reply.upload.control, 1)
        if not heard:
            return state
        merged = self.base.aggregate(state.shared, heard, context)
        stepped = lerp(self.base.trained(state.shared), merged, self.server_lr)
        return Controlled({**merged, **stepped}, add(state.control, total.value(), len(heard) / context.clients))
