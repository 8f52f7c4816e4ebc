"""FedBABU: one body for all, trained against a head that never changes; then each client tunes the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fedquilt.core.net import Net
from fedquilt.core.objective import Objective
from fedquilt.core.params import everything, everything_but
from fedquilt.errors import InputError
from fedquilt.methods.fedavg import FedAvg, net_of
from fedquilt.methods.personalised.finetune import FineTune


@dataclass(frozen=True, init=False)
class FedBABU(FineTune):
    """Clients train only the body and average it; the head keeps the random values all began with, until tuning.

    Args:
        base: FedAvg that trains the body ``only``.
        head: The parts of the network that make up the head.
        tune_epochs: Passes over a client's samples before it uses the model, >= 1.
        tune: What is tuned: "all", the "head" or the "body". The paper tunes all and finds the head alone about as
            good.

    Reference: Oh et al., FedBABU: Towards Enhanced Representation for Federated Image Classification, 2022.
    """

    head: tuple[str, ...] = ("head",)
    tune_epochs: int = 1
    tune: Literal["all", "head", "body"] = "all"

    def around(self, objective: Objective | Net, **settings: Any) -> FedAvg:
        """FedAvg of the body."""
        return FedAvg(objective, only=everything_but(net_of(objective).under(*self.head)), **settings)

    @property
    def tuning(self) -> Mapping[str, Any]:
        """So many passes over these parts."""
        head = self.base.net.under(*self.head)
        choices = {"all": everything, "head": head, "body": everything_but(head)}
        if self.tune not in choices:
            raise InputError(f"tune must be 'all', 'head' or 'body', got {self.tune!r}.")
        return {"epochs": self.tune_epochs, "only": choices[self.tune]}
