"""How unlike clients are, in numbers. All start from label counts [clients, classes]."""

from __future__ import annotations

import numpy as np

from fedquilt.core.plain import Array, Floats, Ints, Row

MOST = 1000  # clients of which pairs are compared; of more, so many evenly spaced ones


def label_distances(counts: Ints) -> Floats:
    """The Jensen-Shannon distance of the label shares of every pair of clients, from 0 (equal) to 1 (no label shared).

    d(p, q) = sqrt(H((p + q) / 2) - (H(p) + H(q)) / 2), H in bits. Lin 1991; Endres and Schindelin 2003.

    Example:
        >>> label_distances(np.array([[4, 0], [0, 9], [2, 2]])).round(4).tolist()
        [[0.0, 1.0, 0.5579], [1.0, 0.0, 0.5579], [0.5579, 0.5579, 0.0]]
    """
    shares, own = _shares(counts), label_entropy(counts)
    squares = np.stack([_entropy((p + shares) / 2) - (h + own) / 2 for p, h in zip(shares, own, strict=True)])
    np.fill_diagonal(squares, 0.0)
    distances: Floats = np.sqrt(np.clip(squares, 0.0, 1.0))
    return distances


def label_entropy(counts: Ints) -> Floats:
    """The entropy of each client's labels in bits: 0 for one class, log2 C for C equal ones."""
    return _entropy(_shares(counts))


def gini(sizes: Array) -> float:
    """How unequal sizes are: 0 when all are equal, near 1 when one client has everything.

    The mean absolute difference of two clients over twice the mean: sum_i (2i - n - 1) x_(i) / (n sum x).

    Example:
        >>> gini(np.array([1, 3])), gini(np.array([5, 5, 5]))
        (0.25, 0.0)
    """
    ranked = np.sort(sizes).astype(np.float64)
    many = len(ranked)
    return float(((2 * np.arange(1, many + 1) - many - 1) * ranked).sum() / (many * ranked.sum()))


def imbalance_factor(counts: Ints) -> float:
    """Rows of the rarest class over rows of the most frequent one, all clients together; papers often give 1 / this."""
    total = counts.sum(axis=0)
    return float(total.min() / total.max())


def imbalance_told(factor: float) -> str:
    """The factor in words, as the ratio that papers give.

    >>> imbalance_told(0.885)
    'class imbalance ratio 1.13 (most frequent / rarest)'
    """
    return f"class imbalance ratio {1 / factor if factor else float('inf'):.3g} (most frequent / rarest)"


def measures(counts: Ints) -> Row:
    """All of these as plain values; the distance is the mean over pairs of clients, None for a single client."""
    entropy = label_entropy(counts)
    chosen = counts[np.unique(np.linspace(0, len(counts) - 1, min(len(counts), MOST)).astype(int))]
    many = len(chosen)
    distance = None if many == 1 else float(label_distances(chosen).sum() / (many * (many - 1)))
    return {
        "label_distance": distance,
        "size_gini": gini(counts.sum(axis=1)),
        "imbalance_factor": imbalance_factor(counts),
        "label_entropy": {"least": float(entropy.min()), "mean": float(entropy.mean()), "most": float(entropy.max())},
    }


def _shares(counts: Ints) -> Floats:
    shares: Floats = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    return shares


def _entropy(shares: Floats) -> Floats:
    bits: Floats = -(shares * np.log2(np.where(shares > 0, shares, 1.0))).sum(axis=-1)
    return bits + 0.0  # not -0.0
