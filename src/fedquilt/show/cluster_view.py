"""The clusters of a run for people: a table and pictures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.table import Table

from fedquilt.core.plain import JSON, Row
from fedquilt.metrics.table import PRIMARY, metric, metrics
from fedquilt.pieces.clustering.result import ClusterResult, members
from fedquilt.results.clusters import LOG, clusters_in, history, placed_words
from fedquilt.storage.folder import RunFolder
from fedquilt.terminal import say, show_table

SHOWN = 20  # clients that a line names


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
    from fedquilt.results.cluster_plots import likeness_picture, river_picture, tree_picture

    made = [tree_picture(found, to / "tree"), likeness_picture(found, to / "likeness")]
    made.append(river_picture(history(rows), to / "river"))
    return [path for path in made if path is not None]


def clusters_table(found: Mapping[str, JSON]) -> None:
    """In the terminal."""
    _scores(found)
    for row in found["clusters"]:
        named = ", ".join(str(c) for c in row["members"][:SHOWN]) + (" ..." if len(row["members"]) > SHOWN else "")
        say(f"cluster {row['cluster']}: {named or 'nobody'}")
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
    title = f"{found['k']} clusters ({found['criterion']}), round {found['round']}; accuracy in %"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    strengths = any(row.get("lambda") is not None for row in found["clusters"])
    first, others = metric(PRIMARY), [m for m in metrics("table") if m.id != PRIMARY]
    names = ("cluster", "size", "accuracy", "std", "least", *(m.short for m in others), "majority", "far")
    for name in (*names, "lambda") if strengths else names:
        table.add_column(name, justify="right", no_wrap=True)  # fits 80 columns
    for row in found["clusters"]:
        numbers = [
            first.told(row, PRIMARY),
            *(first.written(row.get(f"{PRIMARY}_{end}")) for end in ("std", "least")),
            *(m.told(row, m.id) for m in others),
            first.written(row.get("majority_class")),
        ]
        more = [_short(row.get("embedding_distance"))] + ([_short(row.get("lambda"))] if strengths else [])
        table.add_row(str(row["cluster"]), str(len(row["members"])), *(number or "-" for number in numbers), *more)
    show_table(table)
    say(
        "Means over clients, ± 95 % for the number of test samples; std, least: over clients; far: from the cluster's "
        "embedding to the common one."
    )


def _met(found: Mapping[str, JSON]) -> None:
    """How many clients are in a cluster, and how well these meet planted groups."""
    told = "" if not found["placed"] else placed_words(found["placed"])
    if told:
        rest = found["placed"].get("of", 0) > found["placed"]["clients"]
        say(told + ("; the others are scored with the model of lowest loss on their training samples" if rest else ""))
    if found["planted"] is not None:
        met = ", ".join(f"{n} {v:.3f}" for n, v in found["planted"].items())
        say(f"planted groups{f' ({told})' if told else ''}: {met}")


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
