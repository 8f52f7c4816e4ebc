"""Which clusters of clients are real? A cut is judged against what there would be without groups.

Client i shows two updates, a_i and b_i, each from one half of its samples (split-half reliability); at unit length and
centred over clients. What a half shares with its twin beyond what it shares with everybody is the client's, not chance:

1. **Do clients differ at all?** sum_i a_i . b_i against the same sum with the b_i shuffled among clients (a permutation
   test, p <= 0.01). If not, there is one cluster.
2. **Is a cut complete?** Within its clusters halves may be shuffled without loss (p > 0.05) with R >= 0.8, or else
   R >= 0.9, where R = 1 - S_within / S is the share of the differences between clients that clusters explain,
   S = sum_i a_i . b_i and S_within the same with each cluster centred for itself. Clients that differ one by one, and
   not in groups, have no complete cut into few clusters.
3. **Is a cut a cut?** W, the share of the squared distances that clusters leave within themselves, against its mean W*
   over normal clouds with the same covariance: Gap = log W* - log W >= log(1 / 0.3), the gap statistic, and W below
   every one of 19 clouds (p <= 0.05). A cloud without groups can be cut into pieces, too, and leaves W* of itself.

Of the first four complete cuts that of the largest gap is taken. k clusters differ in k - 1 directions, so a cut into
k is sought in the k - 1 in which the halves agree most, the first eigenvectors of sum_i (a_i b_i' + b_i a_i') / 2, and
there are no more clusters than directions of positive eigenvalue allow.
Clusters below the least size are set aside in all tests; their clients join the nearest cluster.

Without second updates only the gap is left, in the principal directions of the one update there is.

Reference: Tibshirani, Walther, Hastie, Estimating the number of clusters in a data set via the gap statistic, 2001.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from fedquilt.core.seed import Seed
from fedquilt.pieces.clustering.tree import Floats, Ints, cut_tree

DIFFER, ALIKE = 0.01, 0.05  # levels: below the first clients differ, above the second they do not
COMPLETE, NEARLY = 0.9, 0.8  # shares of the differences that clusters explain
LEAST_GAP = math.log(1 / 0.3)
PAIRINGS, CLOUDS, COMPLETE_CUTS = 199, 19, 4
MOST_CLUSTERS, ODD = 20, 0.1  # clusters; the largest share of the clients that may be set aside
NOTHING = 1e-9  # of the largest eigenvalue
COLUMNS = 1 << 16  # of the updates at a time


@dataclass(frozen=True)
class Judged:
    """A cut that stood, or one cluster.

    Args:
        points: [n, d], where the clusters were found: the tree is that of their distances.
        labels: The cluster of each client.
        cut: Into how many the tree is cut; more than there are clusters where clients were set aside.
        measures: p_differ, and of the cut: gap, p_within and explained (R).
    """

    points: Floats
    labels: Ints
    cut: int = 1
    measures: dict[str, float] = field(default_factory=dict)


def judged(first: Sequence[Tensor], second: Sequence[Tensor] | None, linkage: str, least: int, seed: Seed) -> Judged:
    """The clusters of clients by what they showed, as far as they are real.

    Args:
        first, second: The updates from the halves of each client's samples, of any length; second None if there is one
            update of each.
        linkage: Of the tree.
        least: The least size of a cluster.
        seed: For shuffles and clouds.
    """
    rows, count = _centred(_rows([*first, *(second or ())]), len(first)), len(first)
    a, b = (rows[:count], rows[count:]) if second is not None else (rows, rows)
    draw, told = seed.fold("null").numpy(), {}
    one = np.zeros(count, np.int64)
    if second is not None:
        told["p_differ"] = _p_differ(a, b, one, draw)
        if told["p_differ"] > DIFFER:
            return Judged((a + b) / 2, one, measures=told)
    agreement, axes = np.linalg.eigh(a.T @ b + b.T @ a)
    agreeing = int((agreement > NOTHING * agreement[-1]).sum())  # directions
    found: list[Judged] = []
    for cut in range(2, min(MOST_CLUSTERS + 1, count // 2 + 1, agreeing + 1) + 1):
        points = (a + b) @ axes[:, :-cut:-1] / 2
        labels, kept = _large(_cut(points, linkage, cut), least)
        some, measures = labels[kept], dict(told)
        if (~kept).sum() > max(1, ODD * count) or (second is None and not some.any()):
            continue
        if second is not None and not _complete(a[kept], b[kept], some, draw, measures):
            continue
        if not some.any():
            break  # but for odd ones clients are alike
        measures["gap"] = _gap(points, linkage, cut, least, _left(points[kept], some), draw)
        found.append(Judged(points, _joined(points, labels, kept), cut, measures))
        if second is not None and len(found) == COMPLETE_CUTS:
            break
    best = max(found, key=lambda j: j.measures["gap"], default=None)
    if best is None or best.measures["gap"] < LEAST_GAP:
        return Judged((a + b) / 2, one, measures=told)
    return best


def _rows(vectors: Sequence[Tensor]) -> Floats:
    """Points with the vectors' inner products at unit length, as many coordinates as vectors: all that counts of them.

    Vectors may have millions of numbers; they are taken in blocks.
    """
    gram = np.zeros((len(vectors), len(vectors)))
    for low in range(0, vectors[0].numel(), COLUMNS):
        block = torch.stack([v.flatten()[low : low + COLUMNS] for v in vectors]).double().numpy()
        gram += block @ block.T
    lengths = np.sqrt(np.diag(gram).clip(1e-300))
    sizes, axes = np.linalg.eigh(gram / lengths[:, None] / lengths)
    return np.asarray(axes * np.sqrt(sizes.clip(0)))


def _centred(rows: Floats, count: int) -> Floats:
    """Each half around its own mean."""
    return np.concatenate([part - part.mean(0) for part in np.split(rows, range(count, len(rows), count))])


def _deviations(points: Floats, labels: Ints) -> Floats:
    sums = np.zeros((labels.max() + 1, points.shape[1]))
    np.add.at(sums, labels, points)
    return points - (sums / np.bincount(labels)[:, None])[labels]


def _p_differ(a: Floats, b: Floats, labels: Ints, draw: np.random.Generator) -> float:
    """How often shuffling the second halves within clusters loses nothing."""
    products = _deviations(a, labels) @ _deviations(b, labels).T
    order = np.argsort(labels, kind="stable")
    shuffled = np.argsort(labels + draw.random((PAIRINGS, len(labels))), axis=1)  # cluster by cluster, too
    return float((1 + (products[order, shuffled].sum(1) >= np.trace(products)).sum()) / (1 + PAIRINGS))


def _common(a: Floats, b: Floats, labels: Ints) -> float:
    """S_within: sum_i a_i . b_i around the means of clusters, free of the bias of these."""
    sizes = np.bincount(labels)[labels]
    products = (_deviations(a, labels) * _deviations(b, labels)).sum(1)
    return float((products * sizes / np.maximum(sizes - 1, 1)).sum())


def _complete(a: Floats, b: Floats, labels: Ints, draw: np.random.Generator, measures: dict[str, float]) -> bool:
    """Whether clusters hold nearly all differences between clients; of a lone cluster, whether there are none."""
    measures["p_within"] = _p_differ(a, b, labels, draw)
    if not labels.any():
        return measures["p_within"] > ALIKE
    total = _common(a, b, np.zeros_like(labels))
    explained = measures["explained"] = 1 - _common(a, b, labels) / total if total > 0 else 0.0
    return explained >= COMPLETE or (explained >= NEARLY and measures["p_within"] > ALIKE)


def _cut(points: Floats, linkage: str, cut: int) -> Ints:
    from scipy.cluster.hierarchy import linkage as merge
    from scipy.spatial.distance import pdist

    return cut_tree(merge(pdist(points), method=linkage), len(points) - cut)


def _large(labels: Ints, least: int) -> tuple[Ints, np.ndarray[tuple[int, ...], np.dtype[np.bool_]]]:
    """Labels of the clusters that are large enough, numbered anew, and who is in these; -1 for the others."""
    large = np.bincount(labels) >= least
    return np.where(large, np.cumsum(large) - 1, -1)[labels], large[labels]


def _left(points: Floats, labels: Ints) -> float:
    """W: what clusters leave of the squared distances from the mean."""
    around = np.square(points - points.mean(0)).sum()
    return float(np.square(_deviations(points, labels)).sum() / around) if around > 0 else 1.0


def _gap(points: Floats, linkage: str, cut: int, least: int, left: float, draw: np.random.Generator) -> float:
    """log W* - log W; minus infinity unless W is below that of every cloud."""
    spread = np.linalg.svd(points, compute_uv=False) / math.sqrt(len(points))  # distances do not see rotations
    clouds = []
    for _ in range(CLOUDS):
        cloud = spread * draw.standard_normal(points.shape)
        labels, kept = _large(_cut(cloud, linkage, cut), least)
        clouds.append(_left(cloud[kept], labels[kept]) if kept.any() else 1.0)
    return math.log(float(np.mean(clouds)) / max(left, 1e-12)) if left < min(clouds) else -math.inf


def _joined(points: Floats, labels: Ints, kept: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> Ints:
    """Those set aside join the nearest centre."""
    centres = np.stack([points[labels == k].mean(0) for k in range(labels.max() + 1)])
    nearest = np.square(points[:, None] - centres).sum(2).argmin(1)
    return np.where(kept, labels, nearest)
