"""The clusters of a run: in its folder, round by round, and read again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import safetensors.torch
from torch import Tensor

from fedquilt.core.net import Net
from fedquilt.core.params import Params
from fedquilt.core.plain import JSON, Row
from fedquilt.core.table import ClientId, in_order
from fedquilt.errors import InputError, StorageError
from fedquilt.metrics.clusters import agreement, churn, cluster_scores, embedding_distances
from fedquilt.pieces.clustering.result import ClusterResult, members
from fedquilt.storage.files import to_json, write_atomic

FILE, ARRAYS, LOG = "clusters.json", "clusters.safetensors", "metrics/clusters.jsonl"
NAMED = 20  # clients of a cluster that are told by name


def clusters_of(state: object) -> ClusterResult | None:
    """The clusters that a server's state holds, if its method makes any and has made them."""
    found = getattr(state, "clusters", None)
    return found if isinstance(found, ClusterResult) and found.labels else None


def row_of(
    round: int, before: ClusterResult | None, now: ClusterResult, planted: Mapping[ClientId, int] | None, clients: int
) -> Row:
    """A round in the log: K (of clusters with members), how many clients are in one (``clients``) of how many there are
    (``of``), the share of those that moved, and how well those placed meet planted groups. Labels are written where
    they are new, as pairs, so that ids keep their type."""
    used = len(set(now.labels.values()))
    row: Row = {"round": round, "k": used, "clients": len(now.labels), "of": clients, "churn": 0.0}
    if before is not None and before.labels != now.labels:
        row["churn"] = churn(before.labels, now.labels)
    if planted is not None and planted.keys() & now.labels.keys():
        row |= {k: v for k, v in asdict(agreement(now.labels, planted)).items() if k != "clients"}
    if round == 1 or before is None or before.labels != now.labels:
        row["labels"] = _pairs(now.labels)
    return row


def placed_words(row: Mapping[str, JSON]) -> str:
    """How many clients are in a cluster: '44 of 50 placed'. Logs of earlier versions do not tell of how many."""
    return f"{row['clients']} of {row['of']} placed" if "of" in row else f"{row['clients']} placed"


def members_words(clients: Sequence[ClientId]) -> str:
    """The clients of a cluster, the first of them by name."""
    return ", ".join(map(str, clients[:NAMED])) + (" ..." if len(clients) > NAMED else "")


def tree_clusters(found: ClusterResult) -> int:
    """How many clusters the leaves of the tree are in."""
    return len({found.labels[c] for c in found.order if c in found.labels}) or 1


def cut_between(tree: Tensor, k: int) -> tuple[float, float]:
    """The heights between which a cut leaves K clusters: the last merge made and the first refused."""
    heights = np.sort(tree[:, 2].double().numpy())
    made = len(heights) + 1 - k
    low = float(heights[made - 1]) if made > 0 else 0.0
    high = float(heights[made]) if made < len(heights) else float(heights[-1]) * 1.1 if len(heights) else 1.0
    return low, high


def by_cluster(
    state: object,
    evaluations: Mapping[ClientId, Mapping[str, JSON]],
    model: Callable[[ClientId], Params],
    net: Net | None,
    majority: Mapping[ClientId, float],
) -> list[Row]:
    """For each cluster its size, the test scores of its clients beside those of the majority class, how far its
    embedding is from the common one, and lambda, the strength with which it was last drawn there.

    The embedding is all but the part called head. The common one is the server's, where its state has such a
    (``common``), and otherwise the mean of the clusters' embeddings, weighted by clients. Lambda is that of a state
    with ``lambdas``, and otherwise None.
    """
    now = clusters_of(state)
    if now is None:
        return []
    scores = {c: e["deployed"]["test"] for c, e in evaluations.items() if "test" in e.get("deployed", {})}
    held = [clients for clients in members(now) if clients]
    models = [model(clients[0]) for clients in held]
    far = _embedding_distances(models, [*map(len, held)], getattr(state, "common", None), net)
    known = getattr(state, "lambdas", ())
    strengths = dict(enumerate(known)) if len(known) == now.k else {}
    return [
        {**row, "embedding_distance": d, "lambda": strengths.get(row["cluster"])}
        for row, d in zip(cluster_scores(now.labels, scores, majority), far, strict=True)
    ]


def _embedding_distances(
    models: Sequence[Params], clients: Sequence[int], common: Params | None, net: Net | None
) -> Sequence[float]:
    head = set() if net is None else {n for n in net.names if n.split(".")[0] == "head"}
    whole = common if common and common.keys() == models[0].keys() - head else None
    return embedding_distances(models, clients, whole, lambda name: name not in head)


def _pairs(labels: Mapping[ClientId, int]) -> list[list[ClientId | int]]:
    return [[client, labels[client]] for client in in_order(list(labels))]


# Files


def save_clusters(
    folder: Path, found: ClusterResult, round: int, classes: int | None = None, clients: int | None = None
) -> None:
    """Write clusters.json, and its arrays beside it."""
    kept = {n: t.contiguous() for n in ("tree", "directions") if (t := getattr(found, n)) is not None}
    arrays = safetensors.torch.save(kept)
    write_atomic(folder / ARRAYS, arrays, folder)
    text = {
        "round": round,
        "k": found.k,
        "criterion": found.criterion,
        "classes": classes,
        "of": clients,
        "labels": _pairs(found.labels),
        "order": list(found.order),
        "measures": dict(found.measures),
        "warnings": list(found.warnings),
        "arrays": hashlib.sha256(arrays).hexdigest(),
    }
    write_atomic(folder / FILE, to_json(text, indent=1).encode(), folder)


def load_clusters(folder: str | Path) -> ClusterResult:
    """The clusters that a run found, from its folder alone.

    Example:
        >>> load_clusters("runs/groups-1a2b3c4d").k  # doctest: +SKIP
        3
    """
    return clusters_in(folder)[0]


def clusters_in(folder: str | Path) -> tuple[ClusterResult, Row]:
    """The clusters in a folder, and all that clusters.json says."""
    place = Path(folder)
    try:
        text: Row = json.loads((place / FILE).read_text(encoding="utf-8"))
        arrays = (place / ARRAYS).read_bytes()
        if hashlib.sha256(arrays).hexdigest() != text["arrays"]:
            raise StorageError(
                f"'{place / ARRAYS}' is not what '{FILE}' was written with. Run 'fedquilt resume {place}'."
            )
        return _clusters_of(text, safetensors.torch.load(arrays)), text
    except FileNotFoundError as error:
        if not place.is_dir():
            raise InputError(f"There is no folder '{place}'. Give the folder of a run.") from error
        raise InputError(
            f"'{place}' has no clusters: {error.filename} is not there. Its method makes none, or was not scored yet."
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        told = f"it has no {error}" if isinstance(error, KeyError) else error
        raise StorageError(f"'{place / FILE}' is damaged: {told}. Delete it and resume the run.") from error


def _clusters_of(text: Row, tensors: Mapping[str, Tensor]) -> ClusterResult:
    """What the two files hold."""
    int(text["round"])  # readers take it as it is
    return ClusterResult(
        labels=dict(text["labels"]),
        k=text["k"],
        criterion=text["criterion"],
        tree=tensors.get("tree"),
        order=tuple(text["order"]),
        directions=tensors.get("directions"),
        measures={k: v for k, v in text["measures"].items() if v is not None},  # null: it was not finite
        warnings=tuple(text["warnings"]),
    )


def history(rows: Sequence[Mapping[str, JSON]]) -> list[tuple[int, dict[ClientId, int]]]:
    """Cluster membership over rounds after each round, from the log."""
    found: list[tuple[int, dict[ClientId, int]]] = []
    labels: dict[ClientId, int] = {}
    for row in rows:
        if "labels" in row:
            labels = dict(row["labels"])
        found.append((row["round"], labels))
    return found
