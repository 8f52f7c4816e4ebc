"""FedBABU: one body for all, trained against a head that never changes; then each client tunes the model."""

from __future__ import annotations

from typing import Any, Literal

from fedquilt.core.net import Net
from fedquilt.core.objective import Objective
from fedquilt.core.params import Names, everything, everything_but
from fedquilt.methods.fedavg import FedAvg, net_of
from fedquilt.methods.finetune import FineTune


def fedbabu(
    objective: Objective | Net, head: tuple[str, ...] = ("head",), tune_epochs: int = 1,
    tune: Literal["all", "head", "body"] = "all", **rest: Any,
) -> FineTune:  # fmt: skip
    """Clients train only the body and average it; the head keeps the random values all began with, until tuning.

    Args:
        objective: The network, or an objective.
        head: The parts of the network that make up the head.
        tune_epochs: Passes over a client's rows before it uses the model.
        tune: What is tuned; the paper tunes all and finds the head alone about as good.
        rest: As for :class:`FedAvg`.

    Reference: Oh et al., FedBABU: Towards Enhanced Representation for Federated Image Classification, 2022.
    """
    names = net_of(objective).under(*head)
    choices: dict[str, Names] = {"all": everything, "head": names, "body": everything_but(names)}
    base = FedAvg(objective=objective, only=everything_but(names), **rest)
    return FineTune(base=base, epochs=tune_epochs, only=choices[tune])
