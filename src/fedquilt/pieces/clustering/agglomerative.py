"""Agglomerative clustering of clients by a vector of each: a tree of merges, and where to cut it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedquilt.core.errors import InputError
from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId, in_order
from fedquilt.pieces.clustering.result import ClusterResult, canonical, directions, largest, unit

LINKAGES = ("average", "complete", "single", "ward")
METRICS = {"cosine": "cosine", "euclidean": "euclidean", "manhattan": "cityblock"}
MOST_AUTO = 20  # the largest number of clusters that ``auto`` tries
LEAST_SILHOUETTE, LEAST_HEIGHT = 0.25, 0.1  # what ``auto`` asks of a cut before it believes in more than one cluster
NEIGHBOURS = (0.1, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True)
class Cut:
    """Where to stop merging: at a height (strictly below it goes on), at a number of clusters, or by silhouette.

    Args:
        threshold: Merge while the smallest linkage distance is < threshold.
        k: Merge down to so many clusters.
        auto: Among 2..20 clusters the one with the best mean silhouette, if that is at least 0.25 and the first
            merge it refuses is at least 0.1 high; otherwise one cluster.
    """

    threshold: float | None = None
    k: int | None = None
    auto: bool = False

    def __post_init__(self) -> None:
        if (self.threshold is not None) + (self.k is not None) + self.auto != 1:
            raise InputError(
                f"Give exactly one of threshold, k and auto, got threshold={self.threshold}, k={self.k}, "
                f"auto={self.auto}."
            )
        if self.threshold is not None and not (math.isfinite(self.threshold) and self.threshold > 0):
            raise InputError(f"The threshold must be a finite number above 0, got {self.threshold}.")
        if self.k is not None and self.k < 1:
            raise InputError(f"The number of clusters must be at least 1, got {self.k}.")

    def __str__(self) -> str:
        if self.auto:
            return "auto"
        return f"k = {self.k}" if self.k is not None else f"threshold {self.threshold:g}"


def agglomerate(
    vectors: Mapping[ClientId, Tensor], *, linkage: str | None = None, metric: str = "cosine",
    threshold: float | None = None, k: int | None = None, auto: bool = False, max_exact: int = 5000, seed: Seed,
) -> ClusterResult:  # fmt: skip
    """Cluster clients by their vectors.

    Vectors that are zero or not finite say nothing: their clients are put aside and join the largest cluster, with a
    warning. Above ``max_exact`` clients (memory grows with the square) a random sample is clustered, the others join
    the nearest cluster, and those that are too far from all are clustered among themselves.

    Args:
        vectors: One of each client, of equal length.
        linkage: average, complete, single or ward; None for average, or for ward when ``k`` is given.
        metric: cosine, euclidean or manhattan. Given ``k`` with ward, rows are normalised first, since lengths of
            updates say little about direction.
        threshold, k, auto: See :class:`Cut`.
        max_exact: Up to so many clients the whole tree is built.
        seed: For the sample.
    """
    cut = Cut(threshold, k, auto)
    linkage = linkage or ("ward" if k is not None else "average")
    _check(vectors, linkage, metric, cut)
    ids = in_order(list(vectors))
    silent = [c for c in ids if unit(vectors[c]) is None]
    aside = set(silent)
    heard = [c for c in ids if c not in aside]
    return _with_silent(_found(vectors, heard, linkage, metric, cut, max_exact, seed), silent, vectors)


def _found(
    vectors: Mapping[ClientId, Tensor], ids: Sequence[ClientId], linkage: str, metric: str, cut: Cut, most: int,
    seed: Seed,
) -> ClusterResult:  # fmt: skip
    if len(ids) <= most:
        return _exact(vectors, ids, linkage, metric, cut)
    return _sampled(vectors, ids, linkage, metric, cut, most, seed)


def _check(vectors: Mapping[ClientId, Tensor], linkage: str, metric: str, cut: Cut) -> None:
    if not vectors:
        raise InputError("There is nobody to cluster.")
    if linkage not in LINKAGES:
        raise InputError(f"linkage must be one of {', '.join(LINKAGES)}, got {linkage!r}.")
    if metric not in METRICS:
        raise InputError(f"metric must be one of {', '.join(METRICS)}, got {metric!r}.")
    if linkage == "ward" and cut.k is None and metric != "euclidean":
        raise InputError(f"Ward's linkage is about Euclidean distances; give metric 'euclidean', not {metric!r}.")
    if cut.auto and metric != "cosine":
        raise InputError(f"auto judges heights of cosine distances; with {metric!r} give a threshold or k.")
    if len({v.numel() for v in vectors.values()}) > 1:
        raise InputError("The clients' vectors have different lengths, so no distances can be taken.")


def _exact(
    vectors: Mapping[ClientId, Tensor], ids: Sequence[ClientId], linkage: str, metric: str, cut: Cut
) -> ClusterResult:
    distances = np.zeros(0)
    if len(ids) > 1:
        from scipy.spatial.distance import pdist

        normalised = metric == "cosine" or (linkage == "ward" and cut.k is not None)
        rows = np.stack([_row(vectors[c], normalised) for c in ids])
        distances = pdist(rows, "euclidean" if linkage == "ward" else METRICS[metric])
    found = by_distances(ids, distances, linkage, cut, neighbours=metric == "cosine" and linkage != "ward")
    return replace(found, directions=directions(found.labels, vectors))


def _row(vector: Tensor, normalised: bool) -> Any:
    one = unit(vector) if normalised else vector.detach().double().flatten()
    assert one is not None  # the silent were put aside
    return one.numpy()


def by_distances(
    ids: Sequence[ClientId], distances: Any, linkage: str, cut: Cut, neighbours: bool = False
) -> ClusterResult:
    """Cluster clients by their distances: numpy, condensed as scipy's pdist gives them, pairs in the order of ids.

    With ``neighbours``, the measures also say how many clusters other thresholds would give.
    """
    count = len(ids)
    if count < 2:
        return ClusterResult(dict.fromkeys(ids, 0), 1, str(cut), order=tuple(ids))
    from scipy.cluster.hierarchy import linkage as merge

    distances = np.maximum(distances, 0.0)  # rounding may leave -1e-17
    tree = merge(distances, method=linkage)
    merges, measures, notes = _where(tree, distances, cut)
    labels = canonical(dict(zip(ids, cut_tree(tree, merges), strict=True)))
    refused = float(tree[merges, 2]) if merges < len(tree) else None
    if cut.threshold is not None:
        measures["threshold"] = cut.threshold
    elif cut.auto and refused is not None:
        measures["threshold"] = refused
    if neighbours:
        measures |= {f"k_at_{t:g}": float(count - _below(tree, t)) for t in NEIGHBOURS}
    return ClusterResult(
        labels, count - merges, str(cut), torch.from_numpy(tree.copy()), tuple(ids),
        measures=measures | _quality(tree, distances), warnings=notes,
    )  # fmt: skip


def _where(tree: Any, distances: Any, cut: Cut) -> tuple[int, dict[str, float], tuple[str, ...]]:
    """How many merges to make, the silhouette of that cut, and warnings."""
    count = len(tree) + 1
    if cut.auto:
        return _best(tree, distances)
    notes: tuple[str, ...] = ()
    if cut.k is not None:
        if cut.k > count:
            notes = (f"{cut.k} clusters were asked for, but only {count} clients can be told apart",)
        merges = count - min(cut.k, count)
    else:
        assert cut.threshold is not None
        merges = _below(tree, cut.threshold)
    found = _silhouette(tree, _square(distances), merges) if 1 < count - merges < count else None
    return merges, {} if found is None else {"silhouette": found}, notes


def _below(tree: Any, threshold: float) -> int:
    """Merges strictly below a height; heights never fall in these linkages."""
    return int((tree[:, 2] < threshold).sum())


def _best(tree: Any, distances: Any) -> tuple[int, dict[str, float], tuple[str, ...]]:
    count = len(tree) + 1
    square = _square(distances)
    scores = {k: _silhouette(tree, square, count - k) for k in range(2, min(count - 1, MOST_AUTO) + 1)}
    if not scores:
        return len(tree), {}, ()
    best = max(scores, key=lambda k: (scores[k], -k))
    measures = {"best_silhouette": scores[best], "best_k": float(best)}
    if scores[best] < LEAST_SILHOUETTE or tree[count - best, 2] < LEAST_HEIGHT:
        return len(tree), measures, ()
    return count - best, measures | {"silhouette": scores[best]}, ()


def _silhouette(tree: Any, square: Any, merges: int) -> float:
    from sklearn.metrics import silhouette_score

    return float(silhouette_score(square, cut_tree(tree, merges), metric="precomputed"))


def _square(distances: Any) -> Any:
    from scipy.spatial.distance import squareform

    return squareform(distances, checks=False)


def _quality(tree: Any, distances: Any) -> dict[str, float]:
    """Measures of the tree itself: cophenetic correlation, and the largest ratio of one height to the one before."""
    from scipy.cluster.hierarchy import cophenet

    found = {}
    if len(tree) > 1 and np.ptp(distances) > 0 and np.ptp(tree[:, 2]) > 0:
        found["cophenetic"] = float(cophenet(tree, distances)[0])
    heights = tree[tree[:, 2] > 1e-12, 2]
    if len(heights) > 1:
        found["height_ratio"] = float((heights[1:] / heights[:-1]).max())
    return found


def cut_tree(tree: Any, merges: int) -> Any:
    """The label of every leaf after the first merges of a linkage matrix."""
    count = len(tree) + 1
    above = np.arange(2 * count - 1)
    for i in range(merges):
        above[[int(tree[i, 0]), int(tree[i, 1])]] = count + i
    for node in range(2 * count - 2, -1, -1):  # from the root down, so that parents are done first
        above[node] = above[above[node]]
    return np.unique(above[:count], return_inverse=True)[1]


# Many clients


def _sampled(
    vectors: Mapping[ClientId, Tensor], ids: Sequence[ClientId], linkage: str, metric: str, cut: Cut, most: int,
    seed: Seed,
) -> ClusterResult:  # fmt: skip
    """Cluster a sample, place the others by the directions of its clusters, cluster those that are far from all."""
    if metric != "cosine" and cut.k is None:
        raise InputError(
            f"{len(ids)} clients are more than max_exact = {most}, and others than a sample are placed by cosine; "
            f"with metric {metric!r} raise max_exact or give k."
        )
    chosen = seed.fold("sample", len(ids)).numpy().choice(len(ids), size=most, replace=False)
    sample = in_order([ids[i] for i in chosen])
    found = _exact(vectors, sample, linkage, metric, cut)
    taken = set(sample)
    rest = [c for c in ids if c not in taken]
    labels, far = _placed(found, rest, vectors)
    note = f"{most} of {len(ids)} clients were clustered exactly; {len(rest) - len(far)} joined by direction"
    if far:
        note += f", {len(far)} were far from all and clustered among themselves"
        others = _found(vectors, far, linkage, metric, cut, most, seed.fold("far"))
        labels |= {c: found.k + j for c, j in others.labels.items()}
    named = canonical(found.labels | labels)
    return replace(
        found, labels=named, k=max(named.values()) + 1, directions=directions(named, vectors),
        warnings=(*found.warnings, note),
    )  # fmt: skip


def _placed(
    found: ClusterResult, rest: Sequence[ClientId], vectors: Mapping[ClientId, Tensor]
) -> tuple[dict[ClientId, int], list[ClientId]]:
    assert found.directions is not None
    limit, aims = found.measures.get("threshold", math.inf), found.directions.double()
    labels, far = {}, []
    for client in rest:
        one = unit(vectors[client])
        assert one is not None
        distance, nearest = (1 - aims @ one).min(0)
        if float(distance) < limit:
            labels[client] = int(nearest)
        else:
            far.append(client)
    return labels, far


def _with_silent(found: ClusterResult, silent: Sequence[ClientId], vectors: Mapping[ClientId, Tensor]) -> ClusterResult:
    if not silent:
        return found
    home = largest(found)
    note = (
        f"{len(silent)} clients sent a zero or non-finite update and joined the largest cluster: "
        f"{', '.join(map(repr, silent[:5]))}"
    )
    named = canonical(found.labels | dict.fromkeys(silent, home))
    return replace(found, labels=named, directions=directions(named, vectors), warnings=(*found.warnings, note))
