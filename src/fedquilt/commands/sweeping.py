"""The command that tries many settings."""

from __future__ import annotations

from typing import Annotated

import typer

from fedquilt.commands.options import AsJson, Energy, Overrides, Recipe, echo, stops_on_sigterm, with_energy
from fedquilt.core.errors import ConfigError, InputError


def sweep(recipe: Recipe, overrides: Overrides = None, as_json: AsJson = False, energy: Energy = None,
          tried: Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUES", help=(
              "A setting and what to try: NAME=1,2,3, or a range NAME=0.1..1.0 or NAME=log:0.001..1; may be repeated."
          ))] = None,
          random: Annotated[int | None, typer.Option(help="Try so many points at random.", min=1)] = None,
          optuna: Annotated[int | None, typer.Option(help="Try so many points that optuna proposes.", min=1)] = None,
          ) -> None:  # fmt: skip
    """Try many settings of a method and choose one on validation rows; by default every combination.

    Points that are finished are kept, so an interrupted sweep goes on where it stopped. What is varied may also stand
    in the recipe, in \\[sweep.space].

    Example: [bold]fedquilt sweep recipes/quick.toml rounds=5 --set train.optimizer.lr=0.01,0.1[/bold]
    """
    from fedquilt.runs.config import load
    from fedquilt.runs.progress import Progress
    from fedquilt.runs.sweeping.space import read_set
    from fedquilt.runs.sweeping.sweep import planned
    from fedquilt.runs.sweeping.sweep import sweep as sweep_all
    from fedquilt.runs.sweeping.view import sweep_table

    if random is not None and optuna is not None:
        raise InputError("--random and --optuna exclude each other; leave one of them out.")
    config = load(recipe, with_energy(overrides, energy))
    changes: dict[str, object] = {}
    if random is not None or optuna is not None:
        changes = {"search": "optuna" if random is None else "random", "points": optuna if random is None else random}
    try:
        given = dict(read_set(text) for text in tried or [])
        plan = config.sweep.model_dump() | changes
        plan["space"] = {**plan["space"], **given}
        config = config.model_copy(update={"sweep": type(config.sweep).model_validate(plan)})
    except ValueError as error:
        raise ConfigError([_told(error)], str(recipe)) from error
    with stops_on_sigterm(), Progress(quiet=as_json) as progress:
        summary = sweep_all(config, progress.parts(config.rounds, planned(config)))
    echo(summary) if as_json else sweep_table(summary)
    if summary["failed"]:
        raise typer.Exit(3)


def _told(error: ValueError) -> str:
    """The problem alone; pydantic adds where it was found in its own words."""
    problems = getattr(error, "errors", None)
    return str(problems()[0]["ctx"]["error"]) if problems is not None else str(error)
