"""Would other clients have given the same clusters? The cut repeated on parts of the clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId
from fedquilt.pieces.clustering.tree import Cut, by_distances

REPEATS, SHARE = 10, 0.8
FEWEST, MOST = 5, 500  # clients: fewer say nothing, more take long


def stability(
    ids: Sequence[ClientId], distances: Any, linkage: str, cut: Cut, labels: Mapping[ClientId, int], seed: Seed
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
