"""FedAvg+Noise: noise on the averaged model. A baseline of Localize-and-Stitch; not private."""

from __future__ import annotations

from typing import Any

from fedquilt.core.net import Net
from fedquilt.core.objective import Objective
from fedquilt.methods.fedavg import FedAvg
from fedquilt.pieces.aggregators import noised, uniform_mean


def fedavg_noise(objective: Objective | Net, noise: float = 0.04, **rest: Any) -> FedAvg:
    """The unweighted mean of the clients' models, then N(0, (noise * std(tensor))^2) on every tensor.

    The noised model is what clients train on next. Nothing is clipped and nothing accounted for: it is NOT
    differential privacy, whatever plots of it are called.

    Args:
        objective: The network, or an objective.
        noise: Multiple of each tensor's own standard deviation, >= 0.
        rest: As for :class:`FedAvg`.
    """
    return FedAvg(objective=objective, aggregate=noised(noise, uniform_mean), **rest)
