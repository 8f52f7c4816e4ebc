"""FedGroup: groups found from short pre-trainings before the first round; others join when first asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedquilt.core.exchange import Context, Reply, at_random, plain
from fedquilt.core.holders import HasDelta
from fedquilt.core.objective import Term
from fedquilt.core.params import Params, flatten, norm, weighted_mean
from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId, Site, in_order
from fedquilt.core.train import Job, Trained
from fedquilt.errors import InputError
from fedquilt.methods.clustered.discovery import DiscoveryOptions, Evidence
from fedquilt.methods.clustered.flhc import ByUpdates
from fedquilt.methods.clustered.grouped import Budget, Discovery, Grouped, Groups, down_anchor
from fedquilt.methods.fedavg import C, Upload
from fedquilt.pieces.aggregators import uniform_mean
from fedquilt.pieces.clustering.result import ClusterResult, canonical, from_labels, largest, unit
from fedquilt.pieces.clustering.tree import Cut, by_distances
from fedquilt.pieces.objectives import prox

MOST_STEPS = 20  # of K-means


def edc(updates: Tensor, directions: int) -> Tensor:
    """[n, directions]: cosines of each update [n, P] with the first right singular directions; not centred."""
    right: Tensor = torch.linalg.svd(updates.double(), full_matrices=False).Vh[:directions]
    return _units(updates) @ right.T


def madc(updates: Tensor) -> Tensor:
    """[n, n]: mean over z other than i and j of |cos(i, z) - cos(j, z)|; 0 where there is no such z."""
    rows = _units(updates)
    alike, count = rows @ rows.T, len(rows)
    far = torch.zeros(count, count, dtype=torch.float64)
    for i in range(count):
        gaps = (alike[i] - alike).abs()  # row j: over z
        gaps[:, i] = 0
        gaps.fill_diagonal_(0)
        far[i] = gaps.sum(1) / max(count - 2, 1)
    far.fill_diagonal_(0)
    return far


def _units(updates: Tensor) -> Tensor:
    wide = updates.double()
    return wide / wide.square().sum(1, keepdim=True).sqrt()


def grouped(vectors: Mapping[ClientId, Tensor], k: int, measure: str, seed: Seed) -> ClusterResult:
    """k groups: K-means on EDC (at most 20 iterations), or complete linkage on MADC.

    Directions are the groups' mean updates at length 1. Clients whose update is zero or not finite join the largest.
    """
    if measure not in ("edc", "madc"):
        raise InputError(f"measure must be 'edc' or 'madc', got {measure!r}.")
    ids = in_order(list(vectors))
    heard = [c for c in ids if unit(vectors[c]) is not None]
    silent = [c for c in ids if unit(vectors[c]) is None]
    found = _groups(heard, vectors, min(k, len(heard)), measure, seed) if heard else from_labels({}, None, "")
    notes = found.warnings
    if k > len(heard):
        notes = (*notes, f"{k} groups were asked for, but only {len(heard)} clients can be told apart")
    if silent:
        notes = (*notes, f"{len(silent)} clients sent a zero or non-finite update and joined the largest group")
    labels = canonical(found.labels | dict.fromkeys(silent, largest(found)))
    aims = _aims(labels, heard, vectors)
    return replace(
        found,
        labels=labels,
        k=max(labels.values()) + 1,
        criterion=f"k = {k}, {measure}",
        directions=aims,
        warnings=notes,
    )


def _groups(ids: list[ClientId], vectors: Mapping[ClientId, Tensor], k: int, measure: str, seed: Seed) -> ClusterResult:
    updates = torch.stack([vectors[c].detach().double().flatten() for c in ids])
    if measure == "madc":
        rows, columns = np.triu_indices(len(ids), 1)
        return by_distances(ids, madc(updates).numpy()[rows, columns], "complete", Cut(k=k))
    return from_labels(dict(zip(ids, _k_means(edc(updates, k).numpy(), k, seed), strict=True)), None, "")


def _k_means(rows: NDArray[np.float64], k: int, seed: Seed) -> list[int]:
    from sklearn.cluster import KMeans

    draw = int(seed.fold("k_means").numpy().integers(2**31))
    distinct = len(np.unique(rows.round(12), axis=0))  # asking for more only earns a warning
    return [
        int(j) for j in KMeans(min(k, distinct), max_iter=MOST_STEPS, n_init=10, random_state=draw).fit(rows).labels_
    ]


def _aims(labels: Mapping[ClientId, int], heard: list[ClientId], vectors: Mapping[ClientId, Tensor]) -> Tensor | None:
    """Mean updates at length 1; a mean that cancels out points nowhere."""
    if not heard:
        return None
    means = []
    for j in range(max(labels.values()) + 1):
        rows = [vectors[c].detach().double().flatten() for c in heard if labels[c] == j]
        mean = torch.stack(rows).mean(0)
        one = unit(mean)
        means.append(torch.zeros_like(mean) if one is None else one)
    return torch.stack(means).float()


@dataclass(frozen=True, init=False)
class FedGroup(Grouped[Groups]):
    """Groups by decomposed cosines of updates, with cold start.

    The first round begins with an exchange to min(pretrain_scale n_clusters, N) clients, which is no round of its own:
    each takes ``pretrain_steps`` steps from w0 and sends its update. A group's first model is the plain mean of its
    members' models, its direction the mean of their updates. A client that is asked later for the first time takes the
    same steps from w0, and joins the group with the smallest (1 - cos(update, direction)) / 2 for good.

    Args:
        base, budget: See :class:`Grouped`.
        n_clusters: How many groups.
        pretrain_scale, pretrain_steps: How many clients per group are pre-trained, and how far.
        measure: 'edc' or 'madc'; see :mod:`fedquilt.methods.clustered.fedgroup`.
        group_agg_lr: Mixing of groups after each round: group g becomes the weighted mean of all, with weight 1 for
            itself and group_agg_lr / |W_j| for every other; 0 for none.
        mu: Strength of a pull to the round's start (FedGrouProx), >= 0.

    Reference: Duan et al., FedGroup, 2021; Flexible Clustered Federated Learning (FlexCFL), 2021.

    Example:
        >>> from fedquilt import Net, models
        >>> method = FedGroup(Net.of(models.MLP, features=64, classes=10), n_clusters=2)
    """

    n_clusters: int = 3
    pretrain_scale: int = 20
    pretrain_steps: int = 50
    measure: Literal["edc", "madc"] = "edc"
    group_agg_lr: float = 0.0
    mu: float = 0.0
    budget: Budget = "global"

    def __post_init__(self) -> None:
        for name in ("n_clusters", "pretrain_scale", "pretrain_steps"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, got {getattr(self, name)}.")
        if self.group_agg_lr < 0:
            raise InputError(f"group_agg_lr must be >= 0, got {self.group_agg_lr}.")
        if self.measure not in ("edc", "madc"):
            raise InputError(f"measure must be 'edc' or 'madc', got {self.measure!r}.")
        super().__post_init__()

    @cached_property
    def pulls(self) -> tuple[Term, ...]:
        """To the round's start."""
        return (prox(self.mu),) if self.mu else ()

    @cached_property
    def discovery(self) -> Discovery:
        """A short training of some clients from w0."""
        (train,) = self.base.exchanges()
        work = train.training(finish=self.sense, steps=self.pretrain_steps)
        cohort = at_random(self.pretrain_scale * self.n_clusters)
        exchange = replace(
            work, name="discover", down=down_anchor, up=self.form, check=self.check, cohort=cohort, codec=plain
        )
        return Discovery(exchange, lambda upload, clusters, anchor: self.shown(upload))

    def shown(self, upload: Upload) -> Tensor:
        """What groups have directions of."""
        return flatten(self.base.trained(upload.delta))

    def sense(self, job: Job, trained: Trained, client: C, site: Site, context: Context) -> tuple[C, Upload]:
        """The update; the client keeps nothing."""
        return client, self.base.finish(job, trained, client, site, context)[1]

    def form(self, state: Groups, replies: Iterable[Reply[Upload]], context: Context) -> Groups:
        """Group the updates; a group's model is the plain mean of its members'."""
        heard = list(replies)
        if not heard:
            return state
        vectors = {r.client: self.shown(r.upload) for r in heard}
        found, start = grouped(vectors, self.n_clusters, self.measure, context.seed), state.models[0]
        models = [
            uniform_mean(start, [r for r in heard if found.labels[r.client] == k], context) for k in range(found.k)
        ]
        return replace(state, models=tuple(models), clusters=found, anchor=start)

    def merged(self, state: Groups, heard: Sequence[Reply[HasDelta]], context: Context) -> Groups:
        """Average inside groups, then mix them."""
        after = super().merged(state, heard, context)
        if not self.group_agg_lr:
            return after
        weights = [self.group_agg_lr / max(norm(self.base.trained(m)), 1e-12) for m in after.models]

        def mixed(g: int) -> Params:
            return weighted_mean((1.0 if j == g else weights[j], m) for j, m in enumerate(after.models))

        return replace(after, models=tuple(mixed(g) for g in range(len(after.models))))


@dataclass(frozen=True, init=False)
class FedGroupParams(DiscoveryOptions, Grouped[Groups]):
    """What a published comparison called FedGroup: weights, not updates, clustered by cosine after a warm-up.

    Weights trained from one start are almost parallel, so a threshold of 0.5 finds one cluster and this is FedAvg. It
    serves to reproduce that comparison, and for nothing else.

    Args:
        base, budget: See :class:`Grouped`; the other options are those of :class:`DiscoveryOptions`.

    Reference: The comparison of the project CFLA 1.0.0.

    Example:
        >>> from fedquilt import Net, models
        >>> method = FedGroupParams(Net.of(models.MLP, features=64, classes=10), n_clusters=2)
    """

    evidence: Evidence = "weights"

    @cached_property
    def discovery(self) -> Discovery:
        """By weights."""
        return ByUpdates(self, self.base, self.opened).discovery()
