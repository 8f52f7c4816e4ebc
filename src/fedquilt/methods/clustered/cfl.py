"""Clustered federated learning by recursive bipartition: a cluster at rest whose clients still pull apart is split."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fedquilt.core.exchange import Context, Reply, everyone
from fedquilt.core.holders import HasDelta
from fedquilt.core.params import flatten
from fedquilt.core.table import ClientId
from fedquilt.errors import InputError
from fedquilt.methods.clustered.grouped import Budget, Grouped, Groups, split
from fedquilt.pieces.clustering.agglomerative import agglomerate
from fedquilt.pieces.clustering.result import ClusterResult


@dataclass(frozen=True)
class Parting:
    """The two sides that a cluster's updates would form by complete linkage on cosine distance; maybe none.

    ``across`` is the largest cosine between clients of the two sides.
    """

    sides: tuple[tuple[ClientId, ...], ...]
    across: float

    @property
    def gap(self) -> float:
        """sqrt((1 - across) / 2), which the paper's criterion compares with gamma."""
        return math.sqrt(max(1 - self.across, 0.0) / 2)


def norms(updates: Mapping[ClientId, Tensor]) -> tuple[float, float]:
    """|mean of the updates|, small where the common model rests; the longest update, large where a client does not."""
    rows = torch.stack([u.double() for u in updates.values()])
    return float(rows.mean(0).norm()), float(rows.norm(dim=1).max())


def parting(updates: Mapping[ClientId, Tensor], context: Context) -> Parting:
    """The sides of one cluster."""
    found = agglomerate(updates, linkage="complete", k=2, max_exact=max(len(updates), 2), seed=context.seed)
    if found.k < 2:
        return Parting((), 1.0)
    first, second = ([c for c in updates if found.labels[c] == j] for j in (0, 1))
    units = {c: u.double() / u.double().norm().clamp_min(1e-300) for c, u in updates.items()}
    across = max(float(units[a] @ units[b]) for a in first for b in second)
    return Parting((tuple(first), tuple(second)), across)


@dataclass(frozen=True, init=False)
class CFL(Grouped[Groups]):
    """All clients train every round; a cluster is split in two when its common model rests and its clients do not.

    Cluster c with updates delta_i is split if |mean delta_i| < eps_1, max |delta_i| > eps_2, it has more than two
    members, and ``calm_rounds`` rounds have passed; with ``gamma``, only if also gamma < sqrt((1 - a) / 2), a the
    largest cosine across the two sides. Both sides begin with the cluster's model and their own updates of this round.

    Args:
        base: How models are trained; its cohort must be everyone.
        eps_1, eps_2: Limits on norms of updates; they depend on the network and the learning rate.
        calm_rounds: No split before so many rounds.
        gamma: The paper's further limit, or None as in the authors' code.

    Reference: Sattler, Müller, Samek, Clustered Federated Learning, 2019.
    """

    budget: Budget = field(default="cluster", init=False)  # everyone is in the cohort
    eps_1: float = 0.4
    eps_2: float = 1.6
    calm_rounds: int = 20
    gamma: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.eps_1 <= 0 or self.eps_2 <= 0:
            raise InputError(f"eps_1 and eps_2 must be above 0, got {self.eps_1} and {self.eps_2}.")
        if self.calm_rounds < 0:
            raise InputError(f"calm_rounds must be at least 0, got {self.calm_rounds}.")
        if self.base.cohort is not everyone:
            raise InputError("CFL compares all members of a cluster in the same round: it needs a cohort of everyone.")

    def merged(self, state: Groups, heard: Sequence[Reply[HasDelta]], context: Context) -> Groups:
        """Split where it is due, then average inside the new clusters."""
        known = state.clusters.labels
        labels = {**known, **{r.client: 0 for r in heard if r.client not in known}}
        state = replace(state, clusters=replace(state.clusters, labels=labels, criterion="bipartition"))
        for k, part in enumerate(split(state.clusters, heard)):
            state = self.parted(state, k, part, context)
        return super().merged(state, heard, context)

    def parted(self, state: Groups, cluster: int, part: Iterable[Reply[HasDelta]], context: Context) -> Groups:
        """The state after looking at one cluster; the side without its smallest member gets a new number."""
        updates = {r.client: flatten(self.base.trained(r.upload.delta)) for r in part}
        if not updates:
            return state
        mean_norm, max_norm = norms(updates)
        told = {f"mean_norm_{cluster}": mean_norm, f"max_norm_{cluster}": max_norm}
        clusters = replace(state.clusters, measures={**state.clusters.measures, **told})
        settled = mean_norm < self.eps_1 and max_norm > self.eps_2 and context.round >= self.calm_rounds
        found = parting(updates, context) if settled and len(updates) > 2 else Parting((), 1.0)
        if not found.sides or (self.gamma is not None and not self.gamma < found.gap):
            return replace(state, clusters=clusters)
        clusters = opened(clusters, cluster, found.sides, context.round)
        return replace(state, clusters=clusters, models=(*state.models, state.models[cluster]))


def opened(found: ClusterResult, cluster: int, sides: tuple[tuple[ClientId, ...], ...], round: int) -> ClusterResult:
    """One more cluster. A member of the old one that was not heard is in neither: it will choose by its loss."""
    stay, leave = set(sides[0]), set(sides[1])
    labels = {c: found.k if c in leave else j for c, j in found.labels.items() if j != cluster or c in stay | leave}
    told = {**found.measures, f"opened_{found.k}_round": float(round)}
    return replace(found, labels=labels, k=found.k + 1, measures=told)
