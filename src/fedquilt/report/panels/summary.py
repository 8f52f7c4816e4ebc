"""The first page: who is best, whether that can be told from chance, and the table."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from fedquilt.core.plain import JSON, Row
from fedquilt.metrics.table import PRIMARY, metric
from fedquilt.registry import shown_as
from fedquilt.report.blocks import Block, Panel, column, facts, only, table, text, used
from fedquilt.report.gather import Gathered
from fedquilt.report.panels.clients import at_a_glance
from fedquilt.results.statistics.beside import apart
from fedquilt.results.tables import FRAME, OWN, names, score_columns
from fedquilt.storage.finished import chosen

TAB = "Summary"


def headline(found: Gathered) -> Panel | None:
    """The answer in a sentence, with what it rests on."""
    summary = found.summary
    said = sentences(summary) if summary else ["No run is finished and scored yet, so there is nothing to compare."]
    if any(view.config.get("output", {}).get("withhold_test") for view in found.views):
        said = [
            "The test scores of this run are withheld (output.withhold_test): it is a point of a sweep, which "
            "selects on validation samples, and then reports those of the selected point."
        ]
    blocks: list[Block] = [text(*said, tone="lead")]
    if summary:
        blocks.append(facts(*_cards(found, summary)))
    for method, line in (summary or {}).get("modes", {}).items():
        blocks.append(text(f"{names(found.summary or {})[method]}: {line}"))
    blocks += [text(warning, tone="warning") for warning in _warnings(found)]
    return Panel(TAB, "headline", "In short", [*blocks, *at_a_glance(found)])


def _warnings(found: Gathered) -> Iterator[str]:
    """Runs that are not finished, doubts, damaged logs, and runs that failed."""
    yield from _unfinished(found)
    for method, doubt in (found.summary or {}).get("doubts", {}).items():
        yield f"{names(found.summary or {})[method]}: {doubt}"
    for view in found.views:
        if view.missing:
            named = f"{view.display}, seed {view.seed}: parts of its logs are missing or damaged. "
            yield named + "; ".join(view.missing) + ". The rest is shown."
    for run in found.failed:
        yield f"{run.get('display', run['method'])}, seed {run['seed']} failed: {run['reason']}"


def _unfinished(found: Gathered) -> Iterator[str]:
    open_runs = [f"{v.display}, seed {v.seed}: {v.state}" for v in found.views if not v.result]
    if open_runs:
        more = f"; and {len(open_runs) - 12} more" if len(open_runs) > 12 else ""
        told = f"{len(open_runs)} of {len(found.views)} runs are not finished. {'; '.join(open_runs[:12])}{more}. "
        yield told + "Methods with an unfinished run are left out of tables and tests."


def sentences(summary: Mapping[str, JSON]) -> list[str]:
    """Which method is highest, which others cannot be told apart from it, and what the majority class gives."""
    won, rows = summary["winner"], {row["method"]: row for row in summary["rows"]}
    if won is None:
        return ["Only centralised training is finished; it is a reference and not ranked."]
    best, measure, shown = rows[won["method"]], summary["measure"], names(summary)
    kind = "test accuracy" if measure == "accuracy" else "accuracy on the common test set"
    reached = _percent(best[measure], best[f"{measure}_half_95"])
    if not won["versus"]:
        said = [f"{best['display']} reaches a {kind} of {reached}."]
    else:
        second = max(won["versus"], key=lambda name: rows[name][measure])
        said = [
            f"{best['display']} has the highest {kind}: {reached}.",
            apart(won, shown),
            _next(shown[second], won["versus"][second], "clients" if measure == "accuracy" else "seeds"),
        ]
    if not math.isnan(summary["majority_class"]):
        gap = 100 * (best[measure] - summary["majority_class"])
        whose = "a client's" if measure == "accuracy" else "the"
        said.append(
            f"Always predicting {whose} most frequent label gives {_percent(summary['majority_class'])}, "
            f"{abs(gap):.1f} points {'less' if gap >= 0 else 'MORE'}."
        )
    return said


def _next(method: str, pair: Mapping[str, JSON], over: str) -> str:
    """The method after the best, and how far it is from it."""
    p = "" if math.isnan(pair["p"]) else f", p = {pair['p']:.2g} over {over} after Holm's correction"
    lower = f"lower in {pair['seeds_better']} of {pair['seeds']} seeds"
    return (
        f"{method} comes next, {abs(100 * pair['difference']):.1f} points "
        f"{'lower' if pair['difference'] >= 0 else 'HIGHER client by client'} ({lower}{p})."
    )


def _best(found: Gathered, best: Row, summary: Mapping[str, JSON]) -> tuple[str, str, str]:
    """The card of the best method, or of those that cannot be told apart from it."""
    method, won, shown = best["display"], summary["winner"], names(summary)
    if not found.comparison or not won or not won["versus"]:
        return ("method", method, "the only one")
    if tied := [shown[name] for name in won["tied"]]:
        few = ", ".join([method, *tied][:4]) + (f" and {len(tied) - 3} more" if len(tied) > 3 else "")
        return (f"best {1 + len(tied)} methods", few, "not significantly different; highest mean first")
    return ("best method", method, "significantly above every other")


def _cards(found: Gathered, summary: Mapping[str, JSON]) -> list[tuple[str, str, str]]:
    won, measure = summary["winner"], summary["measure"]
    rows = {row["method"]: row for row in summary["rows"]}
    best = rows[won["method"]] if won else summary["rows"][0]
    seeds = len(summary["seeds"])
    reached = "never" if best["rounds_to_target"] is None else f"{best['rounds_to_target']:.1f}".removesuffix(".0")
    kind = "test accuracy" if measure == "accuracy" else "common test set"
    half = best[f"{measure}_half_95"]
    sure = "one seed: no interval" if seeds == 1 else f"± {100 * half:.1f} over {seeds} seeds (95 % t-interval)"
    cards = [_best(found, best, summary), (kind, _percent(best[measure]), sure)]
    if best["worst10"] is not None:
        half = best["worst10_both_half_95"]
        sure = "" if half is None else f"± {100 * half:.1f} over seeds and test samples; "
        cards.append(("worst 10 % of clients", _percent(best["worst10"]), f"{sure}mean accuracy of the lowest 10 %"))
    if measure == "accuracy" and best["common_accuracy"] is not None:
        cards.append(
            ("common test set", _percent(best["common_accuracy"]), "its global model, on samples of no client")
        )
    return [
        *cards,
        ("majority class", _percent(summary["majority_class"]), "trivial baseline"),
        (f"rounds to {100 * summary['target']:g} %", reached, f"in {best['seeds_at_target']} of {seeds} seeds"),
        ("sent per run", _size(best["megabytes_up"] + best["megabytes_down"]), "up and down, bytes as sent"),
    ]


def _columns() -> list[Row]:
    """The method, its scores, and what belongs beside them."""
    first, *scores = [
        column(c.key, c.label, half=c.key + c.half, group="accuracy", help=c.help, **c.metric.look)
        for c in score_columns()
    ]
    return [column("method", "method"), first, BOOTSTRAP, *scores, *BESIDE]


BOOTSTRAP = column(
    "bootstrap",
    "bootstrap 95 %",
    "range",
    low="accuracy_bootstrap_low",
    high="accuracy_bootstrap_high",
    group="accuracy",
    help="percentile bootstrap over seeds; too narrow for few seeds",
)
BESIDE = (
    column(
        "versus_first_difference",
        "minus first",
        "percent",
        half="versus_first_half",
        signed=True,
        group="tests",
        help="mean over clients of the difference from the first method, ± 95 % over clients",
    ),
    column(
        "versus_first_p",
        "p",
        "p",
        group="tests",
        help="Wilcoxon's signed-rank test over clients (on a common test set alone: paired t-test over seeds), Holm's "
        "correction over methods",
    ),
    column("versus_first_cohens_d", "Cohen's d", "number", digits=2, group="tests", help="of pairs, over clients"),
    column(
        "versus_majority_difference",
        "minus majority",
        "percent",
        half="versus_majority_half",
        signed=True,
        group="tests",
        help="the same against always answering the client's most frequent label",
    ),
    column("last_round_accuracy", "last round", "percent", group="curve", help="accuracy after the last round"),
    column(
        "best_test_round_accuracy",
        "best test round",
        "percent",
        group="curve",
        help="selected on test samples, so optimistically biased; for comparison only",
    ),
    column(
        "area_under_curve",
        "area under curve",
        "percent",
        group="curve",
        help="mean height of the accuracy curve over rounds",
    ),
    column("client_gini", "Gini", "number", digits=3, group="spread", help="of clients' accuracies; 0: all equal"),
    column("client_variance", "variance", "number", digits=4, group="spread", help="of clients' accuracies"),
    column("client_least", "lowest client", "percent", group="spread"),
    column("client_most", "highest client", "percent", group="spread"),
    column("rounds_to_target", "rounds", "number", digits=1, group="cost to target", help="to the target accuracy"),
    column("megabytes_to_target", "MB", "number", digits=1, group="cost to target"),
    column(
        "seconds_to_target",
        "seconds",
        "number",
        digits=1,
        group="cost to target",
        help="virtual seconds for runs with [network], else the wall clock",
    ),
    column(
        "joules_to_target",
        "joules",
        "number",
        digits=0,
        group="cost to target",
        help="if energy counters are available",
    ),
    column("seeds_at_target", "seeds there", "number", digits=0, group="cost to target"),
    column("megabytes", "MB", "number", digits=1, group="cost", help="up and down, per run"),
    column("seconds", "seconds", "number", digits=1, group="cost", help="wall clock of a run"),
    column("updates", "updates", "number", digits=0, group="cost", help="client updates per run"),
    *(
        column(
            name,
            name.replace("_", " "),
            "number",
            digits=3 if name.startswith("stitch") else 1,
            group="of methods",
            help=f"{words}, at the selected round",
        )
        for name, words in OWN.items()
    ),
    column("clusters", "clusters", "number", digits=1, group="clusters"),
    column(
        "ari",
        "ARI",
        "number",
        digits=2,
        group="clusters",
        help="agreement with the true groups; 1 is perfect; only clients that were placed in a cluster count",
    ),
    column(
        "placed",
        "placed",
        "number",
        digits=0,
        group="clusters",
        help="clients in a cluster at the end; the others use the cluster model with the lowest training loss",
    ),
)


def _frame(summary: Mapping[str, JSON]) -> list[Row]:
    """The lines above the methods: the majority class, and what belongs to the frame but was not run."""
    rows: list[Row] = []
    if not math.isnan(summary["majority_class"]):
        rows.append(
            {"method": "majority class", summary["measure"]: summary["majority_class"], "frame": True}
            | {"common_accuracy": summary["majority_class_common"]}
        )
    present = {row["kind"] for row in summary["rows"]}
    return rows + [
        {"method": f"{shown_as('method', kind)} (not run)", "frame": True, "absent": True}
        for kind in FRAME
        if kind not in present
    ]


def comparison(found: Gathered) -> Panel | None:
    """The table, between its frame rows."""
    summary = found.summary
    if summary is None:
        return None
    rows = _compared(found, summary)
    known = _columns()
    columns = known[:1] + used(known[1:], rows)
    what = "mean over clients" if summary["measure"] == "accuracy" else "on the common test set"
    note = (
        f"Test accuracy in %, {what}, at the {chosen(summary['chosen_on'] == 'validation')}; target "
        f"{100 * summary['target']:g} %. Marked: the best method and those not significantly different from it. "
        "Grey rows are reference points: majority class, local training, centralised "
        "training."
    )
    return Panel(
        TAB,
        "comparison",
        "Comparison" if found.comparison else "Result",
        [table("comparison", columns, rows, groups=["accuracy"], filter=found.comparison, sort=summary["measure"])],
        note,
    )


def _compared(found: Gathered, summary: Mapping[str, JSON]) -> list[Row]:
    """The lines of the table, those of the frame first and then as they were given; the highest are marked."""
    won = summary["winner"] or {"method": None, "tied": []}
    top = {won["method"], *(won["tied"] if found.comparison else ())}
    named = (str(c.get(k)) for c in _columns() for k in ("key", "half", "low", "high"))
    kept, rows = {*named, "frame"}, _frame(summary)
    for row in sorted(summary["rows"], key=lambda row: not row["frame"]):
        whole = {**row, "megabytes": row["megabytes_up"] + row["megabytes_down"], "bootstrap": row["accuracy"]}
        name = row["display"]
        rows.append(only(kept, whole) | {"method": name, "place": found.places[name], "best": row["method"] in top})
    return rows


def tests(found: Gathered) -> Panel | None:
    """The winner against every other method: one verdict, and what it rests on; other views are folded away."""
    summary = found.summary or {}
    won = summary.get("winner")
    if not won or not won["versus"]:
        return None
    shown = names(summary)
    rows = [
        {
            "method": shown[n],
            "place": found.places[shown[n]],
            **p,
            "seeds_told": f"{p['seeds_better']} / {p['seeds']}",
            "verdict": "significantly lower" if p["significant"] else "not significant",
        }
        for n, p in won["versus"].items()
    ]
    name, clients = column("method", f"{shown[won['method']]} against"), summary["measure"] == "accuracy"
    test, of = ("paired t-test over seeds", "mean over seeds")
    if clients:
        test, of = "Wilcoxon's signed-rank test over clients", "mean over clients, ± 95 %"
    columns = (
        name,
        column("verdict", "verdict", help="p < 0.05, and at least two seeds that all agree"),
        column("difference", "difference", "percent", half="half", signed=True, help=of),
        column("p", "p", "p", help=f"{test}, Holm's correction: the test of the verdict"),
        column("seeds_told", "seeds better"),
    )
    if not clients:
        note = "Clients have no test samples of their own, so the verdict rests on the seeds, on the common test set."
        return Panel(TAB, "tests", "Significance tests", [table("tests", columns, rows)], note)
    details = (
        name,
        column("cohens_d", "Cohen's d", "number", digits=2, help="of pairs, over clients"),
        column("rank_biserial", "rank-biserial", "number", digits=2, help="of Wilcoxon's ranks, -1 to 1"),
        column("cliffs_delta", "Cliff's delta", "number", digits=2, help="of the two groups, unpaired, -1 to 1"),
        column(
            "seeds_t",
            "t-test of the seeds' means",
            "p",
            help="not used for the verdict: would other seeds give different means? Low power with few seeds",
        ),
    )
    kept = {c["key"] for c in details} | {"place"}
    more = table("effects", details, [only(kept, row) for row in rows], fold="Effect sizes, and tests over seeds")
    note = (
        "Paired by client (means over seeds). The best method was selected on the same numbers, so interpret small "
        "differences with care."
    )
    return Panel(TAB, "tests", "Significance tests", [table("tests", columns, rows), more], note)


def _percent(value: float | None, half: float | None = None) -> str:
    told = metric(PRIMARY).written(value, half)
    return f"{told} %" if told else "unknown"


def _size(megabytes: float) -> str:
    return f"{megabytes / 1000:.2f} GB" if megabytes >= 1000 else f"{megabytes:.1f} MB"
