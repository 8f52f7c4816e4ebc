"""Curves over rounds, traffic or time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedquilt.runs.finished import chosen, validated
from fedquilt.runs.report.blocks import Panel, chart, numbers
from fedquilt.runs.report.gather import Gathered
from fedquilt.runs.statistics.targets import MEGABYTE
from fedquilt.runs.tables import OWN
from fedquilt.runs.views import RunView

MEASURES = {
    "test_accuracy": "test accuracy", "test_loss": "test loss", "test_balanced_accuracy": "balanced test accuracy",
    "test_macro_f1": "macro F1", "test_accuracy_worst10": "test accuracy, worst 10 % of clients",
    "valid_accuracy": "validation accuracy", "common_test_accuracy": "global model, common test set",
    "global_test_accuracy": "global model, test accuracy", "train_loss": "training loss",
}  # fmt: skip
SHARES = [*(name for name in MEASURES if "loss" not in name), *(name for name in OWN if name.startswith("stitch"))]
COSTS = {
    "round": "round", "megabytes": "megabytes sent, up and down", "seconds": "seconds",
    "virtual_seconds": "virtual seconds, on the links of [network]",
}  # fmt: skip
SPREAD = "test_accuracy_std"
MOST = 300  # points of a curve


def curves(found: Gathered) -> Panel | None:
    """Any measure against rounds, megabytes or seconds, mean over seeds with a band."""
    series: list[dict[str, Any]] = [
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
    known = {name for one in series for seed in one["seeds"] for name in seed["values"]}
    costs = {n: t for n, t in COSTS.items() if n != "virtual_seconds" or n in known}
    names = {**{n: t for n, t in {**MEASURES, **OWN}.items() if n in known}, **costs}
    most = max(len(one["seeds"]) for one in series)
    block = chart(
        "lines", "curves", "Curves", series=series, names=names, x="round", shares=SHARES, spread=SPREAD,
        y=next(n for n in (*MEASURES, *OWN, *COSTS) if n in known), t={str(n): _student(n) for n in range(2, most + 1)},
        level={"test_accuracy": float(np.mean(list(found.constant.values())))} if found.constant else {},
        level_name="majority class",
    )  # fmt: skip
    note = "Lines are means over seeds at rounds that every seed has."
    if not found.sweep:
        how = chosen(any(validated(view.result.get("best")) for views in found.begun.values() for view in views))
        note += f" Curves are of test rows and chose nothing: the table shows the {how}."
    return Panel("Curves", "curves", "Over rounds, traffic and time", [block], note)


def _seed(view: RunView, tested: bool) -> dict[str, Any] | None:
    """One run's points, at rounds that were scored; at most ``MOST`` of them; with test scores or without."""
    rows = view.rounds
    sent = np.cumsum([r["bytes_up"] + r["bytes_down"] for r in rows]) / MEGABYTE
    spent = np.cumsum([r["seconds"] for r in rows])
    scored = [i for i, r in enumerate(rows) if any(r.get(n) is not None for n in MEASURES if n != "train_loss")]
    places = thinned(scored or list(range(len(rows))), MOST)
    if not places:
        return None
    values = {"megabytes": numbers(sent[places]), "seconds": numbers(spent[places], 3)}
    for name in (*MEASURES, *OWN, SPREAD, "virtual_seconds"):
        if (tested or "test" not in name) and any(rows[i].get(name) is not None for i in places):
            values[name] = numbers([np.nan if rows[i].get(name) is None else rows[i][name] for i in places])
    return {"seed": view.seed, "round": [rows[i]["round"] for i in places], "values": values}


def thinned(items: Sequence[int], most: int) -> list[int]:
    """At most so many of them, evenly, with the first and the last."""
    if len(items) <= most:
        return list(items)
    return [items[i] for i in np.unique(np.linspace(0, len(items) - 1, most).round().astype(int)).tolist()]


def _student(seeds: int) -> float:
    from scipy import stats

    return float(stats.t.ppf(0.975, seeds - 1))
