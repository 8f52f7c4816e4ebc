"""Fine-tuning: before models are scored every client tunes a copy of the new global model for its own use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from fedquilt.core.exchange import Context, Exchange, anything, everyone, plain, unmoved
from fedquilt.core.holders import HasShared
from fedquilt.core.objective import Objective, OnLoss
from fedquilt.core.params import Names, Params, everything
from fedquilt.core.seed import Seed
from fedquilt.core.table import Site
from fedquilt.core.train import Job, Optimizer, Trained
from fedquilt.errors import InputError
from fedquilt.methods.fedavg import FedAvg, Owner
from fedquilt.methods.on_base import OnBase


@dataclass(frozen=True)
class FineTune(OnBase):
    """The base, and a second exchange to everyone: train a copy of the global model and keep it, send nothing.

    A client's model is its tuned copy; the global model stays the base's. A model can only be tuned where the data are,
    so tuning is a client update of its own, from the very model that evaluation sends. Training never sees the copy, so
    rounds that are not scored do without this exchange; the last round always has it.

    Args:
        base: FedAvg, however set up.
        tuning: The settings of tuning that are not those of one pass over all names by the base's optimiser.
        objective: What training minimises; the base's loss if None.
    """

    base: FedAvg
    tuning: Mapping[str, Any] = field(default_factory=dict)
    objective: Objective | OnLoss | None = None

    def __post_init__(self) -> None:
        if self.tuning.get("epochs", 1) < 1:
            raise InputError(f"The number of epochs to tune must be at least 1, got {self.tuning['epochs']}.")

    def init_client(self, seed: Seed) -> Owner:
        """No tuned model yet."""
        return Owner(self.base.init_client(seed).private, {})

    def exchanges(self) -> tuple[Exchange, ...]:
        """Train as the base, then tune."""
        (train,) = self.base.exchanges()
        usual = {"objective": self.base.loss, "only": everything, "epochs": 1, "steps": None}
        tune = train.training(**{**usual, "optimizer": self.base.optimizer, **self.tuning}, finish=self.keep)
        tune = replace(tune, name="tune", up=unmoved, codec=plain, cohort=everyone, check=anything, upload=None)
        train = train if self.objective is None else train.training(objective=self.objective)
        return train, replace(tune, for_scores=True)

    def keep(self, job: Job, trained: Trained, client: Owner, site: Site, context: Context) -> tuple[Owner, None]:
        """The tuned copy is the client's own."""
        return replace(client, own=trained.params), None

    def personal_model(self, download: HasShared, client: Owner) -> Params:
        """The tuned copy, once there is one."""
        return client.own or self.base.personal_model(download, client)


@dataclass(frozen=True, init=False)
class FedAvgFineTune(OnBase):
    """FedAvg whose clients tune the global model before they use it.

    Args:
        base: FedAvg, however set up.
        tune_epochs: Passes over a client's samples before it uses the model, >= 1.
        tune_steps: If set, exactly so many steps instead.
        tuned: Which names are tuned.
        tune_optimizer: For tuning; the base's if None.
        tune_objective: For tuning; the base's if None.

    Reference: none; common practice.

    Example:
        >>> from fedquilt import Net, models
        >>> method = FedAvgFineTune(Net.of(models.MLP, features=64, classes=10), tune_epochs=2)
    """

    base: FedAvg
    tune_epochs: int = 1
    tune_steps: int | None = None
    tuned: Names = everything
    tune_optimizer: Optimizer | None = None
    tune_objective: Objective | None = None

    @cached_property
    def delegate(self) -> FineTune:
        """Tuning as the options say."""
        tuning = {
            "epochs": self.tune_epochs,
            "steps": self.tune_steps,
            "only": self.tuned,
            "optimizer": self.tune_optimizer or self.base.optimizer,
            "objective": self.tune_objective or self.base.loss,
        }
        return FineTune(self.base, tuning)
