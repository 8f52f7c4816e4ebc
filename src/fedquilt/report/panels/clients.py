"""Scores over rounds: curves of the mean, and client by client how they are spread and how each one fared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import numpy as np

from fedquilt.core.plain import JSON, Array, Row
from fedquilt.core.table import ClientId
from fedquilt.metrics.table import Metric, cells, client_columns, main, metric, metrics, trivial
from fedquilt.report.blocks import Block, Panel, chart, column, numbers, table, used
from fedquilt.report.gather import Gathered
from fedquilt.results.statistics.targets import MEGABYTE
from fedquilt.results.tables import OWN
from fedquilt.results.views import RunView
from fedquilt.storage.finished import chosen, validated

TAB = "Clients"
MOST_CLIENTS = 1000  # dots of a method
MOST_AT_A_GLANCE = 200
MOST_CELLS = 250_000  # numbers of all heat maps together


def _round(view: RunView) -> int | None:
    """The round that validation chose; of an unfinished run, the last that was scored."""
    rounds = view.scored.rounds
    chosen = view.result.get("best_round")
    return chosen if chosen in rounds else rounds[-1] if rounds else None


def _values(view: RunView, measure: str) -> dict[ClientId, float]:
    at = _round(view)
    if at is None:
        return {}
    column = view.scored.values[measure][:, view.scored.rounds.index(at)].tolist()
    return {client: value for client, value in zip(view.scored.clients, column, strict=True) if value == value}


def distribution(found: Gathered) -> Panel | None:
    """A box and a dot for every client, at the chosen round."""
    clients = list(dict.fromkeys(c for group in found.begun.values() for view in group for c in view.scored.clients))
    if not clients:
        return None
    shown = thinned(clients, MOST_CLIENTS)
    variants = [variant for m in metrics("report") for variant in _spreads(found, m, shown)]
    block = chart(
        "strip",
        "distribution",
        "Clients' test scores",
        clients=[str(c) for c in shown],
        variants=variants,
        level=level_of(found),
        level_name=trivial(),
    )
    sample = "" if len(shown) == len(clients) else f" {len(shown)} of {len(clients)} clients are shown, evenly spaced."
    note = "Box: quartiles and median; each dot is a client, at the round selected on validation data." + sample
    return Panel(TAB, "distribution", "Accuracy by client", [block], note)


def _spreads(found: Gathered, m: Metric, shown: Sequence[ClientId]) -> list[Row]:
    """The clients' scores by a metric, over all seeds and in each of them; none where nobody has any."""
    held = {
        label: [(view.seed, _values(view, m.id)) for view in group if view.scored.rounds]
        for label, group in found.begun.items()
    }
    if not any(scores for runs in held.values() for _, scores in runs):
        return []
    made = {name: _groups(found, held, shown, wanted) for name, wanted in _choices(found).items()}
    return [
        {"keys": {"measure": m.name, "seeds": name}, "groups": groups, "share": m.share}
        for name, groups in made.items()
        if groups
    ]


def _choices(found: Gathered) -> dict[str, list[int]]:
    """All seeds together, if there are several, and each of them."""
    seeds = list(dict.fromkeys(view.seed for view in found.views))
    together = {"mean over seeds": seeds} if len(seeds) > 1 else {}
    return together | {f"seed {seed}": [seed] for seed in seeds}


def _groups(
    found: Gathered,
    held: Mapping[str, Sequence[tuple[int, Mapping[ClientId, float]]]],
    shown: Sequence[ClientId],
    seeds: Sequence[int],
) -> list[Row]:
    """Each method's scores of these clients, means over these seeds."""
    rows = {
        label: [[scores.get(c, np.nan) for c in shown] for seed, scores in runs if seed in seeds]
        for label, runs in held.items()
    }
    return [
        {"name": label, "place": found.places[label], "values": numbers(_mean(own))}
        for label, own in rows.items()
        if own
    ]


def at_a_glance(found: Gathered) -> list[Block]:
    """Small pictures beside the headline: accuracy by round, and the clients at the chosen round."""
    known = {name for group in found.begun.values() for view in group for row in view.rounds[-1:] for name in row}
    name = next((n for n in (f"{s}_{main().id}" for s in ("test", "common_test", "valid")) if n in known), None)
    if name is None:
        return []
    series = series_of(found, lambda view: _only(_seed(view, tested=True), name))
    told = measures()[name]
    lines = chart(
        "lines",
        "glance",
        f"{told[0].upper()}{told[1:]} by round" + ", %" * main().share,
        series=series,
        names={"round": "round", name: told},
        x="round",
        y=name,
        shares=[name] if main().share else [],
        spread=f"test_{main().id}_std",
        t={},
        level={f"test_{measure}": level for measure, level in level_of(found).items()},
        level_name=trivial(),
        bare=True,
        beside=True,
    )
    return [*([lines] if series else []), *_strip_at_a_glance(found)]


def _only(seed: Row | None, name: str) -> Row | None:
    """A run's points of one measure."""
    if seed is None or name not in seed["values"]:
        return None
    return {**seed, "values": {name: seed["values"][name]}}


def _strip_at_a_glance(found: Gathered) -> list[Block]:
    clients = list(dict.fromkeys(c for group in found.begun.values() for view in group for c in view.scored.clients))
    shown = thinned(clients, MOST_AT_A_GLANCE)
    variants = [{**v, "keys": {"measure": v["keys"]["measure"]}} for v in _spreads(found, main(), shown)[:1]]
    if not clients or not variants:
        return []
    title = f"Each client's test {main().name} at the selected round"
    names = [str(c) for c in shown]
    look = {"level": level_of(found), "level_name": trivial(), "beside": True}
    return [chart("strip", "glance-clients", title, clients=names, variants=variants, **look)]


SURE = (
    column("method", "method"),
    column("client", "client"),
    column("rows", "test samples", "number", digits=0),
    column("rarest", "of its rarest class", "number", digits=0, help="test samples of the client's rarest class"),
)
MOST_SURE = 1000  # lines


def sureness(found: Gathered) -> Panel | None:
    """Each client's test scores with intervals that know how many rows they rest on, the lowest first."""
    columns = [*SURE, *client_columns("table")]
    rows = [row for group in found.begun.values() for row in _sure_rows(found, group[0], columns)]
    if not rows:
        return None
    rows.sort(key=lambda row: row[main().id], reverse=not main().higher_is_better)
    low = "lowest" if main().higher_is_better else "highest"
    columns = used(columns, rows)
    few = "" if len(rows) <= MOST_SURE else f" The {low} {MOST_SURE} of {len(rows)}; metrics/clients.jsonl has all."
    seeds = len(next(iter(found.begun.values())))
    note = (
        "Intervals reflect the number of a client's own test samples, "
        f"{'in the first seed, ' if seeds > 1 else ''}at the round selected on validation data.{few}"
    )
    fold = f"All clients, {low} {main().name} first"
    block = table("sureness", columns, rows[:MOST_SURE], filter=True, fold=fold)
    return Panel(TAB, "sureness", "Confidence intervals by client", [block], note)


def _sure_rows(found: Gathered, view: RunView, columns: Sequence[Row]) -> list[Row]:
    """The clients of a run whose accuracy has an interval."""
    at = _round(view)
    tests = view.tests_at(at) if at is not None else []
    whose = {"method": view.display, "place": found.places[view.display]}
    return [
        cells(columns, row) | whose | {"client": str(row["client"])}
        for row in tests
        if any(row.get(f"{main().id}_{end}") is not None for end in ("low", "half_95"))
    ]


def _mean(rows: list[list[float]]) -> Array:
    values = np.array(rows, dtype=float)
    known = ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        return np.where(known.any(0), np.nansum(values, 0) / known.sum(0), np.nan)


def heat_map(found: Gathered) -> Panel | None:
    """Clients by rounds, for every run."""
    views = [view for group in found.begun.values() for view in group if view.scored.rounds]
    if not views:
        return None
    measures = [main(), metric("loss")]
    cells = sum(len(v.scored.clients) * len(v.scored.rounds) for v in views)
    if cells * 2 > MOST_CELLS:
        measures = measures[:1]
    share = min(1.0, (MOST_CELLS / (cells * len(measures))) ** 0.5)  # of clients, and of rounds
    notes = [] if share == 1 else ["Rounds and clients are subsampled evenly to keep the file small."]
    variants: list[Block] = [_map(view, m, share, found) for view in views for m in measures]
    block = chart("matrix", "heat", "Clients by round", variants=variants, x_name="round", y_name="client", order=True)
    return Panel(
        TAB,
        "heat",
        "Accuracy by client and round",
        [block],
        " ".join(["Test scores of the model that each client deploys.", *notes]),
    )


def _map(view: RunView, m: Metric, share: float, found: Gathered) -> Row:
    scored = view.scored
    columns = thinned(range(len(scored.rounds)), max(2, int(share * len(scored.rounds))))
    rows = thinned(range(len(scored.clients)), max(2, int(share * len(scored.clients))))
    values = scored.values[m.id][np.ix_(rows, columns)]
    keys = {"method": view.display, "seed": str(view.seed), "measure": m.name}
    return {
        "keys": keys,
        "x": [str(scored.rounds[i]) for i in columns],
        "y": [str(scored.clients[i]) for i in rows],
        "groups": [found.groups.get(scored.clients[i]) for i in rows] if found.groups else None,
        "values": numbers(values, 4 if m.share else 3),
        "share": m.share,
        "name": m.name,
    }


T = TypeVar("T")
TRAINING = "train_loss"
COSTS = {
    "round": "round",
    "megabytes": "megabytes sent, up and down",
    "seconds": "seconds",
    "virtual_seconds": "virtual seconds, on the links of [network]",
}
MOST = 300  # points of a curve


def measures() -> dict[str, str]:
    """The numbers of rounds that have curves, and what they are called."""
    found = {f"test_{m.id}": f"test {m.name}" for m in metrics("report")}
    for m in metrics("report"):
        if "worst10" in m.summaries:
            found[f"test_{m.id}_worst10"] = f"test {m.name}, worst 10 % of clients"
    return found | {
        f"valid_{main().id}": f"validation {main().name}",
        f"common_test_{main().id}": "global model, common test set",
        f"global_test_{main().id}": f"global model, test {main().name}",
        TRAINING: "training loss",
    }


def _shares(names: Iterable[str]) -> list[str]:
    """Those that are shown in per cent."""
    others = {f"test_{m.id}{end}" for m in metrics() if not m.share for end in ("", "_worst10")}
    if not main().share:
        others |= {f"{start}_{main().id}" for start in ("valid", "common_test", "global_test")}
    own = [name for name in OWN if name.startswith("stitch")]
    return [*(name for name in names if name not in others and name != TRAINING), *own]


def curves(found: Gathered) -> Panel | None:
    """Any measure against rounds, megabytes or seconds, mean over seeds with a band."""
    series = series_of(found, partial(_seed, tested=not found.sweep))
    if not series:
        return None
    note = "Lines are means over seeds at rounds that every seed has."
    if not found.sweep:
        how = chosen(any(validated(view.result) for views in found.begun.values() for view in views))
        note += f" Curves show test data, which were not used for selection: the table shows the {how}."
    return Panel("Curves", "curves", "Learning curves", [_lines(found, series)], note)


def series_of(found: Gathered, points: Callable[[RunView], Row | None]) -> list[Row]:
    """The points of each method's seeds, for methods that have any."""
    made = {label: [p for view in group if (p := points(view))] for label, group in found.begun.items()}
    return [{"name": label, "place": found.places[label], "seeds": seeds} for label, seeds in made.items() if seeds]


def level_of(found: Gathered) -> dict[str, float]:
    """The accuracy of the majority class, where it is known."""
    means = [float(np.mean(list(known.values()))) for known in found.constant.values() if known]
    return {main().id: float(np.mean(means))} if means else {}


def _lines(found: Gathered, series: list[Row]) -> Block:
    """The picture, of the measures that a run has."""
    scores = measures()
    known = {"round", *(name for one in series for seed in one["seeds"] for name in seed["values"])}
    names = {n: t for n, t in {**scores, **OWN, **COSTS}.items() if n in known}
    most = max(len(one["seeds"]) for one in series)
    return chart(
        "lines",
        "curves",
        "Curves",
        series=series,
        names=names,
        x="round",
        shares=_shares(scores),
        spread=f"test_{main().id}_std",
        y=next(iter(names)),
        t={str(n): _student(n) for n in range(2, most + 1)},
        level={f"test_{name}": value for name, value in level_of(found).items()},
        level_name=trivial(),
    )


def _seed(view: RunView, tested: bool) -> Row | None:
    """One run's points, at rounds that were scored; at most ``MOST`` of them; with test scores or without."""
    scores = measures()
    places = thinned(_scored_places(view.rounds, scores.keys() - {TRAINING}), MOST)
    if not places:
        return None
    rows = [view.rounds[i] for i in places]
    sent = np.cumsum([r["bytes_up"] + r["bytes_down"] for r in view.rounds]) / MEGABYTE
    values = {
        "megabytes": numbers(sent[places]),
        "seconds": numbers(np.cumsum(_column(view.rounds, "seconds"))[places], 3),
    }
    for name in (*scores, *OWN, f"test_{main().id}_std", "virtual_seconds"):
        points = _column(rows, name) if tested or "test" not in name else []
        if any(point is not None for point in points):
            values[name] = numbers(points)
    return {"seed": view.seed, "round": _column(rows, "round"), "values": values}


def _column(rows: Sequence[Row], name: str) -> list[JSON]:
    return [row.get(name) for row in rows]


def _scored_places(rows: Sequence[Row], names: Iterable[str]) -> list[int]:
    """The places of the rounds that were scored; of all if none was."""
    found = [i for i, row in enumerate(rows) if any(row.get(name) is not None for name in names)]
    return found or list(range(len(rows)))


def thinned(items: Sequence[T], most: int) -> list[T]:
    """At most so many of them, evenly, with the first and the last."""
    if len(items) <= most:
        return list(items)
    return [items[i] for i in np.unique(np.linspace(0, len(items) - 1, most).round().astype(int)).tolist()]


def _student(seeds: int) -> float:
    from scipy import stats

    return float(stats.t.ppf(0.975, seeds - 1))
