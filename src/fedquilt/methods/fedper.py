"""FedPer: every client keeps its own head."""

from __future__ import annotations

from typing import Any

from fedquilt.core.net import Net
from fedquilt.core.objective import Objective
from fedquilt.core.params import at_home
from fedquilt.methods.fedavg import FedAvg, net_of


def fedper(objective: Objective | Net, head: tuple[str, ...] = ("head",), **rest: Any) -> FedAvg:
    """FedAvg in which the head is private; body and head are trained together.

    Args:
        objective: The network, or an objective.
        head: The parts of the network that stay home.
        rest: As for :class:`FedAvg`.

    Reference: Arivazhagan et al., Federated Learning with Personalization Layers, 2019.
    """
    return FedAvg(objective=objective, parts=at_home(net_of(objective).under(*head)), **rest)
