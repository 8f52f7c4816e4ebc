"""Centres of clusters: distinct starts, the nearest one, and new places for those that nobody chose."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedquilt.core.params import finite
from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId, in_order
from fedquilt.errors import InputError

METRICS = ("squared", "cosine")
NOISE = 1e-6  # of the rows' own size: what rounding to float32 can make of equal rows


def distinct_starts(vectors: Mapping[ClientId, Tensor], k: int, seed: Seed) -> tuple[ClientId, ...]:
    """Up to ``k`` clients with unlike vectors, drawn by k-means++: a client far from those already drawn is likelier.

    Vectors that are not finite never start a cluster. Fewer than ``k`` come back when there are fewer unlike vectors.

    Reference: Arthur and Vassilvitskii, k-means++: The Advantages of Careful Seeding, 2007.
    """
    if k < 1:
        raise InputError(f"The number of clusters must be at least 1, got {k}.")
    ids = [c for c in in_order(list(vectors)) if finite([vectors[c]])]
    if not ids:
        return ()
    from sklearn.cluster import kmeans_plusplus  # takes a second to import

    table = torch.stack([vectors[c].double().flatten() for c in ids])
    _, drawn = kmeans_plusplus(table.numpy(), min(k, len(ids)), random_state=seed.value % 2**32)
    rows: list[int] = []
    for row in map(int, drawn):
        if not any(torch.equal(table[row], table[other]) for other in rows):
            rows.append(row)
    return tuple(ids[row] for row in rows)


def nearest(vector: Tensor, centres: Sequence[Tensor], metric: str = "squared") -> int:
    """The number of the centre at the least squared distance, or of the largest cosine; the lowest number on a tie.

    The cosine with a zero vector counts as 0, so that a zero vector goes to centre 0.
    """
    if not finite([vector, *centres]):
        raise InputError("A vector or a centre holds numbers that are not finite, so no centre is the nearest.")
    far = [distance(vector, centre, metric) for centre in centres]
    return far.index(min(far))


def distance(a: Tensor, b: Tensor, metric: str = "squared") -> float:
    """|a - b|^2, or minus the cosine of a and b, in float64."""
    x, y = a.double().flatten(), b.double().flatten()
    if metric == "squared":
        return float((x - y).square().sum())
    if metric != "cosine":
        raise InputError(f"metric must be one of {', '.join(METRICS)}, got {metric!r}.")
    length = float(torch.linalg.vector_norm(x) * torch.linalg.vector_norm(y))
    return -float(x @ y) / length if length > 0 else 0.0


def reseed_empty(
    vectors: Mapping[ClientId, Tensor],
    labels: Mapping[ClientId, int],
    centres: Sequence[Tensor],
    empty: Sequence[int],
    metric: str = "squared",
) -> dict[int, ClientId]:
    """For each empty cluster the client that should start it anew: the one farthest from its own centre.

    A client is taken once, and never the last member of its cluster; a cluster for which nobody is left stays empty.
    ``labels`` are those of all clients, ``vectors`` of those that may be taken.
    """
    sizes = Counter(labels.values())
    far = {c: distance(v, centres[labels[c]], metric) for c, v in vectors.items()}
    waiting = sorted(in_order(list(far)), key=lambda c: -far[c])  # stable: the smallest id on a tie
    found: dict[int, ClientId] = {}
    for cluster in empty:
        client = next((c for c in waiting if sizes[labels[c]] > 1), None)
        if client is None:
            break
        found[cluster] = client
        sizes[labels[client]] -= 1
        waiting.remove(client)
    return found


def principal(rows: Tensor, most: int) -> Tensor:
    """The first principal directions of the rows [n, d], as columns [d, D], in float64.

    D = min(most, n - 1, d), less if the rows vary in fewer directions. The entry of largest size in each is positive.
    One row has no directions; several that are all equal are an error.
    """
    if not finite([rows]):
        raise InputError("A row holds numbers that are not finite, so it has no principal directions.")
    if len(rows) == 1:
        return torch.zeros(rows.shape[1], 0, dtype=torch.float64)
    wide = rows.double()
    _, sizes, across = torch.linalg.svd(wide - wide.mean(0), full_matrices=False)
    noise = NOISE * float(torch.linalg.matrix_norm(wide))
    count = min(most, len(rows) - 1, int((sizes > noise).sum()))
    if count == 0:
        raise InputError(
            f"The {len(rows)} vectors do not differ, so they have no principal directions. "
            "Were these models trained, with a learning rate above 0?"
        )
    kept = across[:count]
    signs = kept.gather(1, kept.abs().argmax(1, keepdim=True)).sign()
    return torch.transpose(kept * signs, 0, 1)
