"""The clusters of a run for people: a table and pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from rich.box import SIMPLE_HEAD
from rich.table import Table
from scipy.cluster.hierarchy import dendrogram
from torch import Tensor

from fedquilt.core.plain import JSON, Floats, Row
from fedquilt.core.table import ClientId, in_order
from fedquilt.metrics.clusters import churn, tree_distances
from fedquilt.metrics.table import Metric, headline, main, metrics
from fedquilt.pieces.clustering.result import ClusterResult, members
from fedquilt.results.clusters import LOG, clusters_in, cut_between, history, members_words, placed_words, tree_clusters
from fedquilt.results.plots import COLOURS, STYLE, save, subplots
from fedquilt.storage.folder import RunFolder
from fedquilt.terminal import say, show_table


def viewed(folder: Path, to: Path | None = None) -> Row:
    """What is known of the clusters, as plain values; pictures are drawn below ``to``."""
    found, text = clusters_in(folder)
    rows = RunFolder(folder).rows(LOG)
    scored, met = _last(rows, "clusters"), _last(rows, "ari")
    return {
        "folder": str(folder),
        "round": text["round"],
        "k": found.k,
        "criterion": found.criterion,
        "measures": text["measures"],
        "warnings": text["warnings"],
        "labels": text["labels"],
        "placed": {name: rows[-1][name] for name in ("clients", "of") if name in rows[-1]} if rows else None,
        "planted": {name: met[name] for name in ("ari", "nmi", "purity")} if met else None,
        "moved": {str(row["round"]): row["churn"] for row in rows if row["churn"] > 0},
        "clusters": _lines(found, scored.get("clusters", [])),
        "pictures": [str(p) for p in drawn(found, rows, to or folder / "clusters")],
    }


def _last(rows: list[Row], field: str) -> Row:
    """The last row that has this field; an empty one without."""
    return next((row for row in reversed(rows) if field in row), {})


def _lines(found: ClusterResult, scored: list[Row]) -> list[Row]:
    known = {row["cluster"]: row for row in scored}
    return [
        {"cluster": k, "members": list(group), **{n: v for n, v in known.get(k, {}).items() if n != "cluster"}}
        for k, group in enumerate(members(found))
    ]


def drawn(found: ClusterResult, rows: list[Row], to: Path) -> list[Path]:
    """The pictures that can be drawn."""
    from fedquilt.show.cluster_view import likeness_picture, river_picture, tree_picture

    made = [tree_picture(found, to / "tree"), likeness_picture(found, to / "likeness")]
    made.append(river_picture(history(rows), to / "river"))
    return [path for path in made if path is not None]


def clusters_table(found: Mapping[str, JSON]) -> None:
    """In the terminal."""
    _scores(found)
    for row in found["clusters"]:
        say(f"cluster {row['cluster']}: {members_words(row['members']) or 'none'}")
    _met(found)
    known = {n: v for n, v in found["measures"].items() if v is not None}
    if known:
        say("measures: " + ", ".join(f"{n} {v:.4g}" for n, v in known.items()))
    if found["moved"]:
        moves = list(found["moved"].items())
        say("moved: " + ", ".join(f"round {r} {100 * share:.0f} %" for r, share in moves[-8:]))
    for warning in found["warnings"]:
        say(f"warning: {warning}")
    for picture in found["pictures"]:
        say(f"picture {picture}")


def _scores(found: Mapping[str, JSON]) -> None:
    """The scores of each cluster's clients."""
    title = f"{found['k']} clusters ({found['criterion']}), round {found['round']}; {headline()}"
    strengths = any(row.get("lambda") is not None for row in found["clusters"])
    rows = found["clusters"]
    first = main()
    others = [m for m in metrics("table") if m.id != first.id and any(m.told(row, m.id) for row in rows)]
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    names = ("cluster", "size", first.short, "std", "least", *(m.short for m in others), "majority", "far", "lambda")
    for name in names if strengths else names[:-1]:
        table.add_column(name, justify="right", no_wrap=True)  # fits 80 columns
    for row in found["clusters"]:
        more = [_short(row.get("embedding_distance")), _short(row.get("lambda"))][: 1 + strengths]
        table.add_row(str(row["cluster"]), str(len(row["members"])), *_numbers(row, first, others), *more)
    show_table(table)
    say(
        "Means over clients, ± 95 % for the number of test samples; std, least: over clients; far: from the cluster's "
        "embedding to the common one."
    )


def _numbers(row: Mapping[str, JSON], first: Metric, others: Sequence[Metric]) -> list[str]:
    """The scores of a cluster's clients, beside the majority class."""
    told = [
        first.told(row, main().id),
        *(first.written(row.get(f"{main().id}_{end}")) for end in ("std", "least")),
        *(m.told(row, m.id) for m in others),
        first.written(row.get("majority_class")),
    ]
    return [number or "-" for number in told]


def _met(found: Mapping[str, JSON]) -> None:
    """How many clients are in a cluster, and how well these meet planted groups."""
    told = "" if not found["placed"] else placed_words(found["placed"])
    if told:
        rest = found["placed"].get("of", 0) > found["placed"]["clients"]
        say(told + ("; the others use the cluster model with the lowest training loss" if rest else ""))
    if found["planted"] is not None:
        met = ", ".join(f"{n} {v:.3f}" for n, v in found["planted"].items())
        say(f"true groups{f' ({told})' if told else ''}: {met}")


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


MOST = 500  # clients in a heat map
NAMED = 60  # clients whose names can be read on an axis


def colour(cluster: int) -> str:
    """The colour of a cluster; they come again after eight."""
    return COLOURS[cluster % len(COLOURS)]


def staircase(tree: Tensor) -> list[tuple[float, int]]:
    """(threshold, K): from this threshold on (strictly above the height before it) the cut leaves K clusters."""
    heights = tree[:, 2].double().numpy()
    return [(0.0, len(heights) + 1)] + [(float(h), len(heights) - i) for i, h in enumerate(np.sort(heights))]


def tree_picture(found: ClusterResult, path: Path) -> Path | None:
    """The dendrogram with the cut, and K by threshold; None without a tree."""
    if found.tree is None or not len(found.tree):
        return None
    cut = _cut(found, found.tree)
    tree = found.tree.double().numpy().clip(min=0)
    with rc_context(STYLE):
        wide = min(18.0, 4.0 + 0.12 * len(found.order))
        figure, (left, right) = subplots(1, 2, figsize=(wide + 4, 4.2), width_ratios=(wide, 4))
        _dendrogram(left, tree, found, cut)
        steps = staircase(found.tree)
        x = [t for t, _ in steps] + [steps[-1][0] * 1.1]
        right.step(x, [k for _, k in steps] + [1], where="post", color=COLOURS[0])
        right.axvline(cut, color=COLOURS[1], linestyle="--", linewidth=1.2)
        right.set(xlabel="threshold", ylabel="clusters", title="K by threshold")
        if len(x) > 30:
            right.set_yscale("log")
            right.yaxis.set_major_formatter("{x:g}")
        else:
            right.yaxis.set_major_locator(MaxNLocator(integer=True))
        return save(figure, path, ("threshold", "clusters"), steps)


def _cut(found: ClusterResult, tree: Tensor) -> float:
    """Where the line goes: at the threshold if one was given and lies there, else half-way between two merges."""
    low, high = cut_between(tree, tree_clusters(found))
    given = found.measures.get("threshold")
    return given if given is not None and low < given < high else (low + high) / 2


def _dendrogram(axis: Axes, tree: Floats, found: ClusterResult, cut: float) -> None:
    """Branches below the cut in their cluster's colour."""
    leaves = len(found.order)
    owner: dict[int, int | None] = {i: found.labels.get(c) for i, c in enumerate(found.order)}
    for i, (a, b, height, _) in enumerate(tree):
        owner[leaves + i] = owner[int(a)] if owner[int(a)] == owner[int(b)] and height < cut else None

    def paint(node: int) -> str:
        cluster = owner[node]
        return "#777777" if cluster is None else colour(cluster)

    names = [str(c) for c in found.order]
    dendrogram(tree, ax=axis, link_color_func=paint, labels=names, no_labels=leaves > NAMED, leaf_rotation=90)
    axis.axhline(cut, color=COLOURS[1], linestyle="--", linewidth=1.2)
    axis.annotate(
        f"cut, {tree_clusters(found)} clusters",
        (1, cut),
        xycoords=("axes fraction", "data"),
        ha="right",
        va="bottom",
        color=COLOURS[1],
        fontsize=9,
    )
    axis.grid(False, axis="x")
    axis.set(xlabel="client", ylabel="distance at which groups merge", title=f"Tree of clients ({found.criterion})")


def likeness_picture(found: ClusterResult, path: Path) -> Path | None:
    """How high in the tree each pair of clients meets, clients sorted by cluster; None without a tree, or with more
    clients than can be seen. CSV: the matrix."""
    if found.tree is None or not 2 <= len(found.order) <= MOST:
        return None
    order = sorted(range(len(found.order)), key=lambda i: (found.labels.get(found.order[i], -1), i))
    labels = [found.labels.get(found.order[i], -1) for i in order]
    far = tree_distances(found.tree)[np.ix_(order, order)]
    names, edges = [str(found.order[i]) for i in order], np.arange(len(order) + 1) - 0.5
    with rc_context(STYLE):
        figure, axis = subplots(figsize=(6.4, 5.4))
        mesh = axis.pcolormesh(edges, edges, far, cmap="viridis_r", vmin=0, rasterized=True)
        figure.colorbar(mesh, ax=axis, label="distance at which they merge")
        for place in (i for i in range(1, len(labels)) if labels[i] != labels[i - 1]):
            axis.axhline(place - 0.5, color="white", linewidth=1)
            axis.axvline(place - 0.5, color="white", linewidth=1)
        axis.set(xlabel="client", ylabel="client", title="Similarity of clients, sorted by cluster", aspect="equal")
        _name_clients(axis, names)
        axis.invert_yaxis()
        axis.grid(False)
        rows = [(n, c, *(round(d, 6) for d in r)) for n, c, r in zip(names, labels, far.tolist(), strict=True)]
        return save(figure, path, ("client", "cluster", *names), rows)


def _name_clients(axis: Axes, names: Sequence[str]) -> None:
    """On both axes, unless there are too many: their places would be taken for them."""
    if len(names) <= NAMED:
        size = min(8.0, 270 / len(names))  # points for each name
        axis.set_xticks(range(len(names)), names, rotation=90, fontsize=size)
        axis.set_yticks(range(len(names)), names, fontsize=size)
    else:
        axis.set(xticks=[], yticks=[], xlabel="clients", ylabel="clients")


History = Sequence[tuple[int, Mapping[ClientId, int]]]


def river_picture(rounds: History, path: Path) -> Path | None:
    """Who is in which cluster, round by round: a band per cluster, and between rounds a stream for those that go from
    one to another; None for no round. CSV: round, client, cluster. Many rounds are thinned to those where somebody
    moved, and at most forty."""
    if not rounds:
        return None
    shown = _thinned(rounds)
    clients = in_order(sorted(set().union(*(labels for _, labels in shown)), key=str))
    with rc_context(STYLE):
        figure, axis = subplots(figsize=(min(16.0, 4 + 0.5 * len(shown)), 4.4))
        for x, (_, labels) in enumerate(shown):
            for cluster, (low, high) in _stack(labels).items():
                axis.fill_between([x - 0.12, x + 0.12], low, high, color=colour(cluster), linewidth=0)
        for x in range(len(shown) - 1):
            _flow(axis, x, shown[x][1], shown[x + 1][1])
        axis.set_xticks(range(len(shown)), [str(r) for r, _ in shown])
        axis.set(xlabel="round", ylabel="clients", title="Clusters over rounds", ylim=(0, None))
        _legend(axis, shown)
        axis.grid(False)
        rows = [(r, c, labels[c]) for r, labels in rounds for c in clients if c in labels]
        return save(figure, path, ("round", "client", "cluster"), rows)


def _legend(axis: Axes, shown: History) -> None:
    for cluster in sorted({k for _, labels in shown for k in labels.values()})[: len(COLOURS)]:
        axis.plot([], [], color=colour(cluster), linewidth=6, label=f"cluster {cluster}")
    axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))


def _thinned(rounds: History, most: int = 40) -> History:
    """The first, the last, and those around which somebody moved; evenly fewer if that is too many."""
    kept = [
        i
        for i in range(len(rounds))
        if i in (0, len(rounds) - 1) or len(rounds) <= most or _moved(rounds[i - 1][1], rounds[i][1])
    ]
    if len(kept) > most:
        kept = [kept[int(i)] for i in np.linspace(0, len(kept) - 1, most)]
    return [rounds[i] for i in kept]


def _moved(before: Mapping[ClientId, int], after: Mapping[ClientId, int]) -> bool:
    return before is not after and (before.keys() != after.keys() or churn(before, after) > 0)


def _stack(labels: Mapping[ClientId, int]) -> dict[int, tuple[int, int]]:
    """From where to where each cluster's band goes."""
    found, start = {}, 0
    for cluster in sorted(set(labels.values())):
        size = sum(k == cluster for k in labels.values())
        found[cluster] = (start, start + size)
        start += size
    return found


def _flow(axis: Axes, x: int, before: Mapping[ClientId, int], after: Mapping[ClientId, int]) -> None:
    """Streams between two rounds, smooth from left to right."""
    left = {k: low for k, (low, _) in _stack(before).items()}
    right = {k: low for k, (low, _) in _stack(after).items()}
    t = np.linspace(0, 1, 20)
    ease, across = t * t * (3 - 2 * t), x + 0.12 + t * 0.76
    for a in sorted(left):
        for b in sorted(right):
            size = sum(k == a and after.get(c) == b for c, k in before.items())
            if size:
                low = left[a] + (right[b] - left[a]) * ease
                axis.fill_between(across, low, low + size, color=colour(a), alpha=0.35, linewidth=0)
                left[a], right[b] = left[a] + size, right[b] + size
