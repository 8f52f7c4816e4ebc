"""Do clients still belong to their clusters? Now and then they show their update from the same start again."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId
from fedquilt.errors import InputError
from fedquilt.pieces.clustering.agglomerative import agglomerate
from fedquilt.pieces.clustering.result import ClusterResult, assign, directions, unit


@dataclass(frozen=True)
class Retest:
    """When a client leaves its cluster.

    At a test, client i is astray if another cluster is nearer by more than ``margin``, or if no cluster is within the
    distance at which the clustering stopped merging. Astray ``patience`` times in a row it moves to the nearest
    cluster, or to a new one together with others like it. Distances are d_k = 1 - (v/|v|) . s_k, with the directions
    s_k of the last clustering.

    Args:
        every: Rounds from test to test.
        margin: Of a cosine distance, >= 0.
        patience: Tests, >= 1.
        recluster_above: When more than this share of the clients has moved since the last clustering, all are
            clustered anew instead; 1 for never.
    """

    every: int
    margin: float = 0.1
    patience: int = 2
    recluster_above: float = 0.3

    def __post_init__(self) -> None:
        if self.every < 1 or self.patience < 1 or not self.margin >= 0 or not 0 <= self.recluster_above <= 1:
            raise InputError(
                "Testing clusters needs retest_every >= 1, retest_margin >= 0, retest_patience >= 1 and "
                f"recluster_above from 0 to 1, got {self.every}, {self.margin}, {self.patience} and "
                f"{self.recluster_above}."
            )

    def strikes(
        self, found: ClusterResult, vectors: Mapping[ClientId, Tensor], before: Mapping[ClientId, int]
    ) -> dict[ClientId, int]:
        """How often in a row each client was astray; vectors that say nothing leave that as it is."""
        after = dict(before)
        for client, vector in vectors.items():
            way, own = unit(vector), found.labels.get(client)
            if way is None or own is None or found.directions is None:
                continue
            placed = assign(found, vector)
            far = float(1 - found.directions[own].double() @ way)
            astray = placed.cluster is None or far - placed.distance > self.margin
            after[client] = after.get(client, 0) + 1 if astray else 0
        return {c: n for c, n in after.items() if n}

    def moved(
        self,
        found: ClusterResult,
        vectors: Mapping[ClientId, Tensor],
        strikes: Mapping[ClientId, int],
        min_size: int,
        seed: Seed,
    ) -> tuple[ClusterResult, dict[int, int]]:
        """The clusters after moving those astray for long enough; of each new cluster, the nearest old one.

        A move that would leave or open a cluster of fewer than ``min_size`` members is not made.
        """
        leaving = {c: vectors[c] for c in vectors if strikes.get(c, 0) >= self.patience}
        placed = {c: assign(found, v) for c, v in leaving.items()}
        members = _Moves(dict(found.labels), Counter(found.labels.values()), min_size)
        for client, place in placed.items():
            if place.cluster is not None and members.may_leave(client):
                members.move(client, place.cluster)
        far = {c: v for c, v in leaving.items() if placed[c].cluster is None}
        opened, aims = _opened(found, far, members, seed)
        nearest = {found.k + i: placed[first].nearest for i, first in enumerate(opened)}
        return replace(found, labels=members.labels, k=found.k + len(nearest), directions=aims), nearest


def _opened(
    found: ClusterResult, far: Mapping[ClientId, Tensor], members: _Moves, seed: Seed
) -> tuple[list[ClientId], Tensor | None]:
    """Move clients that are far from all clusters to new ones: a client of each, and all directions after that."""
    aims = found.directions
    firsts: list[ClientId] = []
    for group in _groups(far, found, seed) if aims is not None else ():
        going = [c for c in group if members.may_leave(c)]
        if len(going) < members.min_size or aims is None:
            continue
        for client in going:
            members.move(client, found.k + len(firsts))
        firsts.append(going[0])
        way = directions(dict.fromkeys(going, 0), far)
        assert way is not None  # none of these says nothing
        aims = torch.cat([aims, way])
    return firsts, aims


@dataclass
class _Moves:
    """Who is where while clients move, and how many are."""

    labels: dict[ClientId, int]
    sizes: Counter[int]
    min_size: int

    def may_leave(self, client: ClientId) -> bool:
        """Whether its cluster stays large enough, or ends."""
        return not 0 < self.sizes[self.labels[client]] - 1 < self.min_size

    def move(self, client: ClientId, cluster: int) -> None:
        """To another cluster."""
        self.sizes[self.labels[client]] -= 1
        self.sizes[cluster] += 1
        self.labels[client] = cluster


def _groups(far: Mapping[ClientId, Tensor], found: ClusterResult, seed: Seed) -> list[list[ClientId]]:
    """Clients that are far from all clusters, by likeness among themselves."""
    limit = found.measures.get("threshold", math.inf)
    if not far or math.isinf(limit):
        return []
    among = agglomerate(far, threshold=limit, seed=seed)
    return [[c for c in far if among.labels[c] == k] for k in range(among.k)]
