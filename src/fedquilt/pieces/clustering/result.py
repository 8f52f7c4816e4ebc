"""What a clustering found: one record for every clustered method, and the placing of clients that come later."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fedquilt.core.table import ClientId, in_order
from fedquilt.errors import InputError
from fedquilt.records.record import record

AMBIGUOUS = 0.05  # two clusters whose distances differ by less can hardly be told apart


@record
class ClusterResult:
    """A partition of clients, and where it comes from.

    Args:
        labels: The cluster of every client, 0..k-1, numbered by smallest member (see :func:`canonical`).
        k: How many clusters. Before anything is known it is 1, with no labels.
        criterion: What decided: "threshold 0.5", "auto", "k = 3".
        tree: The merges as scipy's linkage matrix, float64 [leaves - 1, 4], or None.
        order: The clients of the tree's leaves.
        directions: float32 [k, d]: s_k = mean of the unit vectors of cluster k's members, or None.
        measures: silhouette, cophenetic, height_ratio, threshold, ... as far as they exist.
        warnings: What a reader should know.
    """

    labels: dict[ClientId, int]
    k: int
    criterion: str
    tree: Tensor | None = None
    order: tuple[ClientId, ...] = ()
    directions: Tensor | None = None
    measures: dict[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Assigned:
    """Where a client belongs.

    Args:
        cluster: The nearest cluster; None if all are too far, so that it should get one of its own.
        nearest: The nearest cluster, however far.
        distance: Average-linkage cosine distance to the nearest.
        margin: How much farther the second nearest is; infinite if there is none.
        ambiguous: The margin is small, or the vector said nothing.
    """

    cluster: int | None
    nearest: int
    distance: float
    margin: float
    ambiguous: bool


def unknown() -> ClusterResult:
    """Before any clustering: one cluster, nobody placed."""
    return ClusterResult({}, 1, "not yet")


def canonical(labels: Mapping[ClientId, int]) -> dict[ClientId, int]:
    """The same partition with clusters numbered by their smallest member, clients in order."""
    numbers: dict[int, int] = {}
    return {c: numbers.setdefault(labels[c], len(numbers)) for c in in_order(list(labels))}


def members(result: ClusterResult) -> list[tuple[ClientId, ...]]:
    """The clients of each cluster, in order."""
    found: list[list[ClientId]] = [[] for _ in range(result.k)]
    for client, label in result.labels.items():
        found[label].append(client)
    return [in_order(group) for group in found]


def largest(result: ClusterResult) -> int:
    """The cluster with most members; the lowest on a tie, and 0 when nobody is placed."""
    counts = Counter(result.labels.values())
    return max(range(result.k), key=lambda k: (counts[k], -k))


def unit(vector: Tensor) -> Tensor | None:
    """The vector at length 1, in float64; None if it is zero or not finite."""
    wide = vector.detach().double().flatten()
    top = float(wide.abs().max()) if wide.numel() else 0.0
    if not math.isfinite(top) or top == 0:
        return None
    wide = wide / top  # so that no square overflows or vanishes
    return wide / wide.square().sum().sqrt()


def from_labels(
    labels: Mapping[ClientId, int], vectors: Mapping[ClientId, Tensor] | None, criterion: str
) -> ClusterResult:
    """The result of a partition that something else found; vectors give the directions."""
    named = canonical(labels)
    k = max(named.values(), default=0) + 1
    return ClusterResult(named, k, criterion, directions=None if vectors is None else directions(named, vectors))


def directions(labels: Mapping[ClientId, int], vectors: Mapping[ClientId, Tensor]) -> Tensor | None:
    """s_k = mean over members of v_i / |v_i|, [k, d]; zero and non-finite vectors do not count."""
    sums: dict[int, Tensor] = {}
    counts: Counter[int] = Counter()
    for client, label in labels.items():
        one = unit(vectors[client]) if client in vectors else None
        if one is not None:
            sums[label] = sums[label] + one if label in sums else one
            counts[label] += 1
    if not sums:
        return None
    rest = torch.zeros_like(next(iter(sums.values())))
    k = max(labels.values()) + 1
    return torch.stack([sums.get(j, rest) / max(counts[j], 1) for j in range(k)]).float()


def assign(result: ClusterResult, vector: Tensor, threshold: float | None = None) -> Assigned:
    """Place a client that was not clustered: d_k = 1 - (v/|v|) . s_k, its average-linkage cosine distance to cluster k.

    Below the threshold (by default the height at which the clustering stopped merging, if there is one) the nearest
    cluster takes it. A vector that says nothing goes to the largest cluster.
    """
    if result.directions is None:
        raise InputError("This clustering kept no directions, so a new client cannot be placed by its update.")
    if vector.numel() != result.directions.shape[1]:
        raise InputError(
            f"The update has {vector.numel()} numbers, the directions of the clusters {result.directions.shape[1]}."
        )
    limit = result.measures.get("threshold", math.inf) if threshold is None else threshold
    one = unit(vector)
    if one is None:
        home = largest(result)
        return Assigned(home, home, 1.0, 0.0, True)
    far = 1 - result.directions.double() @ one
    nearest = int(far.argmin())
    ranked = far.sort().values
    margin = float(ranked[1] - ranked[0]) if len(ranked) > 1 else math.inf
    distance = float(far[nearest])
    return Assigned(nearest if distance < limit else None, nearest, distance, margin, margin < AMBIGUOUS)


def merge_small(result: ClusterResult, min_size: int, vectors: Mapping[ClientId, Tensor]) -> ClusterResult:
    """Merge clusters with fewer than ``min_size`` members into the nearest one, smallest first.

    The distance of two clusters is the mean over pairs of members, 1 - s_i . s_j. A cluster of one client shares that
    client's own model, which is why one may want this.
    """
    found = result
    while found.k > 1:
        sizes = Counter(found.labels.values())
        small = min(range(found.k), key=lambda j: (sizes[j], j))
        if sizes[small] >= min_size:
            break
        aims = directions(found.labels, vectors)
        if aims is None:
            raise InputError("Small clusters cannot be merged: no client has a usable vector.")
        far = 1 - aims.double() @ aims[small].double()
        far[small] = math.inf
        target = int(far.argmin())
        labels = canonical({c: target if j == small else j for c, j in found.labels.items()})
        note = f"a cluster of {sizes[small]} was merged into its nearest"
        found = replace(found, labels=labels, k=found.k - 1, warnings=(*found.warnings, note))
    return found if found is result else replace(found, directions=directions(found.labels, vectors))
