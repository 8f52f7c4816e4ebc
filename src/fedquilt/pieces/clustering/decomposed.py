"""FedGroup's two measures of how alike clients' updates are, and the groups they give.

EDC describes client i by the cosines of its update with the first singular directions of all updates; clients are
compared by the Euclidean distance of these rows. MADC(i, j) is the mean over other clients z of
|cos(u_i, u_z) - cos(u_j, u_z)|.

Reference: Duan et al., FedGroup: Efficient Clustered Federated Learning via Decomposed Data-Driven Measure, 2021.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId, in_order
from fedquilt.errors import InputError
from fedquilt.pieces.clustering.result import ClusterResult, canonical, from_labels, largest, unit
from fedquilt.pieces.clustering.tree import Cut, by_distances

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
