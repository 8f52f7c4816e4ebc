"""The command that measures this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from fedquilt.commands.options import AsJson, echo, listing


def bench(
    seconds: Annotated[float, typer.Option(help="For each model and engine.")] = 1.5,
    processes: Annotated[
        int | None, typer.Option(help="Of the engine workers; by default one per core.", min=1)
    ] = None,
    model: Annotated[list[str] | None, typer.Option(help="Only this model; may be given several times.")] = None,
    as_json: AsJson = False,
) -> None:
    """Measure this machine in less than a minute: steps per second of each engine, memory, and what to set.

    Example: [bold]fedquilt bench --model lenet5 --seconds 3[/bold]
    """
    from fedquilt.runs.bench import MODELS, advice, measured
    from fedquilt.runs.progress import Progress

    rows, models = [], model or MODELS
    with Progress(quiet=as_json) as progress:
        bar = progress.bar("measuring", len(models))
        for row in measured(models, processes, seconds):
            rows.append(row)
            bar.note(f"{row['model']} on {row['engine']}")
            bar.reached(models.index(row["model"]))
        bar.reached(len(models))
    if as_json:
        echo({"measured": rows, "advice": advice(rows)})
        return
    short = [{k: round(v) if isinstance(v, float) else v for k, v in row.items()} for row in rows]
    listing(short, False, "training steps per second, batches of 10")
    listing(advice(rows), False, "what to set")
