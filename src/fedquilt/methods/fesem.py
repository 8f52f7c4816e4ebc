"""FeSEM: clients belong to the centre nearest to their model; k-means of models, round by round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedquilt.core.exchange import Reply, Turn
from fedquilt.core.net import Net
from fedquilt.core.objective import Objective
from fedquilt.core.params import Params, sub
from fedquilt.core.record import record
from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId, in_order
from fedquilt.methods.by_distance import ByDistance, Placed
from fedquilt.methods.fedavg import FedAvg
from fedquilt.methods.starts import Starts, Vote


@record
class Kept:
    """The last model of a client, and its examples."""

    model: Params
    examples: int


@record
class Remembering(Placed):
    """Also the last model of each client, if they are remembered."""

    last: dict[ClientId, Kept]


@dataclass(frozen=True, kw_only=True)
class FeSEM(ByDistance):
    """E: r_i = argmin_k |w_i - W_k|^2. M: W_k = average of {w_i : r_i = k}. Then w_i is trained from W_{r_i}.

    Neither E nor M increases sum_i |w_i - W_{r_i}|^2 when every client counts the same (``uniform_mean``) and all of a
    cluster's models are averaged (``memory``, or everybody takes part).

    Args:
        base, n_clusters, starts, reseed_after: See :class:`ByDistance`.
        memory: Average the last models of all members of a cluster, not only of those heard in this round. The server
            then keeps a model for each client.

    Reference: Long, Xie et al., Multi-Center Federated Learning: Clients Clustering for Better Personalization, 2022.
    """

    memory: bool = False

    def init_server(self, seed: Seed) -> Any:
        """Nobody remembered."""
        return Remembering(**vars(super().init_server(seed)), last={})

    def group(
        self, state: Any, heard: Sequence[Reply[Any]], labels: Mapping[ClientId, int], k: int
    ) -> Sequence[Reply[Any]]:
        """With memory, also the members that were not heard, with their last models."""
        found = {r.client: r for r in super().group(state, heard, labels, k)}
        for client, kept in state.last.items():
            if client not in labels and state.clusters.labels[client] == k:
                found[client] = Reply(client, kept.examples, Vote(sub(kept.model, state.models[k]), k))
        return [found[c] for c in in_order(list(found))]

    def up(self, state: Any, replies: Iterable[Reply[Any]], turn: Turn) -> Any:
        """Regroup and average; then remember."""
        heard = list(replies)
        after = super().up(state, heard, turn)
        if not self.memory:
            return after
        last = {**state.last, **{r.client: Kept(self.local(state, r), r.examples) for r in heard}}
        return replace(after, last={c: last[c] for c in in_order(list(last))})


def fesem(
    objective: Objective | Net, n_clusters: int = 3, starts: Starts = "updates", memory: bool = False,
    reseed_after: int = 0, **rest: Any,
) -> FeSEM:  # fmt: skip
    """FeSEM on FedAvg."""
    return FeSEM(
        base=FedAvg(objective=objective, **rest),
        n_clusters=n_clusters,
        starts=starts,
        memory=memory,
        reseed_after=reseed_after,
    )
