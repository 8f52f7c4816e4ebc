"""Local-only training: every client on its own, nothing travels."""

from __future__ import annotations

from typing import Any

from fedquilt.core.net import Net
from fedquilt.core.objective import Objective
from fedquilt.core.params import Parts, everything, nothing
from fedquilt.methods.fedavg import FedAvg


def local_only(objective: Objective | Net, **rest: Any) -> FedAvg:
    """FedAvg in which every name is private: the lower frame of every comparison.

    Each client starts from its own random model and goes on training it round after round.
    """
    return FedAvg(objective=objective, parts=Parts(shared=nothing, private=everything), **rest)
