"""Clusters whose models serve each other's clients equally well."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

APART = 1e9  # the distance of clusters that cannot be compared


def alike(loss: NDArray[np.float64], limit: float) -> list[list[int]]:
    """Groups of clusters by complete linkage on d(i, j) = max(L_ij - L_jj, L_ji - L_ii, 0), cut at ``limit``, which may
    be reached. Each group is in order, and groups are in the order of their smallest number.

    Args:
        loss: [k, k]: L_ij of model i on the rows of cluster j; NaN where nobody of cluster j was heard.
        limit: How much a loss may rise, >= 0.
    """
    from scipy.cluster.hierarchy import fcluster, linkage  # takes a while to import
    from scipy.spatial.distance import squareform

    if len(loss) == 1:
        return [[0]]
    rise = loss - np.diag(loss)  # [i, j]: L_ij - L_jj
    apart = np.nan_to_num(np.maximum(np.maximum(rise, rise.T), 0), nan=APART)
    np.fill_diagonal(apart, 0)
    names = fcluster(linkage(squareform(apart), "complete"), limit, "distance")
    groups = {name: [k for k, n in enumerate(names) if n == name] for name in names}
    return sorted(groups.values())
