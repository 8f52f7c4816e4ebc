"""FedPer, and then each client tunes its head on the new body: what more head-only work gives, without others' help."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from fedquilt.core.exchange import Context, Exchange, anything, plain, unmoved
from fedquilt.core.net import Net
from fedquilt.core.objective import Objective
from fedquilt.core.params import pick
from fedquilt.core.table import Site
from fedquilt.core.train import Job, Trained
from fedquilt.errors import InputError
from fedquilt.methods.fedavg import Client, FedAvg
from fedquilt.methods.on_base import OnBase
from fedquilt.methods.personalised.fedper import FedPer


@dataclass(frozen=True, init=False)
class FedPerFineTune(OnBase):
    """FedPer, and a second exchange to the same clients: they train only what is private, with the new shared part.

    Args:
        base: FedAvg with a private part.
        head: The parts of the network that stay home, if a network is given and not a base.
        tune_epochs: Passes over a client's samples on that second exchange, >= 1.

    Reference: none; a control for methods that do more for heads.
    """

    base: FedAvg
    head: tuple[str, ...] = ("head",)
    tune_epochs: int = 2

    def around(self, objective: Objective | Net, **settings: Any) -> FedPer:
        """FedPer with this head."""
        return FedPer(objective, head=self.head, **settings)

    def __post_init__(self) -> None:
        if self.tune_epochs < 1:
            raise InputError(f"The number of epochs to tune must be at least 1, got {self.tune_epochs}.")
        if not any(self.base.parts.private(name) for name in self.base.net.trainable):
            raise InputError("Tuning what is private needs a private part, for example parts=at_home(under('head')).")

    def exchanges(self) -> tuple[Exchange, ...]:
        """Train as the base, then tune."""
        (train,) = self.base.exchanges()
        tune = train.training(only=self.base.parts.private, epochs=self.tune_epochs, steps=None, finish=self.keep)
        return train, replace(tune, name="tune", up=unmoved, codec=plain, check=anything, upload=None)

    def keep(self, job: Job, trained: Trained, client: Client, site: Site, context: Context) -> tuple[Client, None]:
        """The tuned part, which the next round goes on with."""
        return replace(client, private=pick(self.base.parts.private, trained.params)), None
