"""Curves over rounds, traffic or time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from fedquilt.core.plain import Row
from fedquilt.metrics.table import PRIMARY, metrics
from fedquilt.report.blocks import Block, Panel, chart, numbers
from fedquilt.report.gather import Gathered
from fedquilt.results.statistics.targets import MEGABYTE
from fedquilt.results.tables import OWN
from fedquilt.results.views import RunView
from fedquilt.storage.finished import chosen, validated

TRAINING = "train_loss"
COSTS = {
    "round": "round",
    "megabytes": "megabytes sent, up and down",
    "seconds": "seconds",
    "virtual_seconds": "virtual seconds, on the links of [network]",
}
SPREAD = "test_accuracy_std"
MOST = 300  # points of a curve


def measures() -> dict[str, str]:
    """The numbers of rounds that have curves, and what they are called."""
    found = {f"test_{m.id}": f"test {m.name}" for m in metrics("report")}
    for m in metrics("report"):
        if "worst10" in m.summaries:
            found[f"test_{m.id}_worst10"] = f"test {m.name}, worst 10 % of clients"
    return found | {
        f"valid_{PRIMARY}": f"validation {PRIMARY}",
        f"common_test_{PRIMARY}": "global model, common test set",
        f"global_test_{PRIMARY}": f"global model, test {PRIMARY}",
        TRAINING: "training loss",
    }


def _shares(names: Iterable[str]) -> list[str]:
    """Those that are shown in per cent."""
    others = {f"test_{m.id}{end}" for m in metrics() if not m.share for end in ("", "_worst10")}
    own = [name for name in OWN if name.startswith("stitch")]
    return [*(name for name in names if name not in others and name != TRAINING), *own]


def curves(found: Gathered) -> Panel | None:
    """Any measure against rounds, megabytes or seconds, mean over seeds with a band."""
    series: list[Row] = [
        {
            "name": label,
            "place": found.places[label],
            "seeds": [s for view in group if (s := _seed(view, not found.sweep))],
        }
        for label, group in found.begun.items()
    ]
    series = [one for one in series if one["seeds"]]
    if not series:
        return None
    note = "Lines are means over seeds at rounds that every seed has."
    if not found.sweep:
        how = chosen(any(validated(view.result) for views in found.begun.values() for view in views))
        note += f" Curves are of test samples and chose nothing: the table shows the {how}."
    return Panel("Curves", "curves", "Over rounds, traffic and time", [_lines(found, series)], note)


def _lines(found: Gathered, series: list[Row]) -> Block:
    """The picture, of the measures that a run has."""
    scores = measures()
    known = {name for one in series for seed in one["seeds"] for name in seed["values"]}
    costs = {n: t for n, t in COSTS.items() if n != "virtual_seconds" or n in known}
    names = {**{n: t for n, t in {**scores, **OWN}.items() if n in known}, **costs}
    most = max(len(one["seeds"]) for one in series)
    return chart(
        "lines",
        "curves",
        "Curves",
        series=series,
        names=names,
        x="round",
        shares=_shares(scores),
        spread=SPREAD,
        y=next(n for n in (*scores, *OWN, *COSTS) if n in known),
        t={str(n): _student(n) for n in range(2, most + 1)},
        level={"test_accuracy": float(np.mean(list(found.constant.values())))} if found.constant else {},
        level_name="majority class",
    )


def _seed(view: RunView, tested: bool) -> Row | None:
    """One run's points, at rounds that were scored; at most ``MOST`` of them; with test scores or without."""
    rows, scores = view.rounds, measures()
    sent = np.cumsum([r["bytes_up"] + r["bytes_down"] for r in rows]) / MEGABYTE
    spent = np.cumsum([r["seconds"] for r in rows])
    scored = [i for i, r in enumerate(rows) if any(r.get(n) is not None for n in scores if n != TRAINING)]
    places = thinned(scored or list(range(len(rows))), MOST)
    if not places:
        return None
    values = {"megabytes": numbers(sent[places]), "seconds": numbers(spent[places], 3)}
    for name in (*scores, *OWN, SPREAD, "virtual_seconds"):
        if (tested or "test" not in name) and any(rows[i].get(name) is not None for i in places):
            values[name] = numbers([rows[i].get(name) for i in places])
    return {"seed": view.seed, "round": [rows[i]["round"] for i in places], "values": values}


def thinned(items: Sequence[int], most: int) -> list[int]:
    """At most so many of them, evenly, with the first and the last."""
    if len(items) <= most:
        return list(items)
    return [items[i] for i in np.unique(np.linspace(0, len(items) - 1, most).round().astype(int)).tolist()]


def _student(seeds: int) -> float:
    from scipy import stats

    return float(stats.t.ppf(0.975, seeds - 1))
