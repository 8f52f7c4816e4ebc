"""How unequal clients fare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fedquilt.core.plain import Array, Row
from fedquilt.core.table import ClientId
from fedquilt.data.partitions.measures import gini


def over_clients(seeds: Sequence[Mapping[ClientId, float]]) -> dict[str, float]:
    """Of clients' accuracies: Gini coefficient, variance (n), lowest and highest; each is computed for every seed
    and then averaged."""
    held = [np.array(list(found.values()), dtype=float) for found in seeds if found]
    if not held:
        return {}
    measures: Row = {"client_gini": _gini, "client_variance": np.var, "client_least": np.min, "client_most": np.max}
    return {name: float(np.mean([float(f(values)) for values in held])) for name, f in measures.items()}


def _gini(values: Array) -> float:
    return gini(values) if values.any() else 0.0  # all at nothing are equal


def client_means(seeds: Sequence[Mapping[ClientId, float]]) -> dict[ClientId, float]:
    """Each client's mean over the seeds in which it was scored."""
    held: dict[ClientId, list[float]] = {}
    for found in seeds:
        for client, value in found.items():
            held.setdefault(client, []).append(value)
    return {client: float(np.mean(values)) for client, values in held.items()}
