"""The tree of merges of clients by their distances, and where to cut it.

Measures of a clustering from condensed distances (scipy's pdist), without the square matrix that libraries ask for.

For thousands of clients the square and copies of it would be most of the memory, and one silhouette for each of many
cuts of a tree most of the time; the distances need to be summed only once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from fedquilt.core.table import ClientId
from fedquilt.errors import InputError
from fedquilt.pieces.clustering.result import ClusterResult, canonical

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

CHUNK = 1_000_000


def cluster_sums(distances: Floats, labels: Ints) -> Floats:
    """[n, k]: the sum of each one's distances to the members of each cluster."""
    count, k = len(labels), int(labels.max()) + 1
    sums = np.zeros((count, k))
    low = 0
    for i in range(count - 1):
        row = distances[low : low + count - 1 - i]  # from i to i+1, i+2, ...
        sums[i] += np.bincount(labels[i + 1 :], weights=row, minlength=k)
        sums[i + 1 :, labels[i]] += row
        low += count - 1 - i
    return sums


def silhouette(sums: Floats, fine: Ints, labels: Ints) -> float:
    """The mean silhouette (b - a) / max(a, b) of clusters that are unions of those of ``fine``, whose sums are given.

    a is the mean distance to the others of one's own cluster, b the smallest mean distance to another cluster; one that
    is alone in its cluster counts 0.

    Reference: Rousseeuw, Silhouettes, 1987.
    """
    count, sizes = len(labels), np.bincount(labels)
    merged = np.zeros((count, len(sizes)))
    for part in range(sums.shape[1]):
        merged[:, labels[np.argmax(fine == part)]] += sums[:, part]
    rows = np.arange(count)
    within = merged[rows, labels] / np.maximum(sizes[labels] - 1, 1)
    between = merged / sizes
    between[rows, labels] = np.inf
    nearest = between.min(1)
    larger = np.maximum(within, nearest)
    scores = np.where(larger > 0, (nearest - within) / np.where(larger > 0, larger, 1), 0.0)
    return float(np.where(sizes[labels] > 1, scores, 0.0).mean())


def correlation(a: Floats, b: Floats) -> float:
    """Pearson's, in chunks."""
    centre_a, centre_b = a.mean(), b.mean()
    products = np.zeros(3)
    for low in range(0, len(a), CHUNK):
        x, y = a[low : low + CHUNK] - centre_a, b[low : low + CHUNK] - centre_b
        products += (x @ y, x @ x, y @ y)
    return float(products[0] / np.sqrt(products[1] * products[2]))


MOST_TRIED = 20  # the largest number of clusters that ``silhouette`` tries
LEAST_SILHOUETTE, LEAST_HEIGHT = 0.25, 0.1  # what it asks of a cut before it believes in more than one cluster
NEIGHBOURS = (0.1, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True)
class Cut:
    """Where to stop merging: at a height (strictly below it goes on), at a number of clusters, or by silhouette.

    Args:
        threshold: Merge while the smallest linkage distance is < threshold.
        k: Merge down to so many clusters.
        silhouette: Among 2..20 clusters the one with the best mean silhouette, if that is at least 0.25 and the first
            merge it refuses is at least 0.1 high; otherwise one cluster.
        auto: The clusters that are more than chance (:func:`fedquilt.pieces.clustering.null.judged`), which takes the
            clients' vectors; distances alone cannot tell.
    """

    threshold: float | None = None
    k: int | None = None
    auto: bool = False
    silhouette: bool = False

    def __post_init__(self) -> None:
        if (self.threshold is not None) + (self.k is not None) + self.auto + self.silhouette != 1:
            raise InputError(
                f"Give exactly one of threshold, k, auto and silhouette, got threshold={self.threshold}, k={self.k}, "
                f"auto={self.auto}, silhouette={self.silhouette}."
            )
        if self.threshold is not None and not (math.isfinite(self.threshold) and self.threshold > 0):
            raise InputError(f"The threshold must be a finite number above 0, got {self.threshold}.")
        if self.k is not None and self.k < 1:
            raise InputError(f"The number of clusters must be at least 1, got {self.k}.")

    def __str__(self) -> str:
        if self.auto or self.silhouette:
            return "auto" if self.auto else "silhouette"
        return f"k = {self.k}" if self.k is not None else f"threshold {self.threshold:g}"


def by_distances(
    ids: Sequence[ClientId], distances: Floats, linkage: str, cut: Cut, neighbours: bool = False
) -> ClusterResult:
    """Cluster clients by their distances: numpy, condensed as scipy's pdist gives them, pairs in the order of ids.

    With ``neighbours``, the measures also say how many clusters other thresholds would give.
    """
    count = len(ids)
    if count < 2:
        return ClusterResult(dict.fromkeys(ids, 0), 1, str(cut), order=tuple(ids))
    from scipy.cluster.hierarchy import linkage as merge

    if distances.min() < 0:
        distances = np.maximum(distances, 0.0)  # rounding may leave -1e-17
    tree = merge(distances, method=linkage)
    merges, measures, notes = _where(tree, distances, cut)
    labels = canonical(dict(zip(ids, cut_tree(tree, merges), strict=True)))
    refused = float(tree[merges, 2]) if merges < len(tree) else None
    if cut.threshold is not None:
        measures["threshold"] = cut.threshold
    elif cut.silhouette and refused is not None:
        measures["threshold"] = refused
    if neighbours:
        measures |= {f"k_at_{t:g}": float(count - _below(tree, t)) for t in NEIGHBOURS}
    return ClusterResult(
        labels,
        count - merges,
        str(cut),
        torch.from_numpy(tree.copy()),
        tuple(ids),
        measures=measures | _quality(tree, distances),
        warnings=notes,
    )


def _where(tree: Floats, distances: Floats, cut: Cut) -> tuple[int, dict[str, float], tuple[str, ...]]:
    """How many merges to make, the silhouette of that cut, and warnings."""
    count = len(tree) + 1
    if cut.silhouette:
        return _best(tree, distances)
    notes: tuple[str, ...] = ()
    if cut.k is not None:
        if cut.k > count:
            notes = (f"{cut.k} clusters were asked for, but only {count} clients can be told apart",)
        merges = count - min(cut.k, count)
    else:
        assert cut.threshold is not None
        merges = _below(tree, cut.threshold)
    if not 1 < count - merges < count:
        return merges, {}, notes
    labels = cut_tree(tree, merges)
    return merges, {"silhouette": silhouette(cluster_sums(distances, labels), labels, labels)}, notes


def _below(tree: Floats, threshold: float) -> int:
    """Merges strictly below a height; heights never fall in these linkages."""
    return int((tree[:, 2] < threshold).sum())


def _best(tree: Floats, distances: Floats) -> tuple[int, dict[str, float], tuple[str, ...]]:
    count = len(tree) + 1
    most = min(count - 1, MOST_TRIED)
    if most < 2:
        return len(tree), {}, ()
    fine = cut_tree(tree, count - most)
    sums = cluster_sums(distances, fine)  # coarser cuts are unions of these clusters
    scores = {k: silhouette(sums, fine, cut_tree(tree, count - k)) for k in range(2, most + 1)}
    best = max(scores, key=lambda k: (scores[k], -k))
    measures = {"best_silhouette": scores[best], "best_k": float(best)}
    if scores[best] < LEAST_SILHOUETTE or tree[count - best, 2] < LEAST_HEIGHT:
        return len(tree), measures, ()
    return count - best, measures | {"silhouette": scores[best]}, ()


def _quality(tree: Floats, distances: Floats) -> dict[str, float]:
    """Measures of the tree itself: cophenetic correlation, and the largest ratio of one height to the one before."""
    from scipy.cluster.hierarchy import cophenet

    found = {}
    if len(tree) > 1 and np.ptp(distances) > 0 and np.ptp(tree[:, 2]) > 0:
        found["cophenetic"] = correlation(cophenet(tree), distances)
    heights = tree[tree[:, 2] > 1e-12, 2]
    if len(heights) > 1:
        found["height_ratio"] = float((heights[1:] / heights[:-1]).max())
    return found


def cut_tree(tree: Floats, merges: int) -> Ints:
    """The label of every leaf after the first merges of a linkage matrix."""
    count = len(tree) + 1
    above = np.arange(2 * count - 1)
    for i in range(merges):
        above[[int(tree[i, 0]), int(tree[i, 1])]] = count + i
    for node in range(2 * count - 2, -1, -1):  # from the root down, so that parents are done first
        above[node] = above[above[node]]
    return np.unique(above[:count], return_inverse=True)[1]
