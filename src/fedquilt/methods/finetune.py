"""Fine-tuning: before models are scored every client tunes a copy of the new global model for its own use."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from fedquilt.core.errors import InputError
from fedquilt.core.exchange import Exchange, Turn, anything, everyone, plain, unmoved
from fedquilt.core.net import Net
from fedquilt.core.objective import Objective
from fedquilt.core.params import Names, Params, everything
from fedquilt.core.seed import Seed
from fedquilt.core.table import Site
from fedquilt.core.train import Job, Optimizer, Trained
from fedquilt.methods.fedavg import FedAvg, Owner
from fedquilt.methods.on_base import OnBase


@dataclass(frozen=True, kw_only=True)
class FineTune(OnBase):
    """The base, and a second trip to everyone: train a copy of the global model and keep it, send nothing.

    A client's model is its tuned copy; the global model stays the base's. A model can only be tuned where the data are,
    so tuning is a visit of its own, from the very model that evaluation sends. Training never sees the copy, so rounds
    that are not scored do without this trip; the last round always has it.

    Args:
        base: FedAvg, however set up.
        epochs: Passes over a client's rows.
        steps: If set, exactly so many steps instead.
        only: Which names are tuned.
        optimizer: For tuning; the base's if None.
        objective: For tuning; the base's if None.
    """

    base: FedAvg
    epochs: int = 1
    steps: int | None = None
    only: Names = everything
    optimizer: Optimizer | None = None
    objective: Objective | None = None

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise InputError(f"The number of epochs to tune must be at least 1, got {self.epochs}.")

    def init_client(self, seed: Seed) -> Owner:
        """No tuned model yet."""
        return Owner(self.base.init_client(seed).private, {})

    def exchanges(self) -> tuple[Exchange, ...]:
        """Train as the base, then tune."""
        (train,) = self.base.exchanges()
        tune = train.training(
            objective=self.objective or self.base.loss, finish=self.keep, only=self.only, epochs=self.epochs,
            steps=self.steps, optimizer=self.optimizer or self.base.optimizer,
        )  # fmt: skip
        tune = replace(tune, name="tune", up=unmoved, codec=plain, cohort=everyone, check=anything, upload=None)
        return train, replace(tune, for_scores=True)

    def keep(self, job: Job, trained: Trained, client: Owner, site: Site, turn: Turn) -> tuple[Owner, None]:
        """The tuned copy is the client's own."""
        return replace(client, own=trained.params), None

    def personal_model(self, download: Any, client: Owner) -> Params:
        """The tuned copy, once there is one."""
        return client.own or self.base.personal_model(download, client)


def fedavg_finetune(objective: Objective | Net, tune_epochs: int = 1, **rest: Any) -> FineTune:
    """FedAvg whose clients tune the global model for ``tune_epochs`` before they use it."""
    return FineTune(base=FedAvg(objective=objective, **rest), epochs=tune_epochs)
