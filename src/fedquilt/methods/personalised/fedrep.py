"""FedRep: a head for everyone, found first; then one common body."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from fedquilt.core.exchange import Context, Exchange
from fedquilt.core.net import Net
from fedquilt.core.objective import Objective
from fedquilt.core.params import pick
from fedquilt.core.table import Site
from fedquilt.core.train import Job, Trained, in_turn
from fedquilt.errors import InputError
from fedquilt.methods.fedavg import Client, FedAvg
from fedquilt.methods.on_base import OnBase
from fedquilt.methods.personalised.fedper import FedPer


@dataclass(frozen=True, init=False)
class FedRep(OnBase):
    """A client update: ``head_epochs`` on the private part with the body as received, then the base's work on the body
    alone.

    Args:
        base: FedAvg with a private part.
        head: The parts of the network that are a client's own, if a network is given and not a base.
        head_epochs: Passes over the client's samples that train the head, >= 1.

    Reference: Collins et al., Exploiting Shared Representations for Personalized Federated Learning, 2021.
    """

    base: FedAvg
    head: tuple[str, ...] = ("head",)
    head_epochs: int = 10

    def around(self, objective: Objective | Net, **settings: Any) -> FedPer:
        """FedPer with this head."""
        return FedPer(objective, head=self.head, **settings)

    def __post_init__(self) -> None:
        if self.head_epochs < 1:
            raise InputError(f"head_epochs must be at least 1, got {self.head_epochs}.")
        trained, parts = self.base.net.trainable, self.base.parts
        for part, choice, what in (("private", parts.private, "head"), ("shared", parts.shared, "body")):
            if not any(choice(name) for name in trained):
                raise InputError(
                    f"FedRep trains a {what} of its own, but the base has none: of {len(trained)} trained tensors "
                    f"({', '.join(trained[:3])}{', ...' * (len(trained) > 3)}) none is {part} (what is "
                    "frozen is not trained). Name the head: FedRep(objective, head=('head',))."
                )

    def exchanges(self) -> tuple[Exchange, ...]:
        """The base's exchange, its work done in two parts."""
        (train,) = self.base.exchanges()
        parts = self.base.parts
        head = train.training(only=parts.private, epochs=self.head_epochs, steps=None, finish=self.keep)
        body = train.training(only=parts.shared)
        return (replace(train, work=in_turn(head.work, body.work)),)

    def keep(self, job: Job, trained: Trained, client: Client, site: Site, context: Context) -> tuple[Client, None]:
        """The new head, for the body to be trained with; nothing to send yet."""
        return replace(client, private=pick(self.base.parts.private, trained.params)), None
