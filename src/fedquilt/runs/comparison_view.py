"""A comparison of methods in the terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from fedquilt.runs.statistics.intervals import Interval
from fedquilt.runs.tables import FRAME
from fedquilt.runs.terminal import say, show_table


def comparison_table(summary: Mapping[str, Any]) -> None:
    """The end of a comparison."""
    seeds = len(summary["seeds"])
    title = f"{summary['clients']} clients, {seeds} seed{'s' if seeds > 1 else ''}; accuracy in %"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("method", overflow="fold")
    for name in ("accuracy", "worst 10 %", "balanced", "macro F1", "MB", "sec"):
        table.add_column(name, justify="right", no_wrap=True)  # fits 80 columns
    table.add_row(
        "majority class", _percent(Interval(summary["majority_class"], math.nan)), "", "", "", "", "", style="dim"
    )
    framed = [row for row in summary["rows"] if row["frame"]]
    for kind in FRAME:
        if kind not in {row["kind"] for row in framed}:
            table.add_row(f"{kind}: not run", *[""] * 6, style="dim")
    best = (summary["winner"] or {}).get("method")
    for row in [*framed, *(row for row in summary["rows"] if not row["frame"])]:
        spans = [
            Interval(row[n], row[f"{n}_half_95"]) for n in ("accuracy", "worst10", "balanced_accuracy", "macro_f1")
        ]
        sent = f"{row['megabytes_up'] + row['megabytes_down']:.1f}"
        style = "bold" if row["method"] == best else "dim" if row["frame"] else ""
        table.add_row(row["method"], *(_percent(s) for s in spans), sent, f"{row['seconds']:.1f}", style=style)
    show_table(table)
    if len(framed) < len(FRAME):
        say("compare.frame=true runs the methods of the frame too.")
    _beside(summary)
    for line in summary.get("missing", []):
        say(f"note: {line}")
    for run in summary["failed"]:
        say(f"FAILED {run['method']}, seed {run['seed']}: {run['reason']}")
    interval = "± is the 95 % t-interval over seeds. " if seeds > 1 else "One seed: no interval. "
    say(f"Mean over clients, at the round chosen on {summary['chosen_on']}. {interval}Traffic and time per run.")
    say(f"report {summary['report']}")
    say(f"table  {summary['folder']}/table.csv")
    say(f"curves {summary['folder']}/curves.png")
    say("and accuracy_curves, loss_curves, accuracy_boxplot, convergence_speed and comparison_table.csv beside it")


def _beside(summary: Mapping[str, Any]) -> None:
    """What belongs beside accuracies: differences from the first method, clusters, work."""
    first, *others = summary["rows"]
    title = f"against {first['method']}, client by client" if others else None
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("method", overflow="fold")
    for name in ("difference", "p", "seeds", "majority", "clusters", "ARI", "updates"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in summary["rows"]:
        known = row is not first
        span = Interval(row["versus_first_difference"], row["versus_first_half"]) if known else Interval(0.0, math.nan)
        table.add_row(
            row["method"],
            _percent(span) + (" *" if row["versus_first_significant"] else "  ") if known else "",
            f"{row['versus_first_p']:.2g}" if known else "",
            f"{row['versus_first_seeds_better']}/{row['versus_first_seeds']}" if known else "",
            f"{100 * row['versus_majority_difference']:.1f}" + (" *" if row["versus_majority_significant"] else "  "),
            "" if row["clusters"] is None else f"{row['clusters']:.3g}",
            "" if row["ari"] is None else f"{row['ari']:.2f}",
            "" if math.isnan(row["updates"]) else f"{row['updates']:.0f}",
        )
    show_table(table)
    if others:
        say(
            "difference: mean over clients of accuracy minus the first method's, ± 95 % over clients; p: Wilcoxon's "
            "test over clients, corrected for the number of methods (Holm); *: p < 0.05 and all seeds, of two or more, "
            "agree; seeds: in how many it is better. majority: the same difference from always answering the "
            "client's commonest label. updates: local trainings per run."
        )


def _percent(span: Interval) -> str:
    return f"{100 * span.mean:.1f}" + ("" if math.isnan(span.half) else f" ± {100 * span.half:.1f}")
