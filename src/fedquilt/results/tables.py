"""The table of a comparison, from the folders of its finished runs."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedquilt.core.plain import JSON, Row
from fedquilt.core.table import ClientId
from fedquilt.metrics.energy import in_words, per_run
from fedquilt.metrics.table import ROWS_HALF, Metric, main, metrics, trivial
from fedquilt.results.clusters import LOG
from fedquilt.results.majority import at_majority
from fedquilt.results.statistics.beside import beside, winner
from fedquilt.results.statistics.intervals import interval
from fedquilt.results.statistics.paired import Accuracies, Paired, versus
from fedquilt.results.statistics.targets import MEGABYTE
from fedquilt.results.views import RunView
from fedquilt.storage.finished import modes_line, modes_of, modes_over, validated

Constants = Mapping[int, Mapping[ClientId, float]]  # by seed, each client's accuracy with its commonest label
FRAME = ("local_only", "centralised")  # the lower and the upper frame of a table
_FIRST = dict.fromkeys((*Paired.__dataclass_fields__, "significant"))  # the first method is not compared with itself


def by_label(views: Sequence[RunView]) -> dict[str, list[RunView]]:
    """The runs of each method, in their order."""
    found: dict[str, list[RunView]] = {}
    for view in views:
        found.setdefault(view.label, []).append(view)
    return found


def summary_of(views: Sequence[RunView], constant: Constants, target: float, common: float | None = None) -> Row:
    """Rows of all methods and the winner, from finished runs of equal seeds.

    Methods are compared on their clients' test samples, client by client; where no client has any, by the global model
    on the common test set. ``constant`` is each client's accuracy with its commonest label, by seed, ``common`` that of
    the commonest label on the common test set; without them nothing is said of the majority class.
    """
    methods = by_label(views)
    clients = any(map(_tested, views))
    measure = main().id if clients else f"common_{main().id}"
    scores = {label: [view.chosen if clients else _common(view) for view in group] for label, group in methods.items()}
    constant = _of_scored(views, constant) if clients else constant
    rows = _rows(methods, scores, constant if clients else {}, target, clients)
    first = next(iter(methods))
    return {
        "seeds": [view.seed for view in methods[first]],
        "clients": len(set().union(*scores[first])) if clients else None,
        "chosen_on": "validation" if any(validated(v.result) for v in views) else "last round",
        "measure": measure,
        "majority_class": _majority(views, constant, common, clients),
        "majority_class_common": common,
        "target": target,
        "rows": rows,
        "winner": winner(rows, scores, measure),
        **_words(methods),
    }


def _rows(
    methods: Mapping[str, Sequence[RunView]],
    scores: Mapping[str, Accuracies],
    constant: Constants,
    target: float,
    clients: bool,
) -> list[Row]:
    """Each method's line, beside the first method and the majority class."""
    pairs = versus(scores)
    seeds = [view.seed for view in next(iter(methods.values()))]
    known = all(constant.get(seed) for seed in seeds)
    constants = versus({"": [constant[seed] for seed in seeds], **scores}) if known else {}
    return [
        row(label, [view.result for view in group])
        | {"display": group[0].display, "kind": group[0].kind, "frame": group[0].kind in FRAME}
        | beside([scored(view, clients) for view in group], scores[label], target, [view.joules for view in group])
        | clusters_found([view.rows(LOG) for view in group])
        | {f"versus_first_{name}": value for name, value in pairs.get(label, _FIRST).items()}
        | {f"versus_majority_{name}": value for name, value in constants.get(label, _FIRST).items()}
        for label, group in methods.items()
    ]


def _words(methods: Mapping[str, Sequence[RunView]]) -> dict[str, Row]:
    """What is said of methods beside their numbers: of their modes, of energy, and where they learned nothing."""
    found: dict[str, Row] = {"modes": {}, "mode_scores": {}, "energy": {}, "doubts": {}}
    for label, group in methods.items():
        results = [view.result for view in group]
        found["energy"][label] = in_words(per_run([result.get("energy") or {} for result in results]))
        means = modes_over([result["best"] for result in results])
        said = {"modes": modes_line(means), "mode_scores": modes_of(means), "doubts": at_majority(results)}
        for kind, told in said.items():
            if told is not None:
                found[kind][label] = told
    return found


def _tested(view: RunView) -> bool:
    """Whether its clients have test scores."""
    return view.result.get("best", {}).get(f"test_{main().id}") is not None


def _common(view: RunView) -> dict[ClientId, float]:
    """The accuracy on the common test set at the chosen round, as that of one client; nothing without a global
    model."""
    found = view.result.get("best", {}).get(f"common_test_{main().id}")
    return {} if found is None else {"common": found}


def scored(view: RunView, clients: bool = True) -> list[Row]:
    """The rows of its rounds; if it is judged by the common test set, with that in the place of clients' scores."""
    if clients:
        return view.rounds
    first = main().id
    names = {f"test_{name}": f"common_test_{name}" for name in (first, "loss")}
    return [
        {**row, **{name: row[other] for name, other in names.items() if other in row}, f"test_{first}_std": 0.0}
        if f"common_test_{first}" in row
        else row
        for row in view.rounds
    ]


def _of_scored(views: Sequence[RunView], constant: Constants) -> dict[int, dict[ClientId, float]]:
    """The same of those clients that were scored: malicious ones, for example, are not."""
    there = {seed: set().union(*(view.chosen for view in views if view.seed == seed)) for seed in constant}
    return {seed: {c: v for c, v in found.items() if c in there[seed]} for seed, found in constant.items()}


def _majority(views: Sequence[RunView], constant: Constants, common: float | None, clients: bool) -> float:
    """The accuracy of the majority class, on clients' samples or on the common test set, or as runs wrote it."""
    if not clients:
        return math.nan if common is None else common
    means = [float(np.mean(list(found.values()))) for found in constant.values() if found]
    if means:
        return float(np.mean(means))
    known = [v for view in views if (v := view.result.get("majority_class")) is not None]
    return float(known[0]) if known else math.nan


def clusters_found(logs: Sequence[Sequence[Mapping[str, JSON]]]) -> dict[str, float | None]:
    """How many clusters there were at the end, how many clients were in one (of how many), and how well these meet
    planted groups (ARI): means over seeds."""
    ends = [log[-1] for log in logs if log]
    fields = {"clusters": "k", "ari": "ari", "placed": "clients", "placed_of": "of"}
    return {name: mean_of([end.get(field) for end in ends]) for name, field in fields.items()}


@dataclass(frozen=True)
class ScoreColumn:
    """A score in tables of comparisons: its key there, the number of a round that it is, and what people read.

    ``half`` ends the key of its ±: over seeds, or over seeds and test samples.
    """

    key: str
    number: str
    metric: Metric
    label: str
    help: str
    half: str = "_both_half_95"


def score_columns() -> list[ScoreColumn]:
    """Of each metric of tables the mean over clients; its value on the common test set, and that of the worst 10 % of
    clients, where it has these."""
    found = []
    for m in metrics("table"):
        first = m.id == main().id
        lead = "" if first else f"{m.short}, "
        half, sure = ("_half_95", "seeds") if first else ("_both_half_95", "seeds and test samples")
        told = f"{m.help}; mean over clients at the round selected on validation data, ± 95 % over {sure}".removeprefix(
            "; "
        )
        found.append(ScoreColumn(m.id, f"test_{m.id}", m, m.short, told, half))
        if "common" in m.summaries:
            told = (
                "the global model on a test set that belongs to no client, at the same round; another number than "
                "the clients' mean, on other rows"
            )
            found.append(ScoreColumn(f"common_{m.id}", f"common_test_{m.id}", m, f"{lead}common test", told))
        if "worst10" in m.summaries:
            told = (
                f"mean {m.name} of the worst 10 % of clients, ± 95 % over seeds and test samples; biased downwards: "
                "minimum of noisy estimates"
            )
            key = "worst10" if first else f"{m.id}_worst10"
            found.append(ScoreColumn(key, f"test_{m.id}_worst10", m, f"{lead}worst 10 %", told))
    return found


def target_told(target: float) -> str:
    """The score that costs are counted to, in words."""
    return f"{100 * target:g} %" if main().share else f"{target:g}"


def names(summary: Mapping[str, JSON]) -> dict[str, str]:
    """What people read for each method of a table."""
    return {row["method"]: row["display"] for row in summary["rows"]}


OWN = {  # what methods tell of themselves, if they do
    "stitch_keep": "K_t, the share of changes asked for",
    "stitch_density": "the share really sent",
    "search_candidates": "gradients tried",
    "search_aligned": "gradients that pointed a client's way",
    "search_taken": "gradients taken",
}


SENT = {"bytes_up": "megabytes_up", "bytes_down": "megabytes_down"}


def row(label: str, results: Sequence[Mapping[str, JSON]]) -> Row:
    """One method's line: test numbers at the round that validation chose, over seeds."""
    found: Row = {"method": label}
    best = [r["best"] for r in results]
    for column in score_columns():
        found |= span(column.key, column.number, best)
    means = {n: float(np.mean([r.get(n, math.nan) for r in results])) for n in ("updates", *SENT, "seconds")}
    return found | {
        f"last_round_{main().id}": mean_of([r["last"].get(f"test_{main().id}") for r in results]),
        "updates": means["updates"],
        **{column: means[name] / MEGABYTE for name, column in SENT.items()},
        "seconds": means["seconds"],
        **{name: mean_of([row.get(name) for row in best]) for name in OWN},
        "digests": [r["digest"] for r in results],
    }


def span(column: str, name: str, found: Sequence[Mapping[str, JSON]]) -> Row:
    """A score's mean over seeds; half of its 95 % interval over seeds, half of that over test samples, and of both.

    All seeds are scored on the same rows, so more seeds do not make that part smaller.
    """
    values = [best[name] for best in found if best.get(name) is not None]
    if len(values) < len(found):
        return dict.fromkeys((column, *(f"{column}{end}" for end in ("_half_95", ROWS_HALF, "_both_half_95"))))
    over = interval(values)
    rows = _over_rows([best.get(name + ROWS_HALF) for best in found])
    parts = [half for half in (over.half, rows) if half is not None and not math.isnan(half)]
    return {
        column: over.mean,
        f"{column}_half_95": over.half,
        column + ROWS_HALF: rows,
        f"{column}_both_half_95": math.hypot(*parts) if parts else None,
    }


def _over_rows(halves: Sequence[float | None]) -> float | None:
    """Half of the interval over test samples, of runs on the same ones; None unless all tell it."""
    known = [half for half in halves if half is not None]
    return math.sqrt(float(np.mean(np.square(known)))) if len(known) == len(halves) else None


def mean_of(values: Sequence[float | None]) -> float | None:
    """The mean of those that are known, if any are."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def as_csv(rows: Sequence[Mapping[str, JSON]], majority: float, common: float | None = None) -> str:
    """The rows below that of the majority class; columns that no method has are left out."""
    text = io.StringIO()
    names = [n for n in rows[0] if n not in ("digests", "display") and any(row.get(n) is not None for row in rows)]
    writer = csv.DictWriter(text, names, extrasaction="ignore")
    writer.writeheader()
    writer.writerow({"method": trivial(), main().id: majority, f"common_{main().id}": common})
    writer.writerows(rows)
    return text.getvalue()
