"""The first page: who is best, whether that can be told from chance, and the table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fedquilt.runs.report.blocks import Block, Panel, column, facts, table, text
from fedquilt.runs.report.gather import Gathered
from fedquilt.runs.tables import FRAME

TAB = "Summary"
_HALF = "_half_95"


def headline(found: Gathered) -> Panel | None:
    """The answer in a sentence, with what it rests on."""
    summary = found.summary
    said = sentences(summary) if summary else ["No run is finished and scored yet, so there is nothing to compare."]
    blocks: list[Block] = [text(*said, tone="lead")]
    if summary:
        blocks.append(facts(*_cards(found, summary)))
    open_runs = [v for v in found.views if not v.result]
    if open_runs:
        named = "; ".join(f"{v.label}, seed {v.seed}: {v.state}" for v in open_runs[:12])
        more = f"; and {len(open_runs) - 12} more" if len(open_runs) > 12 else ""
        told = f"{len(open_runs)} of {len(found.views)} runs are not finished. {named}{more}. "
        blocks.append(text(told + "Methods with an unfinished run are left out of tables and tests.", tone="warning"))
    for view in found.views:
        if view.missing:
            named = f"{view.label}, seed {view.seed}: parts of its logs are missing or damaged. "
            blocks.append(text(named + "; ".join(view.missing) + ". What is left is shown.", tone="warning"))
    for run in found.failed:
        blocks.append(text(f"{run['method']}, seed {run['seed']} failed: {run['reason']}", tone="warning"))
    return Panel(TAB, "headline", "In short", blocks)


def sentences(summary: Mapping[str, Any]) -> list[str]:
    """Who won, by how much, and whether the difference is significant."""
    won, rows = summary["winner"], {row["method"]: row for row in summary["rows"]}
    if won is None:
        return ["Only centralised training is finished; it is the frame of a table and cannot win."]
    best = rows[won["method"]]
    said = [f"{best['method']} has the highest test accuracy: {_percent(best['accuracy'], best['accuracy_half_95'])}."]
    if not won["versus"]:
        said = [f"{best['method']} reaches a test accuracy of {_percent(best['accuracy'], best['accuracy_half_95'])}."]
    else:
        second = max(won["versus"], key=lambda name: rows[name]["accuracy"])
        pair = won["versus"][second]
        way = "above" if pair["difference"] >= 0 else "below"
        apart = f"{abs(100 * pair['difference']):.1f} points {way} {second}, the next best"
        p = "" if math.isnan(pair["p"]) else f", p = {pair['p']:.2g}"
        better = f"better in {pair['seeds_better']} of {pair['seeds']} seeds"
        said.append(f"It is {apart} (client by client{p} after Holm's correction; {better}): "
                    + ("a significant difference." if pair["significant"] else _not(pair)))  # fmt: skip
        beaten = [name for name, pair in won["versus"].items() if pair["significant"]]
        said.append(f"It differs significantly from {len(beaten)} of {len(won['versus'])} other methods.")
    if not math.isnan(summary["majority_class"]):
        gap = 100 * (best["accuracy"] - summary["majority_class"])
        said.append(f"Always answering a client's commonest label gives {_percent(summary['majority_class'])}, "
                    f"{abs(gap):.1f} points {'less' if gap >= 0 else 'MORE'}.")  # fmt: skip
    return said


def _not(pair: Mapping[str, Any]) -> str:
    if pair["seeds"] < 2:
        return "one seed is not enough to call it significant."
    return "not a significant difference."


def _cards(found: Gathered, summary: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    won = summary["winner"]
    best = next((row for row in summary["rows"] if won and row["method"] == won["method"]), summary["rows"][0])
    seeds = len(summary["seeds"])
    one = seeds == 1
    reached = best["rounds_to_target"]
    return [
        ("best method", best["method"], "by mean test accuracy" if found.comparison else "the only one"),
        ("test accuracy", _percent(best["accuracy"]), "one seed: no interval" if one else
            f"± {100 * best['accuracy_half_95']:.1f} over {seeds} seeds (95 % t-interval)"),
        ("worst tenth of clients", _percent(best["worst10"]), "mean accuracy of the lowest 10 %"),
        ("majority class", _percent(summary["majority_class"]), "the least that must be beaten"),
        (f"rounds to {100 * summary['target']:g} %",
            "never" if reached is None else f"{reached:.1f}".removesuffix(".0"),
            f"in {best['seeds_at_target']} of {seeds} seeds"),
        ("sent per run", _size(best["megabytes_up"] + best["megabytes_down"]), "up and down, frames as they travelled"),
    ]  # fmt: skip


COLUMNS = (
    column("method", "method"),
    column("accuracy", "accuracy", "percent", half="accuracy" + _HALF, group="accuracy",
           help="mean over clients at the round that validation chose, ± 95 % t-interval over seeds"),
    column("bootstrap", "bootstrap 95 %", "range", low="accuracy_bootstrap_low", high="accuracy_bootstrap_high",
           group="accuracy", help="percentile bootstrap over seeds; too narrow for few seeds"),
    column("worst10", "worst 10 %", "percent", half="worst10" + _HALF, group="accuracy",
           help="mean accuracy of the lowest tenth of the clients"),
    column("balanced_accuracy", "balanced", "percent", half="balanced_accuracy" + _HALF, group="accuracy",
           help="mean over the classes that a client has"),
    column("macro_f1", "macro F1", "percent", half="macro_f1" + _HALF, group="accuracy"),
    column("versus_first_difference", "minus first", "percent", half="versus_first_half", signed=True, group="tests",
           help="mean over clients of the difference from the first method, ± 95 % over clients"),
    column("versus_first_p", "p", "p", group="tests",
           help="Wilcoxon's signed-rank test over clients, Holm's correction over methods"),
    column("versus_first_cohens_d", "Cohen's d", "number", digits=2, group="tests", help="of pairs, over clients"),
    column("versus_majority_difference", "minus majority", "percent", half="versus_majority_half", signed=True,
           group="tests", help="the same against always answering the client's commonest label"),
    column("last_round_accuracy", "last round", "percent", group="curve", help="accuracy after the last round"),
    column("best_test_round_accuracy", "best test round", "percent", group="curve",
           help="chosen on test rows, so it promises too much; beside the accuracy, never instead of it"),
    column("area_under_curve", "area under curve", "percent", group="curve",
           help="mean height of the accuracy curve over rounds"),
    column("client_gini", "Gini", "number", digits=3, group="spread", help="of clients' accuracies; 0: all equal"),
    column("client_variance", "variance", "number", digits=4, group="spread", help="of clients' accuracies"),
    column("client_least", "lowest client", "percent", group="spread"),
    column("client_most", "highest client", "percent", group="spread"),
    column("rounds_to_target", "rounds", "number", digits=1, group="cost to target", help="to the target accuracy"),
    column("megabytes_to_target", "MB", "number", digits=1, group="cost to target"),
    column("seconds_to_target", "seconds", "number", digits=1, group="cost to target",
           help="virtual seconds for runs with [network], else the wall clock"),
    column("joules_to_target", "joules", "number", digits=0, group="cost to target", help="where counters were found"),
    column("seeds_at_target", "seeds there", "number", digits=0, group="cost to target"),
    column("megabytes", "MB", "number", digits=1, group="cost", help="up and down, per run"),
    column("seconds", "seconds", "number", digits=1, group="cost", help="wall clock of a run"),
    column("updates", "updates", "number", digits=0, group="cost", help="local trainings per run"),
    column("clusters", "clusters", "number", digits=1, group="clusters"),
    column("ari", "ARI", "number", digits=2, group="clusters", help="agreement with planted groups; 1 is perfect"),
)  # fmt: skip


def comparison(found: Gathered) -> Panel | None:
    """The table, between its frame rows."""
    summary = found.summary
    if summary is None:
        return None
    won = (summary["winner"] or {}).get("method")
    rows: list[dict[str, Any]] = []
    if not math.isnan(summary["majority_class"]):
        rows.append({"method": "majority class", "accuracy": summary["majority_class"], "frame": True})
    present = {row["kind"] for row in summary["rows"]}
    rows += [{"method": f"{kind} (not run)", "frame": True, "absent": True} for kind in FRAME if kind not in present]
    ordered = sorted(summary["rows"], key=lambda row: not row["frame"])  # the frame first, then as they were given
    kept = {c["key"] for c in COLUMNS} | {c[k] for c in COLUMNS for k in ("half", "low", "high") if k in c} | {"frame"}
    for row in ordered:
        whole = {**row, "megabytes": row["megabytes_up"] + row["megabytes_down"], "bootstrap": row["accuracy"]}
        place = {"place": found.places[row["method"]], "best": row["method"] == won}
        rows.append({k: v for k, v in whole.items() if k in kept} | place)
    columns = [c for c in COLUMNS if c["key"] == "method" or any(row.get(c["key"]) is not None for row in rows)]
    note = (f"Test accuracy in %, mean over clients, at the round chosen on {summary['chosen_on']}; target "
            f"{100 * summary['target']:g} %. Grey rows are the frame that every table needs: the majority class, every "
            "client alone, all data in one place.")  # fmt: skip
    return Panel(TAB, "comparison", "Comparison" if found.comparison else "Result", [
        table("comparison", columns, rows, groups=["accuracy"], filter=found.comparison),
    ], note)  # fmt: skip


def tests(found: Gathered) -> Panel | None:
    """The winner against every other method."""
    won = (found.summary or {}).get("winner")
    if not won or not won["versus"]:
        return None
    rows = [{"method": n, "place": found.places[n], **p, "seeds_told": f"{p['seeds_better']} / {p['seeds']}",
             "verdict": "significant" if p["significant"] else "not significant"}
            for n, p in won["versus"].items()]  # fmt: skip
    columns = (
        column("method", f"{won['method']} against"),
        column("verdict", "verdict", help="p over clients below 0.05, and all of two or more seeds agree"),
        column("difference", "difference", "percent", half="half", signed=True, help="mean over clients, ± 95 %"),
        column("p", "p over clients", "p", help="Wilcoxon, Holm's correction"),
        column("seeds_told", "seeds better"),
        column("seeds_p", "p over seeds", "p", help="Wilcoxon over seeds, Holm's correction; never below 2 / 2^n"),
        column("seeds_t", "p over seeds (t)", "p", help="paired t-test over seeds, Holm's correction"),
        column("cohens_d", "Cohen's d", "number", digits=2, help="of pairs, over clients"),
        column("rank_biserial", "rank-biserial", "number", digits=2, help="of Wilcoxon's ranks, -1 to 1"),
        column("cliffs_delta", "Cliff's delta", "number", digits=2, help="of the two groups, unpaired, -1 to 1"),
    )  # fmt: skip
    note = (
        "Each client is compared with itself under both methods (means over seeds). The winner was chosen on the same "
        "numbers, so small differences deserve doubt; seeds share clients, so p over seeds is the stricter view."
    )
    return Panel(TAB, "tests", "Is the difference real?", [table("tests", columns, rows)], note)


def _percent(value: float, half: float = math.nan) -> str:
    if math.isnan(value):
        return "unknown"
    return f"{100 * value:.1f}" + ("" if math.isnan(half) else f" ± {100 * half:.1f}") + " %"


def _size(megabytes: float) -> str:
    return f"{megabytes / 1000:.2f} GB" if megabytes >= 1000 else f"{megabytes:.1f} MB"
