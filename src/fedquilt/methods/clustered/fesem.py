"""FeSEM: clients belong to the centre nearest to their model; k-means of models, round by round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from fedquilt.core.exchange import Context, Reply
from fedquilt.core.params import Params, sub
from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId, in_order
from fedquilt.methods.clustered.by_distance import Nearest, PlacedCentres
from fedquilt.methods.clustered.regrouping import Regrouping
from fedquilt.methods.clustered.starts import ClusterVote, HasVote, local
from fedquilt.methods.fedavg import Client
from fedquilt.records.record import record


@record(name="fedquilt.methods.fesem:Kept", written={"samples": "examples"})
class LastModel:
    """The last model of a client, and its examples."""

    model: Params
    samples: int


@record(name="fedquilt.methods.fesem:Remembering")
class Remembering(PlacedCentres):
    """Also the last model of each client, if they are remembered."""

    last: dict[ClientId, LastModel]


@dataclass(frozen=True, init=False)
class FeSEM(Regrouping[Remembering, Client]):
    """E: r_i = argmin_k |w_i - W_k|^2. M: W_k = average of {w_i : r_i = k}. Then w_i is trained from W_{r_i}.

    Neither E nor M increases sum_i |w_i - W_{r_i}|^2 when every client counts the same (``uniform_mean``) and all of a
    cluster's models are averaged (``memory``, or everybody takes part).

    Args:
        base, n_clusters, starts: See :class:`Regrouping`.
        memory: Average the last models of all members of a cluster, not only of those that replied in this round. The
            server then keeps a model for each client.
        reseed_after: See :class:`fedquilt.methods.clustered.by_distance.Nearest`.

    Reference: Long, Xie et al., Multi-Center Federated Learning: Clients Clustering for Better Personalization, 2022.

    Example:
        >>> from fedquilt import Net, models
        >>> method = FeSEM(Net.of(models.MLP, features=64, classes=10), n_clusters=2)
    """

    memory: bool = False
    reseed_after: int = 0

    @cached_property
    def rule(self) -> Nearest:
        """By squared distance."""
        return Nearest(self.vector, reseed_after=self.reseed_after)

    def init_server(self, seed: Seed) -> Remembering:
        """Nobody remembered."""
        return Remembering(**vars(super().init_server(seed)), last={})

    def group(
        self, state: Remembering, heard: Sequence[Reply[HasVote]], labels: Mapping[ClientId, int], k: int
    ) -> Sequence[Reply[HasVote]]:
        """With memory, also the members that were not heard, with their last models."""
        found = {r.client: r for r in super().group(state, heard, labels, k)}
        for client, kept in state.last.items():
            if client not in labels and state.clusters.labels[client] == k:
                found[client] = Reply(client, kept.samples, ClusterVote(sub(kept.model, state.models[k]), k))
        return [found[c] for c in in_order(list(found))]

    def up(self, state: Remembering, replies: Iterable[Reply[HasVote]], context: Context) -> Remembering:
        """Regroup and average; then remember."""
        heard = list(replies)
        after = super().up(state, heard, context)
        if not self.memory:
            return after
        last = {**state.last, **{r.client: LastModel(local(state, r), r.samples) for r in heard}}
        return replace(after, last={c: last[c] for c in in_order(list(last))})
