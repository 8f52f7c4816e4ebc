"""The clusters that methods found: tree, members over rounds, scores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import chain

import numpy as np
from scipy.cluster.hierarchy import dendrogram

from fedquilt.core.plain import Row
from fedquilt.core.table import in_order
from fedquilt.errors import FedquiltError
from fedquilt.metrics.table import ROWS_HALF, main, trivial
from fedquilt.pieces.clustering.result import ClusterResult, members
from fedquilt.report.blocks import RUN, Block, Panel, chart, column, numbers, table, text
from fedquilt.report.gather import Gathered
from fedquilt.report.panels.clients import thinned
from fedquilt.results.clusters import LOG, clusters_in, cut_between, history, members_words, placed_words, tree_clusters
from fedquilt.results.views import RunView

LEAVES = 400  # of a tree that can be seen


def clusters(found: Gathered) -> Panel | None:
    """For runs that made clusters."""
    trees: list[Block] = []
    rivers: list[Block] = []
    rows: list[Row] = []
    notes: list[str] = []
    placed: list[str] = []
    for view in chain.from_iterable(found.begun.values()):
        if not (view.folder / "clusters.json").exists():
            continue
        try:
            result, written = clusters_in(view.folder)
        except (FedquiltError, KeyError, ValueError) as error:
            notes.append(f"{view.display}, seed {view.seed}: the clusters cannot be read ({error}).")
            continue
        keys = {"method": view.display, "seed": str(view.seed)}
        log = view.rows(LOG)
        if tree := _tree(result):
            trees.append({"keys": keys, **tree})
        if log:
            rivers.append({"keys": keys, **_river(log, found)})
            placed.append(f"{view.display}, seed {view.seed}: {placed_words(log[-1])}{_agreed(log[-1])}.")
        rows += _lines(view, result, log, found)
        notes += [f"{view.display}, seed {view.seed}: {w}" for w in written["warnings"]]
    if not rows and not notes:
        return None
    blocks = [*_lead(notes, placed, trees, rivers), table("clusters", _columns(), rows, filter=True)]
    return Panel("Methods", "clusters", "Clusters of clients", blocks)


def _lead(notes: list[str], placed: list[str], trees: list[Block], rivers: list[Block]) -> Iterator[Block]:
    """Warnings, how many clients were placed, the trees of clients, and who was in which cluster; as far as there are
    any."""
    if notes:
        yield text(*notes, tone="warning")
    if placed:
        yield text(*placed)
    names = {"x_name": "client", "y_name": "distance at which groups merge"}
    if trees:
        yield chart("tree", "tree", "Dendrogram and cut", variants=trees, **names)
    names = {"x_name": "round", "y_name": "client"}
    if rivers:
        yield chart("matrix", "members", "Cluster membership over rounds", variants=rivers, **names, categories=True)


def _agreed(row: Row) -> str:
    return f"; of these, ARI {row['ari']:.2f} against the true groups" if "ari" in row else ""


def _shown() -> tuple[str, ...]:
    """The scores of a cluster, by their keys."""
    first = main().id
    return (first, first + ROWS_HALF, f"{first}_least", "majority_class")


def _columns() -> tuple[Row, ...]:
    first, half, least, constant = _shown()
    look, worst = main().look, "lowest" if main().higher_is_better else "highest"
    return (
        *RUN,
        column("cluster", "cluster", "number", digits=0),
        column("size", "clients", "number", digits=0),
        column(first, main().short, **look, half=half),
        column(least, worst, **look),
        column(constant, trivial(), **look),
        column("groups", "planted groups", help="members by true group"),
        column("members", "members"),
    )


def _lines(view: RunView, result: ClusterResult, log: list[Row], found: Gathered) -> list[Row]:
    scored: Row = next((row for row in reversed(log) if "clusters" in row), {})
    known = {row["cluster"]: row for row in scored.get("clusters", [])}
    lines = []
    for place, group in enumerate(members(result)):
        counts = Counter(found.groups[client] for client in group if client in found.groups)
        lines.append(
            {
                **found.named(view),
                "cluster": place,
                "size": len(group),
                "members": members_words(group),
                "groups": ", ".join(f"{n} x {g}" for g, n in sorted(counts.items())) or None,
                **{n: known.get(place, {}).get(n) for n in _shown()},
            }
        )
    return lines


def _tree(result: ClusterResult) -> Row:
    """The links of the dendrogram as lines, each in the colour of its cluster if it lies below the cut; nothing for a
    tree that is not there, or that cannot be seen."""
    if result.tree is None or not 2 <= len(result.order) <= LEAVES:
        return {}
    tree = result.tree.double().numpy().clip(min=0)
    drawn = dendrogram(tree, no_plot=True)
    low, high = cut_between(result.tree.clip(min=0), tree_clusters(result))
    labels = [result.labels.get(result.order[i]) for i in drawn["leaves"]]
    links = []
    for xs, ys in zip(drawn["icoord"], drawn["dcoord"], strict=True):
        below = max(ys) <= low + 1e-12
        first = int((min(xs) - 5) // 10)
        links.append(
            {"x": numbers((np.array(xs) - 5) / 10, 3), "y": numbers(ys), "cluster": labels[first] if below else None}
        )
    return {
        "links": links,
        "cut": (low + high) / 2,
        "leaves": [str(result.order[i]) for i in drawn["leaves"]],
        "labels": labels,
        "criterion": result.criterion,
    }


def _river(log: list[Row], found: Gathered) -> Row:
    """Clients by rounds, with the number of the cluster that each was in; clients sorted by their last one."""
    past = history(log)
    past = thinned(past, 200)
    last = past[-1][1]
    known = in_order(list(dict.fromkeys(c for _, labels in past for c in labels)))
    clients = sorted(known, key=lambda c: last.get(c, -1))  # which keeps their order inside a cluster
    clients = thinned(clients, LEAVES)
    return {
        "x": [str(round) for round, _ in past],
        "y": [str(c) for c in clients],
        "name": "cluster",
        "values": [[labels.get(c) for _, labels in past] for c in clients],
        "groups": [found.groups.get(c) for c in clients] if found.groups else None,
    }
