"""Agglomerative clustering of clients by a vector of each.

Would other clients have given the same clusters? The cut repeated on parts of the clients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from torch import Tensor

from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId, in_order
from fedquilt.errors import InputError
from fedquilt.pieces.clustering.null import judged
from fedquilt.pieces.clustering.result import ClusterResult, canonical, directions, largest, unit
from fedquilt.pieces.clustering.tree import Cut, Floats, by_distances

REPEATS, SHARE = 10, 0.8
FEWEST, MOST = 5, 500  # clients: fewer say nothing, more take long


def stability(
    ids: Sequence[ClientId], distances: Floats, linkage: str, cut: Cut, labels: Mapping[ClientId, int], seed: Seed
) -> dict[str, float]:
    """``stable_k``: the share of ten random parts, of four fifths of the clients, with as many clusters as all of them
    together have there; ``stable_ari``: the mean agreement (adjusted Rand index) of the parts' clusters with theirs.

    Args:
        ids, distances, linkage, cut: As for :func:`fedquilt.pieces.clustering.tree.by_distances`.
        labels: What these gave.
        seed: For the parts.
    """
    count = len(ids)
    if not FEWEST <= count <= MOST:
        return {}
    from scipy.spatial.distance import squareform
    from sklearn.metrics import adjusted_rand_score  # takes a second to import

    square, size = squareform(distances), max(2, int(SHARE * count))
    same, agree = [], []
    for i in range(REPEATS):
        rows = np.sort(seed.fold("stability", i).numpy().choice(count, size, replace=False))
        part = [ids[r] for r in rows]
        found = by_distances(part, squareform(square[np.ix_(rows, rows)], checks=False), linkage, cut)
        whole = [labels[c] for c in part]
        same.append(found.k == len(set(whole)))
        agree.append(adjusted_rand_score(whole, [found.labels[c] for c in part]))
    return {"stable_k": float(np.mean(same)), "stable_ari": float(np.mean(agree))}


Exact = Callable[..., ClusterResult]  # (ids, seed=...) -> their clusters, from the whole tree
LINKAGES = ("average", "complete", "single", "ward")
METRICS = {"cosine": "cosine", "euclidean": "euclidean", "manhattan": "cityblock"}


def agglomerate(
    vectors: Mapping[ClientId, Tensor],
    *,
    linkage: str | None = None,
    metric: str = "cosine",
    threshold: float | None = None,
    k: int | None = None,
    auto: bool = False,
    silhouette: bool = False,
    again: Mapping[ClientId, Tensor] | None = None,
    min_size: int = 2,
    max_exact: int = 5000,
    seed: Seed,
) -> ClusterResult:
    """Cluster clients by their vectors.

    Vectors that are zero or not finite say nothing: their clients are put aside and join the largest cluster, with a
    warning. Above ``max_exact`` clients (memory grows with the square) a random sample is clustered, the others join
    the nearest cluster, and those that are too far from all are clustered among themselves. ``auto`` does so above 500.

    Args:
        vectors: One of each client, of equal length.
        linkage: average, complete, single or ward; None for average, or for ward when ``k`` or ``auto`` is given.
        metric: cosine, euclidean or manhattan. Given ``k`` with ward, rows are normalised first, since lengths of
            updates say little about direction.
        threshold, k, auto, silhouette: See :class:`Cut`.
        again: For ``auto``: the vectors are those of half of each client's samples, and these those of the other half.
        min_size: For ``auto``: the least size of a cluster.
        max_exact: Up to so many clients the whole tree is built.
        seed: For the sample, and for the parts of the clients that the cut is tried on again.
    """
    cut = Cut(threshold, k, auto, silhouette)
    linkage = linkage or ("ward" if k is not None or auto else "average")
    check_settings(linkage, metric, cut)
    shown = (vectors,) if again is None else (vectors, again)
    _check(shown)
    ids = in_order(list(vectors))
    silent = [c for c in ids if any(unit(v[c]) is None for v in shown)]
    aside = set(silent)
    heard = [c for c in ids if c not in aside]
    whole = vectors if again is None else {c: (vectors[c] + again[c]) / 2 for c in ids}
    exact: Exact
    if auto:
        exact = partial(_judged, shown, whole, linkage=linkage, least=min_size)
        max_exact = min(max_exact, MOST)
    else:
        exact = partial(_exact, vectors, linkage=linkage, metric=metric, cut=cut)
    return _with_silent(_found(exact, whole, heard, metric, cut, max_exact, seed), silent, whole)


def _found(
    exact: Exact,
    vectors: Mapping[ClientId, Tensor],
    ids: Sequence[ClientId],
    metric: str,
    cut: Cut,
    most: int,
    seed: Seed,
) -> ClusterResult:
    if len(ids) <= most:
        return exact(ids, seed=seed)
    return _sampled(exact, vectors, ids, metric, cut, most, seed)


def check_settings(linkage: str | None, metric: str, cut: Cut) -> None:
    """Refuse what does not go together; linkage None is the one that goes with the cut."""
    if linkage is not None and linkage not in LINKAGES:
        raise InputError(f"linkage must be one of {', '.join(LINKAGES)}, got {linkage!r}.")
    if metric not in METRICS:
        raise InputError(f"metric must be one of {', '.join(METRICS)}, got {metric!r}.")
    if linkage == "ward" and cut.k is None and not cut.auto and metric != "euclidean":
        raise InputError(f"Ward's linkage is about Euclidean distances; give metric 'euclidean', not {metric!r}.")
    if (cut.auto or cut.silhouette) and metric != "cosine":
        raise InputError(f"{cut} judges directions, metric cosine; with {metric!r} give a threshold or k.")


def _check(shown: Sequence[Mapping[ClientId, Tensor]]) -> None:
    if not shown[0]:
        raise InputError("There are no clients to cluster.")
    if any(s.keys() != shown[0].keys() for s in shown):
        raise InputError("Of some clients there is one half only; give both halves of each.")
    if len({v.numel() for s in shown for v in s.values()}) > 1:
        raise InputError("The clients' vectors have different lengths, so no distances can be taken.")


def _exact(
    vectors: Mapping[ClientId, Tensor], ids: Sequence[ClientId], *, linkage: str, metric: str, cut: Cut, seed: Seed
) -> ClusterResult:
    distances = np.zeros(0)
    if len(ids) > 1:
        from scipy.spatial.distance import pdist

        normalised = metric == "cosine" or (linkage == "ward" and cut.k is not None)
        rows = np.stack([_row(vectors[c], normalised) for c in ids])
        distances = pdist(rows, "euclidean" if linkage == "ward" else METRICS[metric])
    found = by_distances(ids, distances, linkage, cut, neighbours=metric == "cosine" and linkage != "ward")
    steady = stability(ids, distances, linkage, cut, found.labels, seed)
    return replace(found, directions=directions(found.labels, vectors), measures=found.measures | steady)


def _row(vector: Tensor, normalised: bool) -> Floats:
    one = unit(vector) if normalised else vector.detach().double().flatten()
    assert one is not None  # the silent were put aside
    return one.numpy()


def _judged(
    shown: Sequence[Mapping[ClientId, Tensor]],
    whole: Mapping[ClientId, Tensor],
    ids: Sequence[ClientId],
    *,
    linkage: str,
    least: int,
    seed: Seed,
) -> ClusterResult:
    """The clusters that are more than chance, with the tree that they were cut from."""
    if len(ids) < 2:
        return ClusterResult(dict.fromkeys(ids, 0), 1, "auto", order=tuple(ids))
    from scipy.spatial.distance import pdist

    first, *second = ([s[c] for c in ids] for s in shown)
    real = judged(first, second[0] if second else None, linkage, least, seed)
    distances, cut = pdist(real.points), Cut(k=real.cut)
    tree = by_distances(ids, distances, linkage, cut)
    labels = canonical(dict(zip(ids, real.labels.tolist(), strict=True)))
    measures = tree.measures | stability(ids, distances, linkage, cut, tree.labels, seed) | real.measures
    aims = directions(labels, whole)
    assert aims is not None  # the silent were put aside
    if len(aims) > 1:
        measures["threshold"] = _reach(labels, whole, aims)
    k = max(labels.values()) + 1
    return replace(tree, labels=labels, k=k, criterion="auto", directions=aims, measures=measures)


def _reach(labels: Mapping[ClientId, int], vectors: Mapping[ClientId, Tensor], aims: Tensor) -> float:
    """How far from a cluster a client may be that joins it: as far as the nearest two clusters are from each other, and
    as any member is from its own."""
    wide = aims.double()
    between = (1 - wide @ wide.T).fill_diagonal_(math.inf).min()
    own = [float(1 - wide[k] @ way) for c, k in labels.items() if (way := unit(vectors[c])) is not None]
    return float(np.nextafter(max(float(between), *own), math.inf))


# Many clients


def _sampled(
    exact: Exact,
    vectors: Mapping[ClientId, Tensor],
    ids: Sequence[ClientId],
    metric: str,
    cut: Cut,
    most: int,
    seed: Seed,
) -> ClusterResult:
    """Cluster a sample, place the others by the directions of its clusters, cluster those that are far from all."""
    if metric != "cosine" and cut.k is None:
        raise InputError(
            f"{len(ids)} clients are more than max_exact = {most}, and others than a sample are placed by cosine; "
            f"with metric {metric!r} raise max_exact or give k."
        )
    chosen = seed.fold("sample", len(ids)).numpy().choice(len(ids), size=most, replace=False)
    sample = in_order([ids[i] for i in chosen])
    found = exact(sample, seed=seed)
    taken = set(sample)
    rest = [c for c in ids if c not in taken]
    labels, far = _placed(found, rest, vectors)
    note = f"{most} of {len(ids)} clients were clustered exactly; {len(rest) - len(far)} joined by direction"
    if far:
        note += f", {len(far)} were far from all and clustered among themselves"
        others = _found(exact, vectors, far, metric, cut, most, seed.fold("far"))
        labels |= {c: found.k + j for c, j in others.labels.items()}
    named = canonical(found.labels | labels)
    return replace(
        found,
        labels=named,
        k=max(named.values()) + 1,
        directions=directions(named, vectors),
        warnings=(*found.warnings, note),
    )


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
