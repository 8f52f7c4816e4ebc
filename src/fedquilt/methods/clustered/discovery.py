"""How clusters are discovered by clients' updates, as options; and whether clients still belong to theirs later.

Now and then clients show their update from the same start again: :class:`Retest` says who has gone astray.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId
from fedquilt.errors import InputError
from fedquilt.pieces.clustering.agglomerative import agglomerate
from fedquilt.pieces.clustering.private import Blur
from fedquilt.pieces.clustering.result import ClusterResult, assign, directions, unit
from fedquilt.pieces.clustering.tree import Cut

Criterion = Literal["threshold", "auto", "silhouette"]
Metric = Literal["cosine", "euclidean", "manhattan"]
Linkage = Literal["average", "complete", "single", "ward"]
Evidence = Literal["update", "weights"]


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
            reclustered instead; 1 for never.
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


@dataclass(frozen=True, init=False)
class DiscoveryOptions:
    """How clusters are found by the clients' updates; the options of every method that does it.

    Args:
        initial_rounds: Rounds before the discovery.
        discover_early: For 'auto': seek clusters before every one of these rounds, too; the first that are more than
            chance stand. Each search costs a training of all who are asked.
        discover_fraction: The share of the clients asked at a discovery, drawn again each time; the others find their
            cluster when they are first asked.
        criterion: 'threshold' merges while the linkage distance is < ``distance_threshold``; 'auto' takes the clusters
            that are more than chance, or one: clients show an update from each half of their samples, and the cut is
            judged by these and by clouds without groups (:func:`fedquilt.pieces.clustering.null.judged`);
            'silhouette' takes the cut with the best silhouette, or one cluster
            (:class:`fedquilt.pieces.clustering.tree.Cut`).
        distance_threshold: For 'threshold'.
        n_clusters: If set, so many clusters instead (Ward's linkage on updates of unit length).
        clustering_metric, linkage: Of the clustering; linkage None is average, or ward with ``n_clusters`` or 'auto'.
        evidence: 'update' clusters delta_i = w_i - w0, 'weights' w_i itself.
        sketch_size: If set, clients send so many numbers of a random projection instead of delta.
        sketch_seed: Of the projection, the same for all.
        min_size: Smaller clusters are merged into the nearest; None for 2 with 'auto' and 1 otherwise.
        max_exact: Above so many clients a sample is clustered and the others join; for 'auto' at most 500.
        recluster_every: If set, every so many rounds all clients are reclustered, from updates of the same w0; a
            new cluster begins with the mean of its members' former models.
        retest_every: If set, every so many rounds all clients show their update from w0 again, and those that no longer
            belong to their cluster move.
        retest_margin, retest_patience, recluster_above: When they move, see :class:`Retest`.
        sketch_clip: If set, what clients show is clipped to this length, see :class:`Blur`.
        sketch_noise: And noised, by this multiple of ``sketch_clip``.
        secret_noise: Draw the noise from system randomness, so that it cannot be reproduced.
    """

    initial_rounds: int = 3
    discover_early: bool = False
    discover_fraction: float = 1.0
    criterion: Criterion = "threshold"
    distance_threshold: float = 0.5
    n_clusters: int | None = None
    clustering_metric: Metric = "cosine"
    linkage: Linkage | None = None
    evidence: Evidence = "update"
    sketch_size: int | None = None
    sketch_seed: int = 0
    min_size: int | None = None
    max_exact: int = 5000
    recluster_every: int | None = None
    retest_every: int | None = None
    retest_margin: float = 0.1
    retest_patience: int = 2
    recluster_above: float = 0.3
    sketch_clip: float | None = None
    sketch_noise: float = 0.0
    secret_noise: bool = False

    @cached_property
    def cut(self) -> Cut:
        """Where merging stops."""
        if self.n_clusters is not None:
            return Cut(k=self.n_clusters)
        if self.criterion == "threshold":
            return Cut(self.distance_threshold)
        return Cut(auto=True) if self.criterion == "auto" else Cut(silhouette=True)

    @property
    def least_size(self) -> int:
        """The least size of a cluster."""
        return self.min_size or (2 if self.cut.auto else 1)

    @cached_property
    def retest(self) -> Retest | None:
        """When a client leaves its cluster, if that is tested."""
        if self.retest_every is None:
            return None
        return Retest(self.retest_every, self.retest_margin, self.retest_patience, self.recluster_above)

    @cached_property
    def blur(self) -> Blur | None:
        """What is done to what clients show. Noise needs a clip, which says how much it hides."""
        if self.sketch_clip is not None:
            return Blur(self.sketch_clip, self.sketch_noise, self.secret_noise)
        if self.sketch_noise or self.secret_noise:
            hides = f"sketch_noise = {self.sketch_noise} hides nothing"
            raise InputError(f"{hides} without sketch_clip, the greatest length of a vector.")
        return None


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
