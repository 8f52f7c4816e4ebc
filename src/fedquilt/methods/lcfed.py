"""LCFed: pulled to the cluster's model and to everybody's embedding; regrouped by few principal directions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from fedquilt.core.errors import InputError
from fedquilt.core.exchange import Reply, Turn
from fedquilt.core.net import Net
from fedquilt.core.objective import Objective
from fedquilt.core.params import Names, Params, everything_but, pick, sub
from fedquilt.core.record import record
from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId, Site
from fedquilt.core.train import Job
from fedquilt.methods.by_distance import ByDistance, Placed, Sent
from fedquilt.methods.fedavg import FedAvg, Upload, net_of
from fedquilt.methods.starts import Vote
from fedquilt.pieces.clustering.centres import principal
from fedquilt.pieces.objectives import prox


@record
class Projected(Placed):
    """Also everybody's embedding, and the directions [weights, D] that models are compared along."""

    embedding: Params
    directions: Tensor


@record
class WithEmbedding(Sent):
    """Also everybody's embedding."""

    embedding: Params


@dataclass(frozen=True, kw_only=True)
class LCFed(ByDistance):
    """Client i trains f_i(w) + mu/2 |w - W_k|^2 + lam/2 |phi - Phi|^2 from W_k; phi is w without the head.

    Then k <- argmax_k cos(M'(w_i - w0), M'(W_k - w0)), W_k <- average of its members, Phi <- average of all phi_i. The
    columns of M are the principal directions of the models of some clients after one pass from the first model w0.

    Args:
        base, n_clusters, reseed_after, start_at: See :class:`ByDistance`; a global start is at Phi with the first
            head. Starts are always 'updates': M needs these passes too.
        mu, lam: Strength of the pulls, >= 0.
        embedding: The names of phi.
        dimensions: Columns of M; at most one less than clients sampled, and no more than there is variance for.
        sample: How many clients M is made of.

    Reference: Zhang et al., LCFed: An Efficient Clustered Federated Learning Framework for Heterogeneous Data, 2025.
    """

    mu: float = 2.0
    lam: float = 1.0
    embedding: Names
    dimensions: int = 50
    sample: int = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        for strength in (self.mu, self.lam):
            prox(strength)  # checks it
        if self.starts != "updates" or self.dimensions < 1 or self.sample < 1:
            raise InputError(
                "LCFed needs starts 'updates', dimensions >= 1 and sample >= 1, "
                f"got {self.starts!r}, {self.dimensions} and {self.sample}."
            )

    @property
    def objective(self) -> Objective:
        """With both pulls."""
        return self.base.loss.plus(prox(self.mu), prox(self.lam, "embedding"))

    @property
    def metric(self) -> str:
        """Directions count, not lengths."""
        return "cosine"

    def init_server(self, seed: Seed) -> Any:
        """No directions yet."""
        fresh = super().init_server(seed)
        phi = pick(self.embedding, fresh.origin)
        return Projected(**vars(fresh), embedding=phi, directions=torch.zeros(len(self.vector(fresh.origin)), 0))

    def place(self, state: Any, replies: Iterable[Reply[Vote]], turn: Turn) -> Any:
        """The starts, and M from the passes of a sample."""
        heard = list(replies)
        if not heard:
            return state
        drawn = turn.seed.fold("sample").numpy().permutation(len(heard))[: self.sample]
        rows = torch.stack([self.vector(heard[i].upload.delta) for i in sorted(drawn)])
        directions = principal(rows, self.dimensions).float()
        after = replace(super().place(state, heard, turn), directions=directions)
        measured = replace(after.clusters, measures={"dimensions": float(directions.shape[1])})
        return replace(after, clusters=measured)

    def view(self, state: Any, params: Params) -> Tensor:
        """M' (w - w0)."""
        directions: Tensor = state.directions
        return (self.vector(params) - self.vector(state.origin)).double() @ directions.double()

    def down(self, state: Any, client_id: ClientId) -> WithEmbedding:
        """Also everybody's embedding."""
        return WithEmbedding(**vars(super().down(state, client_id)), embedding=state.embedding)

    def begin(self, state: Any) -> Params:
        """Everybody's embedding with the first model's head."""
        return {**state.origin, **state.embedding}

    def start(self, download: Any, client: Any, site: Site, turn: Turn) -> Job:
        """The embedding is for the pull only."""
        job = super().start(download, client, site, turn)
        return replace(job, fixed={**job.fixed, "embedding": download.embedding})

    def up(self, state: Any, replies: Iterable[Reply[Any]], turn: Turn) -> Any:
        """Regroup and average; the embedding over everybody."""
        heard = list(replies)
        after = super().up(state, heard, turn)
        changes = [replace(r, upload=Upload(self._phi_change(state, r))) for r in heard]
        return replace(
            after, embedding=self.base.aggregate(state.embedding, changes, turn),
            clusters=replace(after.clusters, measures=state.clusters.measures),
        )  # fmt: skip

    def _phi_change(self, state: Any, reply: Reply[Any]) -> Params:
        return sub(pick(self.embedding, self.local(state, reply)), state.embedding)


def lcfed(
    objective: Objective | Net, n_clusters: int = 3, mu: float = 2.0, lam: float = 1.0, dimensions: int = 50,
    sample: int = 20, head: tuple[str, ...] = ("head",), reseed_after: int = 0,
    start_at: Literal["cluster", "global"] = "cluster", **rest: Any,
) -> LCFed:  # fmt: skip
    """LCFed on FedAvg; the embedding is all but the ``head``."""
    return LCFed(
        base=FedAvg(objective=objective, **rest), n_clusters=n_clusters, reseed_after=reseed_after, mu=mu, lam=lam,
        embedding=everything_but(net_of(objective).under(*head)), dimensions=dimensions, sample=sample,
        start_at=start_at,
    )  # fmt: skip
