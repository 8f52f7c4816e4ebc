"""FedNova: clients that walk further do not count more."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from fedquilt.core.exchange import Context, Exchange, Reply
from fedquilt.core.params import Mean, Params, add, scale
from fedquilt.core.table import Site
from fedquilt.core.train import Job, Trained
from fedquilt.errors import InputError
from fedquilt.methods.fedavg import C, FedAvg, Server, refuse_loop
from fedquilt.methods.on_base import OnBase
from fedquilt.pieces.optimizers import SGD
from fedquilt.records.record import record


@record(name="fedquilt.methods.fednova:PacedUpload")
class PacedUpload:
    """The change of the shared part, and |a_i|_1: how far local steps go on a gradient of one, in learning rates."""

    delta: Params
    pace: float


@dataclass(frozen=True, init=False)
class FedNova(OnBase):
    """x <- x + (sum p_i |a_i|_1) * sum p_i (x_i - x) / |a_i|_1, with p_i = n_i / sum n over the cohort.

    a_i holds the weight of each local gradient in x - x_i, divided by the learning rate: all ones for plain SGD
    (|a_i|_1 is the number of steps), (1 - m^(t-k)) / (1 - m) with momentum m. Buffers take the plain mean.

    Args:
        base: FedAvg with SGD, with or without momentum.

    Reference: Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization, 2020.

    Example:
        >>> from fedquilt import Net, models
        >>> method = FedNova(Net.of(models.MLP, features=64, classes=10))
    """

    base: FedAvg

    def __post_init__(self) -> None:
        refuse_loop(self.base, "counts its steps of SGD")
        if not isinstance(self.base.optimizer, SGD):
            raise InputError(
                f"FedNova needs SGD, with or without momentum, got {self.base.optimizer}: steps must sum gradients."
            )

    def exchanges(self) -> tuple[Exchange, ...]:
        """The base's exchange with another ending."""
        (train,) = self.base.exchanges()
        return (replace(train.training(finish=self.finish), check=self.check, up=self.up),)

    def finish(self, job: Job, trained: Trained, client: C, site: Site, context: Context) -> tuple[C, PacedUpload]:
        """As the base, and how far the steps went."""
        client, upload = self.base.finish(job, trained, client, site, context)
        assert isinstance(self.base.optimizer, SGD)
        return client, PacedUpload(upload.delta, pace(self.base.optimizer, trained.steps))

    def check(self, state: Server, upload: PacedUpload) -> None:
        """A change that fits, made in at least one step."""
        self.base.check(state, upload)
        if not upload.pace >= 1:
            raise InputError(f"upload: pace must be at least 1, got {upload.pace}.")

    def up(self, state: Server, replies: Iterable[Reply[PacedUpload]], context: Context) -> Server:
        """Average gradients, then go as far as clients go on average."""
        total, walked = Mean(), 0.0
        for reply in replies:
            delta = reply.upload.delta
            gradients = scale(self.base.trained(delta), 1 / reply.upload.pace)
            total.add({**delta, **gradients}, reply.samples)
            walked += reply.samples * reply.upload.pace
        if not total.weight:
            return state
        change = total.value()
        stepped = scale(self.base.trained(change), walked / total.weight)
        return replace(state, shared=add(state.shared, {**change, **stepped}))


def pace(optimizer: SGD, steps: int) -> float:
    """|a|_1: where SGD is after some steps of learning rate 1 on a gradient of one."""
    velocity, total = 0.0, 0.0
    for _ in range(steps):
        velocity = optimizer.momentum * velocity + 1
        total += 1 + optimizer.momentum * velocity if optimizer.nesterov else velocity
    return total
