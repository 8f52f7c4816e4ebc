"""A method with clusters for tests: FedAvg that says who is in which cluster, and can place a newcomer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedquilt.core.exchange import Context, Exchange, Reply
from fedquilt.core.params import Params
from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId, Site
from fedquilt.methods.fedavg import FedAvg
from fedquilt.methods.on_base import OnBase
from fedquilt.pieces.clustering.agglomerative import agglomerate
from fedquilt.pieces.clustering.result import ClusterResult, from_labels
from fedquilt.records.record import record

ANGLES = torch.eye(2)


@record
class State:
    shared: Params
    clusters: ClusterResult


def first_half(ids: Iterable[ClientId], last: int) -> dict[ClientId, int]:
    """Clients up to ``last`` in cluster 0, the others in 1."""
    return {c: int(int(c) > last) for c in ids}


@dataclass(frozen=True, kw_only=True)
class Halves(OnBase):
    """After the first round clients 0 and 1 are together, after the second client 1 joins the others.

    With ``directions``, a newcomer whose commonest label is 0 looks like cluster 0, others like cluster 1.
    """

    base: FedAvg
    directions: bool = True

    def init_server(self, seed: Seed) -> State:
        return State(self.base.init_server(seed).shared, ClusterResult({}, 1, "not yet"))

    def exchanges(self) -> tuple[Exchange, ...]:
        (train,) = self.base.exchanges()
        return (replace(train, up=self.up),)

    def up(self, state: State, replies: Iterable[Reply[Any]], context: Context) -> State:
        heard = list(replies)
        labels = first_half(sorted(r.client for r in heard), 1 if context.round == 0 else 0)
        vectors = {c: ANGLES[k] + 0.01 * int(c) * ANGLES[0] for c, k in labels.items()}
        found = agglomerate(vectors, threshold=0.5, seed=context.seed) if self.directions else None
        clusters = found or from_labels(labels, None, "halves")
        return State(self.base.aggregate(state.shared, heard, context), clusters)

    def welcome(self, state: State) -> State:
        return state

    def vector(self, welcome: State, client: Any, site: Site, context: Context) -> Tensor:
        return ANGLES[0 if int(site.train.whole().y.mode().values) == 0 else 1]


def halves(objective: Any, directions: bool = True, **rest: Any) -> Halves:
    """From recipes."""
    return Halves(base=FedAvg(objective=objective, **rest), directions=directions)
