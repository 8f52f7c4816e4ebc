"""Comparisons of methods and sweeps, in the terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set

from fedquilt.core.plain import JSON, Row
from fedquilt.metrics.table import headline, main, task, trivial
from fedquilt.registry import shown_as
from fedquilt.results.breakdown import span, told
from fedquilt.results.ranking import best_first
from fedquilt.results.statistics.beside import apart
from fedquilt.results.tables import FRAME, ScoreColumn, names, score_columns
from fedquilt.show.show import modes_table, narrow
from fedquilt.storage.finished import chosen
from fedquilt.terminal import console, say, show_table


def comparison_table(summary: Mapping[str, JSON]) -> None:
    """The end of a comparison."""
    if "probe" in summary:
        _probed(summary)
        return
    won = summary["winner"] or {"method": None, "tied": [], "versus": {}}
    shown = names(summary)
    framed = [row for row in summary["rows"] if row["frame"]]
    _scores(summary, framed, {won["method"], *won["tied"]})
    if won["versus"]:
        say(f"Best: {shown[won['method']]}. {apart(won, shown)}")
    if len(framed) < len(FRAME):
        say("compare.frame=true adds the baselines.")
    _beside(summary)
    _notes(summary)
    _how(summary)


def _probed(summary: Mapping[str, JSON]) -> None:
    """The end of a comparison of methods that learn without labels."""
    seeds, measure = len(summary["seeds"]), summary["measure"]
    title = f"{summary['clients']} clients, {summary['tasks']} tasks, {seeds} seed{'s' if seeds > 1 else ''}; in %"
    table = narrow(title, "method", (summary["probe"], "forgotten", "MB", "sec"))
    table.add_row("untrained", _percent(summary["untrained"], None), "", "", "", style="dim")
    lost = measure.replace("_average", "_forgetting")
    for row in summary["rows"]:
        told = (_percent(row[n], row[f"{n}_half_95"]) for n in (measure, lost))
        sent = f"{row['megabytes_up'] + row['megabytes_down']:.1f}"
        table.add_row(row["display"], *told, sent, f"{row['seconds']:.1f}", style="dim" if row["frame"] else "")
    show_table(table)
    if (won := summary["winner"]) and won["versus"]:
        shown = names(summary)
        say(f"Best: {shown[won['method']]}. {apart(won, shown)}")
    for run in summary["failed"]:
        say(f"FAILED {run.get('display', run['method'])}, seed {run['seed']}: {run['reason']}")
    say("Linear probes on the features after the last task, on test samples of all tasks; only the probes use labels.")
    say(f"report {summary['report']}")
    say(f"table  {summary['folder']}/table.csv")


def _scores(summary: Mapping[str, JSON], framed: Sequence[Row], top: Set[str | None]) -> None:
    """The scores of all methods, those of the frame first; the best are bold."""
    seeds = len(summary["seeds"])
    title = f"{summary['clients']} clients, {seeds} seed{'s' if seeds > 1 else ''}; {headline()}"
    shown = _fitting(summary["rows"])
    table = narrow(title, "method", (*(c.label for c in shown), "MB", "sec"))
    least = {summary["measure"]: summary["majority_class"], f"common_{main().id}": summary["majority_class_common"]}
    table.add_row(trivial(), *(_percent(least.get(c.key), None) for c in shown), "", "", style="dim")
    played = {row["kind"] for row in framed}
    for kind in (kind for kind in FRAME if kind not in played):
        table.add_row(f"{shown_as('method', kind)}: not run", *[""] * (len(shown) + 2), style="dim")
    for row in sorted(summary["rows"], key=lambda row: not row["frame"]):  # the frame first
        table.add_row(*_scores_of(row, shown), style=_style(row, top))
    show_table(table)


def _fitting(rows: Sequence[Row]) -> list[ScoreColumn]:
    """The scores that some method has, and that fit the terminal; the others are in the table's file."""
    shown = [c for c in score_columns() if any(row.get(c.key) is not None for row in rows)]
    wide = console.width >= 32 + 12 * len(shown)
    return [c for c in shown if wide or not c.metric.minor]


def _style(row: Row, top: Set[str | None]) -> str:
    return "bold" if row["method"] in top else "dim" if row["frame"] else ""


def _scores_of(row: Row, shown: Sequence[ScoreColumn]) -> tuple[str, ...]:
    """A method with its scores, what it sent, and its seconds."""
    spans = (c.metric.written(row.get(c.key), row.get(c.key + c.half)) for c in shown)
    return row["display"], *spans, f"{row['megabytes_up'] + row['megabytes_down']:.1f}", f"{row['seconds']:.1f}"


def _notes(summary: Mapping[str, JSON]) -> None:
    """What should be known of methods and runs."""
    shown = names(summary)
    if modes := summary.get("mode_scores"):
        modes_table({shown[method]: told for method, told in modes.items()})
    _energy({shown[method]: line for method, line in summary.get("energy", {}).items()})
    for method, doubt in summary.get("doubts", {}).items():
        say(f"note: {shown[method]}: {doubt}")
    for line in summary.get("missing", []):
        say(f"note: {line}")
    for run in summary["failed"]:
        say(f"FAILED {run.get('display', run['method'])}, seed {run['seed']}: {run['reason']}")


def _how(summary: Mapping[str, JSON]) -> None:
    """How the numbers came about, and where there is more."""
    interval = (
        f"± is the 95 % t-interval over seeds; for columns other than {main().short}, combined with that of the test "
        "samples. "
        if len(summary["seeds"]) > 1
        else "One seed: no interval. ± of other columns is the 95 % interval due to the number of test samples. "
    )
    mean = "Mean over clients" if summary["measure"] == main().id else "Global model on the common test set"
    say(f"{mean}, at the {chosen(summary['chosen_on'] == 'validation')}. {interval}Traffic and time per run.")
    say(f"report {summary['report']}")
    say(f"table  {summary['folder']}/table.csv")
    say(f"curves {summary['folder']}/curves.png")
    first = main().id
    say(f"also {first}_curves, loss_curves, {first}_boxplot, convergence_speed and comparison_table.csv")


def _energy(told: Mapping[str, str]) -> None:
    """What a run of each method spent; once where all say the same, for example that nothing can be measured."""
    if len(set(told.values())) == 1:
        say(next(iter(told.values())))
    else:
        for method, line in told.items():
            say(f"{method}: {line}")


def _beside(summary: Mapping[str, JSON]) -> None:
    """What belongs beside accuracies: differences from the first method, clusters, work."""
    first, *others = summary["rows"]
    clients = summary["measure"] == main().id
    title = f"against {first['display']}, {'client by client' if clients else 'seed by seed'}" if others else None
    heads = ("difference", "p", "seeds", "majority" if task() is None else "constant", "clusters", "ARI", "updates")
    lines = [
        (
            *(("", "", "") if row is first else _against(row)),
            _percent(row["versus_majority_difference"], None) + _star(row["versus_majority_significant"]),
            "" if row["clusters"] is None else f"{row['clusters']:.3g}{_placed(row) if row['ari'] is None else ''}",
            "" if row["ari"] is None else f"{row['ari']:.2f}{_placed(row)}",
            "" if math.isnan(row["updates"]) else f"{row['updates']:.0f}",
        )
        for row in summary["rows"]
    ]
    kept = [i for i in range(len(heads)) if any(line[i].strip() for line in lines)]
    table = narrow(title, "method", [heads[i] for i in kept])
    for row, line in zip(summary["rows"], lines, strict=True):
        table.add_row(row["display"], *(line[i] for i in kept))
    show_table(table)
    _explain(summary, bool(others), clients)


def _explain(summary: Mapping[str, JSON], others: bool, clients: bool) -> None:
    """What the columns of differences mean."""
    if any(_placed(row) for row in summary["rows"]):
        say(
            "ARI is over the clients that were placed in a cluster; those never asked are scored with the model of "
            "lowest loss on their training samples."
        )
    if others and not clients:
        say(
            f"difference: {main().name} on the common test set minus the first method's; p: paired t-test over "
            "seeds, corrected for the number of methods (Holm); *: p < 0.05 and all seeds, of two or more, agree; "
            "seeds: in how many it is better. updates: client updates per run."
        )
    elif others:
        say(
            f"difference: mean over clients of {main().name} minus the first method's, ± 95 % over clients; p: "
            "Wilcoxon's test over clients, corrected for the number of methods (Holm); *: p < 0.05 and all seeds, of "
            "two or more, agree; seeds: in how many it is better. "
            f"{_constant()}. updates: client updates per run."
        )


def _against(row: Mapping[str, JSON]) -> tuple[str, str, str]:
    """A method's difference from the first one, its p, and in how many seeds it is better."""
    far = _percent(row["versus_first_difference"], row["versus_first_half"]) + _star(row["versus_first_significant"])
    p = "" if math.isnan(row["versus_first_p"]) else f"{row['versus_first_p']:.2g}"
    return far, p, f"{row['versus_first_seeds_better']}/{row['versus_first_seeds']}"


def _star(significant: bool) -> str:
    return " *" if significant else "  "


def _placed(row: Mapping[str, JSON]) -> str:
    """How many clients were in a cluster at the end, where some were not."""
    placed, whole = row["placed"], row["placed_of"]
    return "" if placed is None or whole is None or placed >= whole else f" ({placed:.4g} of {whole:.4g} placed)"


def _sure(value: float, half: float) -> str:
    """With half of its interval, if there is one."""
    return main().written(value, half)


def _percent(value: float | None, half: float | None = None) -> str:
    """A value of the main metric."""
    return main().written(value, half)


def _constant() -> str:
    """What the column of differences from the answer that needs no input means."""
    if task() is None:
        return "majority: the same difference from always answering the client's most frequent label"
    return f"constant: the same difference from always answering the {trivial()}"


def robustness_table(summary: Mapping[str, JSON]) -> None:
    """What attacks did to each rule, and which to take."""
    chosen = summary["recommended"]["rule"]
    table = narrow(f"{summary['name']}: accuracy in %, and points lost", "rule", ("no attack", "cost", "lost", "worst"))
    clean = {cell["rule"]: cell for cell in summary["cells"] if cell["attack"] is None}
    for row in summary["rules"]:
        numbers = (f"{100 * row[name]:.1f}" for name in ("cost", "lost", "worst"))
        table.add_row(row["rule"], span(clean[row["rule"]]), *numbers, style="bold" if row["rule"] == chosen else "")
    show_table(table)
    for line in told(summary):
        say(line)
    early = sum(cell["ended_early"] for cell in summary["cells"])
    if early:
        say(f"{early} runs ended early and count with chance ({100 * summary['chance']:.0f} %).")
    say("After the last round, mean over honest clients; lost: under attacks, against the mean without one.")
    say(f"page   {summary['page']}")
    say(f"table  {summary['folder']}/robustness.json, robustness_*.csv")


MOST = 20  # lines


def sweep_table(summary: Mapping[str, JSON]) -> None:
    """The best points, and where the rest is."""
    rows, seeds = best_first(summary["points"]), len(summary["seeds"])
    title = f"{len(rows)} points ({summary['search']}), {seeds} seed{'s' if seeds > 1 else ''}; {headline()}"
    table = narrow(title, "point", ("validation", "round", "MB", "sec"))
    for row in rows[:MOST]:
        if row["valid"] is None:
            table.add_row(row["label"], "failed", "", "", "", style="dim")
            continue
        table.add_row(
            row["label"],
            _sure(row["valid"], row["valid_half_95"]),
            f"{row['rounds']:.1f}",
            f"{row['megabytes']:.1f}",
            f"{row['seconds']:.1f}",
            style="bold" if row["best"] else "",
        )
    show_table(table)
    if len(rows) > MOST:
        say(f"and {len(rows) - MOST} more: {summary['folder']}/sweep.csv")
    best = summary["best"]
    sure = _sure(best["test"], best["test_half_95"])
    say(f"best on validation: {best['label']}; its test {main().name} is {sure}{' %' * main().share}")
    for run in summary["failed"]:
        say(f"{run.get('display', run['method'])}, seed {run['seed']} failed: {run['reason']}")
    for name in ("report", "recipe", "folder"):
        say(f"{name} {summary[name]}")
