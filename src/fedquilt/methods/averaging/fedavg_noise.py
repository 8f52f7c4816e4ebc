"""FedAvg+Noise: noise on the averaged model. A baseline of Localize-and-Stitch; not private."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from fedquilt.core.exchange import Context, Reply
from fedquilt.core.holders import HasDelta
from fedquilt.methods.fedavg import FedAvg, S
from fedquilt.pieces.aggregators import Aggregator, noised, uniform_mean


@dataclass(frozen=True, kw_only=True)
class FedAvgNoise(FedAvg):
    """The unweighted mean of the clients' models, then N(0, (noise * std(tensor))^2) on every tensor.

    The noised model is what clients train on next. Nothing is clipped and nothing accounted for: it is NOT
    differential privacy, whatever plots of it are called.

    Args:
        noise: Multiple of each tensor's own standard deviation, >= 0.

    Reference: He et al., Localize-and-Stitch, 2025, a baseline of its project.
    """

    noise: float = 0.04
    aggregate: Aggregator = uniform_mean

    def __post_init__(self) -> None:
        super().__post_init__()
        noised(self.noise)  # checks it

    def up(self, state: S, replies: Iterable[Reply[HasDelta]], context: Context) -> S:
        """Merge the changes, add the noise."""
        return replace(state, shared=noised(self.noise, self.aggregate)(state.shared, replies, context))
