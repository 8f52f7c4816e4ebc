"""Measures of a clustering of clients: against planted groups, of itself, from one round to the next, of its models.

Labels are mappings from client to cluster number; the numbers themselves mean nothing, so every measure is the same
after renumbering. Where two labelings are compared, the clients that both know count.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedquilt.core.params import Names, Params, everything, norm, pick, sub, weighted_mean
from fedquilt.core.table import ClientId, in_order
from fedquilt.errors import InputError
from fedquilt.metrics.table import ROWS_HALF, Counts, main, metric, metrics, values

Labels = Mapping[ClientId, Any]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Agreement:
    """How well clusters meet planted groups.

    Args:
        ari: Adjusted Rand index (Hubert and Arabie 1985): 1 the same partition, about 0 what chance gives.
        nmi: Mutual information over the mean of both entropies: 1 the same, 0 independent.
        purity: The share of clients whose planted group is the commonest of their cluster; 1 with singletons too.
        clients: How many clients both labelings know.
    """

    ari: float
    nmi: float
    purity: float
    clients: int


def agreement(found: Labels, planted: Labels) -> Agreement:
    """ARI, NMI and purity of found clusters against planted groups.

    Example:
        >>> agreement({0: 0, 1: 0, 2: 1}, {0: "a", 1: "a", 2: "b"}).ari
        1.0
    """
    from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score  # takes a second to import

    a, b = _both(found, planted)
    return Agreement(float(adjusted_rand_score(b, a)), float(normalized_mutual_info_score(b, a)), _purity(a, b), len(a))


def _purity(found: NDArray[np.int64], planted: NDArray[np.int64]) -> float:
    return float(_table(found, planted).max(1).sum() / len(found))


def churn(before: Labels, after: Labels) -> float:
    """The share of clients that moved: 1 - (clients that stay under the best one-to-one matching of clusters) / all."""
    from scipy.optimize import linear_sum_assignment

    a, b = _both(before, after)
    table = _table(a, b)
    rows, columns = linear_sum_assignment(table, maximize=True)
    return 1.0 - float(table[rows, columns].sum() / len(a))


def _both(first: Labels, second: Labels) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Both labelings of the clients in both, as numbers from 0."""
    common = in_order([client for client in first if client in second])
    if not common:
        raise InputError("The two labelings have no client in common, so they cannot be compared.")
    return _numbers([first[c] for c in common]), _numbers([second[c] for c in common])


def _numbers(names: Sequence[Any]) -> NDArray[np.int64]:
    seen: dict[Any, int] = {}
    return np.array([seen.setdefault(name, len(seen)) for name in names], np.int64)


def _table(a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many clients are in cluster i of the first and j of the second labeling."""
    width = int(b.max()) + 1
    counts = np.bincount(a * width + b, minlength=(int(a.max()) + 1) * width)
    return counts.reshape(-1, width)


# Without planted groups


def cosine_distances(vectors: Sequence[Tensor]) -> Floats:
    """1 - cos of every pair, [N, N]; zeros on the diagonal."""
    rows = torch.stack([v.double().flatten() for v in vectors])
    if not bool((rows.norm(dim=1) > 0).all()):
        raise InputError("A vector is zero and has no direction: put such clients aside first.")
    rows = rows / rows.norm(dim=1, keepdim=True)
    distances: Floats = (1.0 - rows @ rows.T).clamp(min=0.0).numpy()
    np.fill_diagonal(distances, 0.0)
    return distances


def tree_distances(tree: Tensor) -> Floats:
    """The height at which each pair of leaves of a linkage matrix is merged (cophenetic distances), [N, N]."""
    from scipy.cluster.hierarchy import cophenet
    from scipy.spatial.distance import squareform

    found: Floats = squareform(cophenet(tree.double().numpy()))
    return found


def silhouette(distances: Floats, labels: Sequence[int]) -> float:
    """Mean over clients of (b - a) / max(a, b) (Rousseeuw 1987): a the mean distance within the own cluster, b to the
    nearest other one. NaN unless there are 2 to N - 1 clusters. ``distances`` are of pairs, for example
    :func:`cosine_distances`, or :func:`tree_distances` where only the tree was kept."""
    if not 2 <= len(set(labels)) < len(labels):
        return math.nan
    from sklearn.metrics import silhouette_score

    return float(silhouette_score(distances, list(labels), metric="precomputed"))


def cophenetic(tree: Tensor, distances: Floats) -> float:
    """The correlation of the tree's heights with the distances it was made of (Sokal and Rohlf 1962); NaN if either
    does not vary."""
    upper = np.triu_indices(len(distances), 1)
    a, b = tree_distances(tree)[upper], np.asarray(distances)[upper]
    if len(a) < 2 or a.std() == 0 or b.std() == 0:
        return math.nan
    return float(np.corrcoef(a, b)[0, 1])


# What clusters are worth


def cluster_scores(
    labels: Labels, scores: Mapping[ClientId, Any], majority: Mapping[ClientId, float] | None = None
) -> list[dict[str, Any]]:
    """For each cluster: its clients, and over those scored mean, standard deviation and worst of their scores, the
    means of all other metrics of tables and of the majority baseline, and half of the 95 % interval that the test
    samples leave each mean; None where nobody was scored.

    Args:
        labels: The cluster of each client.
        scores: Of each client.
        majority: The accuracy of always answering a client's most frequent label.
    """
    held: dict[Any, list[ClientId]] = {}
    for client, cluster in labels.items():
        held.setdefault(cluster, []).append(client)
    brought = {name for score in scores.values() for name in getattr(score, "sums", None) or ()}
    names = [m.id for m in metrics("table") if not m.brought or m.id in brought]
    rows = []
    for cluster in sorted(held):
        scored = [i for i in held[cluster] if i in scores]
        rows.append(
            {"cluster": cluster, "clients": len(held[cluster]), **_scored(names, scored, scores, majority or {})}
        )
    return rows


def _scored(
    names: Sequence[str],
    clients: Sequence[ClientId],
    scores: Mapping[ClientId, Any],
    majority: Mapping[ClientId, float],
) -> dict[str, float | None]:
    found = _measured(names, Counts.of([scores[c] for c in clients])) if clients else {}
    least = [majority[c] for c in clients if c in majority and not math.isnan(majority[c])]
    found |= {"majority_class": float(np.mean(least))} if least else {}
    first = (main().id, f"{main().id}_std", f"{main().id}_least")
    rest = dict.fromkeys([*names, "majority_class", *(name + ROWS_HALF for name in names)])
    return {n: _number(found.get(n)) for n in dict.fromkeys([*first, *rest])}


def _number(value: float | None) -> float | None:
    return None if value is None else float(value)


def _measured(names: Sequence[str], counts: Counts) -> dict[str, float | None]:
    """The means of these metrics with their intervals, and how the first one is spread."""
    held = values(counts)
    first = held[main().id]
    worst = first.min() if main().higher_is_better else first.max()
    found: dict[str, float | None] = {f"{main().id}_std": first.std(), f"{main().id}_least": worst}
    for name in names:
        which = np.flatnonzero(~np.ma.getmaskarray(held[name])) if name in held else np.zeros(0, dtype=np.int64)
        if len(which):
            mean = np.ma.compressed(held[name]).mean()
            found |= {name: mean, name + ROWS_HALF: metric(name).half(counts, which)}
    return found


def embedding_distances(
    models: Sequence[Params], sizes: Sequence[float], whole: Params | None = None, names: Names = everything
) -> list[float]:
    """||phi_k - Phi|| of each cluster's embedding, the names that ``names`` takes. Phi is ``whole``, or without one the
    mean of the embeddings weighted by ``sizes``."""
    parts = [pick(names, model) for model in models]
    if not parts or not parts[0]:
        return [0.0 for _ in parts]
    middle = pick(names, whole) if whole is not None else weighted_mean(zip(sizes, parts, strict=True))
    return [norm(sub(part, middle)) for part in parts]
