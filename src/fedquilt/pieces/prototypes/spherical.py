"""Spherical k-means: directions that many unit vectors share."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fedquilt.core.seed import Seed
from fedquilt.errors import InputError

Init = Literal["random", "++"]
Reseed = Literal["random", "farthest"]


class Clusters(NamedTuple):
    """Unit centroids [k, D], the label of each row, rows of each centroid, and how it went.

    ``objectives`` holds sum_i max_j cos(x_i, c_j) of every iteration, ``reseeded`` the iterations (from 0) that had to
    re-seed an empty cluster.
    """

    centroids: Tensor
    labels: Tensor
    counts: Tensor
    objectives: tuple[float, ...]
    reseeded: tuple[int, ...]

    @property
    def objective(self) -> float:
        """The last one."""
        return self.objectives[-1] if self.objectives else 0.0

    @property
    def iterations(self) -> int:
        """How many there were."""
        return len(self.objectives)


def spherical_kmeans(
    x: Tensor,
    k: int,
    seed: Seed,
    *,
    init: Init | Tensor = "random",
    iterations: int = 100,
    tolerance: float = 1e-4,
    reseed: Reseed = "random",
) -> Clusters:
    """Cluster the directions of rows x [n, D]; k is at most n.

    Label: the centroid of greatest cosine. Centroid: the mean of its rows, at length 1. It ends when the centroids of
    two iterations are nearer than ``tolerance`` (Frobenius norm), or after ``iterations``.

    Args:
        init: 'random' rows, '++' (rows far from those chosen before are likelier), or centroids to go on from [j, D]:
            the first k of them, and if j < k random rows besides.
        reseed: Where an empty cluster begins anew: at a 'random' row, or at the row 'farthest' from its centroid.
    """
    if k < 1 or iterations < 1:
        raise InputError(f"k-means needs k and iterations of at least 1, got {k} and {iterations}.")
    if x.dim() != 2:
        raise InputError(f"k-means clusters rows [n, D], got a tensor of shape {tuple(x.shape)}.")
    if not len(x):
        return Clusters(x.float(), torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64), (), ())
    points, draw = F.normalize(x.detach().float(), dim=1), seed.fold("k-means").torch()
    centroids = _begin(points, min(k, len(points)), init, draw)
    objectives, reseeded, moved = list[float](), list[int](), True
    while moved and len(objectives) < iterations:
        near, labels = (points @ centroids.T).max(1)
        objectives.append(float(near.sum(dtype=torch.float64)))
        new, empty = _means(points, labels, centroids)
        if len(empty):
            new[empty] = points[_elsewhere(near, len(empty), reseed, draw)]
            reseeded.append(len(objectives) - 1)
        moved = bool(len(empty)) or float((new - centroids).norm()) >= tolerance
        centroids = new
    if moved:  # stopped by the count: labels must be those of the centroids that are returned
        labels = (points @ centroids.T).argmax(1)
    return Clusters(
        centroids, labels, torch.bincount(labels, minlength=len(centroids)), tuple(objectives), tuple(reseeded)
    )


def _means(points: Tensor, labels: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    """The mean directions of the clusters, and which clusters are empty; where rows cancel out, the old one stays."""
    sums = torch.zeros_like(before).index_add_(0, labels, points)
    counts = torch.bincount(labels, minlength=len(before))
    lengths = sums.norm(dim=1, keepdim=True)
    return torch.where(lengths > 1e-6, sums / lengths.clamp(min=1e-6), before), (counts == 0).nonzero()[:, 0]


def _begin(points: Tensor, k: int, init: Init | Tensor, draw: torch.Generator) -> Tensor:
    if isinstance(init, Tensor):
        known = F.normalize(init.detach().float(), dim=1)[:k]
        if known.dim() != 2 or known.shape[1] != points.shape[1]:
            raise InputError(f"Centroids to go on from must be [j, {points.shape[1]}], got {tuple(init.shape)}.")
        fresh = points[torch.randperm(len(points), generator=draw)[: k - len(known)]]
        return torch.cat([known, fresh])
    if init == "random":
        return points[torch.randperm(len(points), generator=draw)[:k]]
    if init == "++":
        return points[_spread(points, k, draw)]
    raise InputError(f"init must be 'random', '++' or centroids, got {init!r}.")


def _spread(points: Tensor, k: int, draw: torch.Generator) -> Tensor:
    """k-means++: each next row with a chance proportional to 1 - cos to the nearest one chosen."""
    chosen = [int(torch.randint(len(points), (), generator=draw))]
    apart = torch.full((len(points),), torch.inf)
    for _ in range(k - 1):
        apart = torch.minimum(apart, (1 - points @ points[chosen[-1]]).clamp(min=0))
        apart[chosen] = 0
        chances = apart if float(apart.sum()) > 1e-6 else torch.ones_like(apart).index_fill_(0, torch.tensor(chosen), 0)
        chosen.append(int(torch.multinomial(chances, 1, generator=draw)))
    return torch.tensor(chosen)


def _elsewhere(near: Tensor, count: int, reseed: Reseed, draw: torch.Generator) -> Tensor:
    if reseed == "farthest":
        return near.argsort(stable=True)[:count]
    return torch.randperm(len(near), generator=draw)[:count]
