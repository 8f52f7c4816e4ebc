"""CGPFL, a reading: clients are pulled to the model of their context and regrouped by how near theirs came."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from fedquilt.core.errors import InputError
from fedquilt.core.net import Net
from fedquilt.core.params import Params
from fedquilt.core.train import Objective
from fedquilt.methods.by_distance import ByDistance
from fedquilt.methods.fedavg import FedAvg
from fedquilt.methods.regrouping import Starts
from fedquilt.pieces.clustering.centres import METRICS
from fedquilt.pieces.objectives import prox


@dataclass(frozen=True, kw_only=True)
class CGPFL(ByDistance):
    """Client i trains f_i(w) + mu/2 |w - W_k|^2 from the model W_k of its context, then goes to the nearest context.

    Args:
        base, n_clusters, starts, reseed_after: See :class:`ByDistance`.
        mu: Strength of the pull, >= 0.
        measure: 'squared': argmin_k |w_i - W_k|^2. 'cosine': argmax_k cos(w_i - w0, W_k - w0), w0 the first model.

    Reference: Tang, Guo, Guo, Personalized Federated Learning With Contextualized Generalization, 2022.
    """

    mu: float = 1.0
    measure: Literal["squared", "cosine"] = "squared"

    def __post_init__(self) -> None:
        super().__post_init__()
        prox(self.mu)  # checks it
        if self.measure not in METRICS:
            raise InputError(f"metric must be one of {', '.join(METRICS)}, got {self.measure!r}.")

    @property
    def objective(self) -> Objective:
        """With the pull."""
        return self.base.loss.plus(prox(self.mu))

    @property
    def metric(self) -> str:
        """As given."""
        return self.measure

    def view(self, state: Any, params: Params) -> Tensor:
        """For cosines, the way from the first model: whole models are almost parallel."""
        whole = self.vector(params)
        return whole - self.vector(state.origin) if self.measure == "cosine" else whole


def cgpfl(
    objective: Objective | Net, n_clusters: int = 3, mu: float = 1.0, metric: Literal["squared", "cosine"] = "squared",
    starts: Starts = "updates", reseed_after: int = 0, **rest: Any,
) -> CGPFL:  # fmt: skip
    """CGPFL on FedAvg."""
    base = FedAvg(objective=objective, **rest)
    return CGPFL(base=base, n_clusters=n_clusters, starts=starts, reseed_after=reseed_after, mu=mu, measure=metric)
