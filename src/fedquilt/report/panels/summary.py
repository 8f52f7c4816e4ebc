"""The first page: who is best, whether that can be told from chance, and the table."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from fedquilt.core.plain import JSON, Row
from fedquilt.metrics.table import Metric, best_of, main, task, trivial
from fedquilt.registry import shown_as
from fedquilt.report.blocks import Block, Panel, column, facts, only, table, text, used
from fedquilt.report.gather import Gathered
from fedquilt.report.panels.clients import at_a_glance
from fedquilt.results.statistics.beside import apart
from fedquilt.results.tables import FRAME, OWN, names, score_columns, target_told
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
    first, clients = main(), measure == main().id
    kind = f"test {first.name}" if clients else f"{first.name} on the common test set"
    reached = _percent(best[measure], best[f"{measure}_half_95"])
    if not won["versus"]:
        said = [f"{best['display']} reaches a {kind} of {reached}."]
    else:
        second = next(n for n in won["versus"] if rows[n][measure] == best_of(rows[v][measure] for v in won["versus"]))
        said = [
            f"{best['display']} has the {'highest' if first.higher_is_better else 'lowest'} {kind}: {reached}.",
            apart(won, shown),
            _next(shown[second], won["versus"][second], "clients" if measure == "accuracy" else "seeds"),
        ]
    if not math.isnan(summary["majority_class"]):
        gap = best[measure] - summary["majority_class"]
        whose = "a client's" if clients else "the"
        constant = f"{whose} most frequent label" if task() is None else f"the {trivial()}"
        usual = gap >= 0 if first.higher_is_better else gap <= 0
        way = ("less" if usual else "MORE") if first.higher_is_better else ("more" if usual else "LESS")
        said.append(
            f"Always predicting {constant} gives {_percent(summary['majority_class'])}, {first.apart(gap)} {way}."
        )
    return said


def _next(method: str, pair: Mapping[str, JSON], over: str) -> str:
    """The method after the best, and how far it is from it."""
    p = "" if math.isnan(pair["p"]) else f", p = {pair['p']:.2g} over {over} after Holm's correction"
    worse, other = ("lower", "HIGHER") if main().higher_is_better else ("higher", "LOWER")
    usual = pair["difference"] >= 0 if main().higher_is_better else pair["difference"] <= 0
    behind = f"{worse} in {pair['seeds_better']} of {pair['seeds']} seeds"
    return (
        f"{method} comes next, {main().apart(pair['difference'])} "
        f"{worse if usual else f'{other} client by client'} ({behind}{p})."
    )


def _best(found: Gathered, best: Row, summary: Mapping[str, JSON]) -> tuple[str, str, str]:
    """The card of the best method, or of those that cannot be told apart from it."""
    method, won, shown = best["display"], summary["winner"], names(summary)
    if not found.comparison or not won or not won["versus"]:
        return ("method", method, "the only one")
    if tied := [shown[name] for name in won["tied"]]:
        few = ", ".join([method, *tied][:4]) + (f" and {len(tied) - 3} more" if len(tied) > 3 else "")
        high = "highest" if main().higher_is_better else "lowest"
        return (f"best {1 + len(tied)} methods", few, f"not significantly different; {high} mean first")
    return ("best method", method, f"significantly {'above' if main().higher_is_better else 'below'} every other")


def _cards(found: Gathered, summary: Mapping[str, JSON]) -> list[tuple[str, str, str]]:
    won, measure = summary["winner"], summary["measure"]
    rows = {row["method"]: row for row in summary["rows"]}
    best = rows[won["method"]] if won else summary["rows"][0]
    seeds = len(summary["seeds"])
    reached = "never" if best["rounds_to_target"] is None else f"{best['rounds_to_target']:.1f}".removesuffix(".0")
    first, clients = main(), measure == main().id
    kind = f"test {first.name}" if clients else "common test set"
    half = best[f"{measure}_half_95"]
    sure = "one seed: no interval" if seeds == 1 else f"± {first.written(half)} over {seeds} seeds (95 % t-interval)"
    cards = [_best(found, best, summary), (kind, _percent(best[measure]), sure)]
    if best.get("worst10") is not None:
        half = best["worst10_both_half_95"]
        sure = "" if half is None else f"± {first.written(half)} over seeds and test samples; "
        low = "lowest" if first.higher_is_better else "highest"
        cards.append(("worst 10 % of clients", _percent(best["worst10"]), f"{sure}mean {first.name} of the {low} 10 %"))
    if clients and best.get(f"common_{first.id}") is not None:
        cards.append(
            ("common test set", _percent(best[f"common_{first.id}"]), "its global model, on samples of no client")
        )
    return [
        *cards,
        (trivial(), _percent(summary["majority_class"]), "trivial baseline"),
        (f"rounds to {target_told(summary['target'])}", reached, f"in {best['seeds_at_target']} of {seeds} seeds"),
        ("sent per run", _size(best["megabytes_up"] + best["megabytes_down"]), "up and down, bytes as sent"),
    ]


def _columns() -> list[Row]:
    """The method, its scores, and what belongs beside them."""
    start, *scores = [
        column(c.key, c.label, half=c.key + c.half, group=main().name, help=c.help, **c.metric.look)
        for c in score_columns()
    ]
    return [column("method", "method"), start, _bootstrap(), *scores, *_beside()]


def _bootstrap() -> Row:
    return column(
        "bootstrap",
        "bootstrap 95 %",
        "range",
        low=f"{main().id}_bootstrap_low",
        high=f"{main().id}_bootstrap_high",
        group=main().name,
        help="percentile bootstrap over seeds; too narrow for few seeds",
    )


def _beside() -> tuple[Row, ...]:
    """What belongs beside the scores; differences and curves are in the units of the main metric."""
    constant = "the client's most frequent label" if task() is None else f"the {trivial()}"
    return (*_of_the_main_metric(main(), main().look, constant), *COSTS)


def _of_the_main_metric(first: Metric, look: Row, constant: str) -> tuple[Row, ...]:
    plural = "accuracies" if task() is None else "scores"
    return (
        column(
            "versus_first_difference",
            "minus first",
            **look,
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
            help="Wilcoxon's signed-rank test over clients (on a common test set alone: paired t-test over seeds), "
            "Holm's correction over methods",
        ),
        column("versus_first_cohens_d", "Cohen's d", "number", digits=2, group="tests", help="of pairs, over clients"),
        column(
            "versus_majority_difference",
            "minus majority" if task() is None else "minus constant",
            **look,
            half="versus_majority_half",
            signed=True,
            group="tests",
            help=f"the same against always answering {constant}",
        ),
        column(
            f"last_round_{first.id}", "last round", **look, group="curve", help=f"{first.name} after the last round"
        ),
        column(
            f"best_test_round_{first.id}",
            "best test round",
            **look,
            group="curve",
            help="selected on test samples, so optimistically biased; for comparison only",
        ),
        column(
            "area_under_curve",
            "area under curve",
            **look,
            group="curve",
            help=f"mean height of the {first.name} curve over rounds",
        ),
        column("client_gini", "Gini", "number", digits=3, group="spread", help=f"of clients' {plural}; 0: all equal"),
        column("client_variance", "variance", "number", digits=4, group="spread", help=f"of clients' {plural}"),
        column("client_least", "lowest client", **look, group="spread"),
        column("client_most", "highest client", **look, group="spread"),
    )


COSTS = (
    column("rounds_to_target", "rounds", "number", digits=1, group="cost to target", help="to the target"),
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
            {"method": trivial(), summary["measure"]: summary["majority_class"], "frame": True}
            | {f"common_{main().id}": summary["majority_class_common"]}
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
    what = "mean over clients" if summary["measure"] == main().id else "on the common test set"
    units, marked = " in %" * main().share, "highest" if main().higher_is_better else "lowest"
    note = (
        f"Test {main().name}{units}, {what}, at the {chosen(summary['chosen_on'] == 'validation')}; target "
        f"{target_told(summary['target'])}. Marked: the {marked} and those not significantly different from it. "
        f"Grey rows are reference points: {trivial()}, local training, centralised training."
    )
    return Panel(
        TAB,
        "comparison",
        "Comparison" if found.comparison else "Result",
        [table("comparison", columns, rows, groups=[main().name], filter=found.comparison, sort=summary["measure"])],
        note,
    )


def _compared(found: Gathered, summary: Mapping[str, JSON]) -> list[Row]:
    """The lines of the table, those of the frame first and then as they were given; the highest are marked."""
    won = summary["winner"] or {"method": None, "tied": []}
    top = {won["method"], *(won["tied"] if found.comparison else ())}
    named = (str(c.get(k)) for c in _columns() for k in ("key", "half", "low", "high"))
    kept, rows = {*named, "frame"}, _frame(summary)
    for row in sorted(summary["rows"], key=lambda row: not row["frame"]):
        whole = {**row, "megabytes": row["megabytes_up"] + row["megabytes_down"], "bootstrap": row[main().id]}
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
    return main().in_words(value, half)


def _size(megabytes: float) -> str:
    return f"{megabytes / 1000:.2f} GB" if megabytes >= 1000 else f"{megabytes:.1f} MB"
