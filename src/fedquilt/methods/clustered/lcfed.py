"""LCFed: pulled to the cluster's model and to the common embedding; regrouped by few principal directions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fedquilt.core.exchange import Context, Reply
from fedquilt.core.objective import Objective
from fedquilt.core.params import Names, Params, everything_but, pick, sub
from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId, Site
from fedquilt.core.train import Job
from fedquilt.errors import InputError
from fedquilt.methods.clustered.by_distance import BegunOffer, Nearest, PlacedCentres
from fedquilt.methods.clustered.regrouping import Regrouping
from fedquilt.methods.clustered.starts import ClusterVote, HasVote, StartAt, Starts, local
from fedquilt.methods.fedavg import Client, Upload
from fedquilt.pieces.clustering.centres import principal
from fedquilt.pieces.objectives import prox
from fedquilt.records.record import record


@record(name="fedquilt.methods.lcfed:Projected")
class Projected(PlacedCentres):
    """Also the common embedding, and the directions [weights, D] that models are compared along."""

    embedding: Params
    directions: Tensor


@record(name="fedquilt.methods.lcfed:WithEmbedding")
class WithEmbedding(BegunOffer):
    """Also the common embedding."""

    embedding: Params


@dataclass(frozen=True, init=False)
class LCFed(Regrouping[Projected, Client]):
    """Client i trains f_i(w) + mu/2 |w - W_k|^2 + lam/2 |phi - Phi|^2 from W_k; phi is w without the head.

    Then k <- argmax_k cos(M'(w_i - w0), M'(W_k - w0)), W_k <- average of its members, Phi <- average of all phi_i. The
    columns of M are the principal directions of the models of some clients after one pass from the first model w0:
    starts are always 'updates'.

    Args:
        base, n_clusters: See :class:`Regrouping`.
        mu, lam: Strengths of the proximal terms, >= 0.
        dimensions: Columns of M; at most one less than clients sampled, and no more than there is variance for.
        sample: How many clients M is made of.
        head: The parts of the network that are not in phi.
        reseed_after: See :class:`fedquilt.methods.clustered.by_distance.Nearest`.
        start_at: 'cluster' begins local training at the cluster's model; 'global' at Phi with the first head, a stale
            start that only serves to reproduce published runs.

    Reference: Zhang et al., LCFed: An Efficient Clustered Federated Learning Framework for Heterogeneous Data, 2025.

    Example:
        >>> from fedquilt import Net, models
        >>> method = LCFed(Net.of(models.MLP, features=64, classes=10), n_clusters=2)
    """

    starts: Starts = field(default="updates", init=False)
    mu: float = 2.0
    lam: float = 1.0
    dimensions: int = 50
    sample: int = 20
    head: tuple[str, ...] = ("head",)
    reseed_after: int = 0
    start_at: StartAt = "cluster"

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.embedding  # checks it
        if self.dimensions < 1 or self.sample < 1:
            raise InputError(f"LCFed needs dimensions >= 1 and sample >= 1, got {self.dimensions} and {self.sample}.")

    @cached_property
    def embedding(self) -> Names:
        """The names of phi."""
        return everything_but(self.net.under(*self.head))

    @cached_property
    def rule(self) -> Nearest:
        """By cosines of M' (w - w0)."""
        return Nearest(self.vector, "cosine", self.reseed_after, self.start_at, _projected)

    @cached_property
    def objective(self) -> Objective:
        """With both pulls."""
        return self.base.loss.plus(prox(self.mu), prox(self.lam, "embedding"))

    def init_server(self, seed: Seed) -> Projected:
        """No directions yet."""
        fresh = super().init_server(seed)
        first = fresh.models[0]
        return Projected(
            **vars(fresh), embedding=pick(self.embedding, first), directions=torch.zeros(len(self.vector(first)), 0)
        )

    def place(self, state: Projected, replies: Iterable[Reply[ClusterVote]], context: Context) -> Projected:
        """The starts, and M from the passes of a sample."""
        heard = list(replies)
        if not heard:
            return state
        drawn = context.seed.fold("sample").numpy().permutation(len(heard))[: self.sample]
        rows = torch.stack([self.vector(heard[i].upload.delta) for i in sorted(drawn)])
        directions = principal(rows, self.dimensions).float()
        after = replace(super().place(state, heard, context), directions=directions)
        measured = replace(after.clusters, measures={"dimensions": float(directions.shape[1])})
        return replace(after, clusters=measured)

    def down(self, state: Projected, client_id: ClientId) -> WithEmbedding:
        """Also the common embedding."""
        sent = self.rule.offer(state, client_id)
        begin = {**sent.begin, **state.embedding} if sent.begin else {}
        return WithEmbedding(sent.models, sent.common, sent.yours, begin, state.embedding)

    def start(self, download: Any, client: Client, site: Site, context: Context) -> Job:
        """The embedding is for the pull only."""
        job = super().start(download, client, site, context)
        return replace(job, fixed={**job.fixed, "embedding": download.embedding})

    def up(self, state: Projected, replies: Iterable[Reply[HasVote]], context: Context) -> Projected:
        """Regroup and average; the embedding over everybody."""
        heard = list(replies)
        after = super().up(state, heard, context)
        changes = [Reply(r.client, r.samples, Upload(self._phi_change(state, r))) for r in heard]
        return replace(after, embedding=self.base.aggregate(state.embedding, changes, context))

    def _phi_change(self, state: Projected, reply: Reply[HasVote]) -> Params:
        return sub(pick(self.embedding, local(state, reply)), state.embedding)


def _projected(state: Projected, way: Tensor) -> Tensor:
    """M' (w - w0)."""
    return way.double() @ state.directions.double()
