"""FedPer inside clusters: every client keeps its head, every discovered cluster its body."""

from __future__ import annotations

from typing import Any

from fedquilt.core.net import Net
from fedquilt.core.objective import Objective
from fedquilt.methods.fedper import FedPer
from fedquilt.methods.flhc import FLHC, Criterion


def fedper_grouped(
    objective: Objective | Net, head: tuple[str, ...] = ("head",), initial_rounds: int = 3,
    criterion: Criterion = "auto", distance_threshold: float = 0.5, n_clusters: int | None = None,
    sketch_size: int | None = None, min_size: int = 1, recluster_every: int | None = None, **rest: Any,
) -> FLHC:  # fmt: skip
    """FL+HC whose base is FedPer: clusters are found by the updates of the body, the only part that travels.

    Args:
        objective: The network, or an objective.
        head: The parts of the network that stay home.
        initial_rounds, criterion, distance_threshold, n_clusters, sketch_size, min_size, recluster_every: See
            :class:`fedquilt.methods.flhc.FLHC`.
        rest: As for :class:`fedquilt.methods.fedavg.FedAvg`.
    """
    return FLHC(
        base=FedPer(objective, head=head, **rest), initial_rounds=initial_rounds, criterion=criterion,
        distance_threshold=distance_threshold, n_clusters=n_clusters, sketch_size=sketch_size, min_size=min_size,
        recluster_every=recluster_every,
    )  # fmt: skip
