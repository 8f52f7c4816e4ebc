"""Measures of a clustering from condensed distances (scipy's pdist), without the square matrix that libraries ask for.

For thousands of clients the square and copies of it would be most of the memory, and one silhouette for each of many
cuts of a tree most of the time; the distances need to be summed only once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

CHUNK = 1_000_000


def cluster_sums(distances: Any, labels: Any) -> Any:
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


def silhouette(sums: Any, fine: Any, labels: Any) -> float:
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


def correlation(a: Any, b: Any) -> float:
    """Pearson's, in chunks."""
    centre_a, centre_b = a.mean(), b.mean()
    products = np.zeros(3)
    for low in range(0, len(a), CHUNK):
        x, y = a[low : low + CHUNK] - centre_a, b[low : low + CHUNK] - centre_b
        products += (x @ y, x @ x, y @ y)
    return float(products[0] / np.sqrt(products[1] * products[2]))
