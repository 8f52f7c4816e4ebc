"""Commands that run methods. Heavy libraries are imported by the commands that need them, never for --help."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedquilt.commands.options import AsJson, Energy, Folder, Overrides, Recipe, echo, stops_on_sigterm, with_energy
from fedquilt.errors import ConfigError, InputError


def sweep(
    recipe: Recipe,
    overrides: Overrides = None,
    as_json: AsJson = False,
    energy: Energy = None,
    tried: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUES",
            help=("A setting and its values: NAME=1,2,3, a range NAME=0.1..1.0, or NAME=log:0.001..1. Repeatable."),
        ),
    ] = None,
    random: Annotated[int | None, typer.Option(help="Number of random points to try.", min=1)] = None,
    optuna: Annotated[int | None, typer.Option(help="Number of points proposed by Optuna.", min=1)] = None,
) -> None:
    """Tune hyperparameters on validation data: grid search by default, or random search or Optuna.

    Finished points are kept, so an interrupted sweep continues where it stopped. The search space can also be given in
    the recipe, in \\[sweep.space].

    Example: [bold]fedquilt sweep recipes/quick.toml rounds=5 --set train.optimizer.lr=0.01,0.1[/bold]
    """
    from fedquilt.config.config import load
    from fedquilt.runs.progress import Progress
    from fedquilt.show.studies import sweep_table
    from fedquilt.studies.sweep import planned
    from fedquilt.studies.sweep import sweep as sweep_all

    if random is not None and optuna is not None:
        raise InputError("--random and --optuna are mutually exclusive.")
    config = _varied(load(recipe, with_energy(overrides, energy)), recipe, tried or [], random, optuna)
    with stops_on_sigterm(), Progress(quiet=as_json) as progress:
        summary = sweep_all(config, progress.parts(config.rounds, planned(config)))
    echo(summary) if as_json else sweep_table(summary)
    if summary["failed"]:
        raise typer.Exit(3)


def _varied(config: Config, recipe: Path, tried: list[str], random: int | None, optuna: int | None) -> Config:
    """The recipe with what the command line says of its sweep."""
    from fedquilt.config.config import with_code
    from fedquilt.config.space import read_set
    from fedquilt.own_code import looking_in

    changes: dict[str, object] = {}
    if random is not None or optuna is not None:
        changes = {"search": "optuna" if random is None else "random", "points": optuna if random is None else random}
    try:
        with looking_in(recipe.parent):
            given = with_code(dict(map(read_set, tried)))
        plan = config.sweep.model_dump() | changes
        plan["space"] = {**plan["space"], **given}
        return config.model_copy(update={"sweep": type(config.sweep).model_validate(plan)})
    except ValueError as error:
        raise ConfigError([_told(error)], str(recipe)) from error


def _told(error: ValueError) -> str:
    """The problem alone; pydantic adds where it was found in its own words."""
    problems = getattr(error, "errors", None)
    return str(problems()[0]["ctx"]["error"]) if problems is not None else str(error)


if TYPE_CHECKING:
    from fedquilt.config.config import Config


def run(
    recipe: Recipe,
    overrides: Overrides = None,
    as_json: AsJson = False,
    energy: Energy = None,
    fresh: Annotated[bool, typer.Option(help="Start from scratch even if this run exists.")] = False,
) -> None:
    """Run one method and save everything in a run folder.

    Ctrl-C or SIGTERM (exit code 143) stops it; the same command continues where it stopped.

    Example: [bold]fedquilt run recipes/quick.toml rounds=10 method.kind=fedprox method.mu=0.1[/bold]
    """
    from fedquilt.config.config import load

    config = load(recipe, with_energy(overrides, energy))
    _run(config, Path(config.output.folder) / config.folder_name, as_json, fresh)


def resume(
    folder: Folder,
    energy: Energy = None,
    as_json: AsJson = False,
    saved_code: Annotated[
        bool, typer.Option(help="Use the copy of your own code saved with the run, even if the original has changed.")
    ] = False,
) -> None:
    """Resume an interrupted run; the result is bit-identical to an uninterrupted one.

    Example: [bold]fedquilt resume runs/quick-1a2b3c4d[/bold]
    """
    from fedquilt.analysis.afterwards import config_in
    from fedquilt.storage.code import refuse_changed

    if not saved_code:
        refuse_changed(folder)
    config = config_in(folder)
    if energy is not None:
        config = config.model_copy(update={"meters": config.meters.model_copy(update={"energy": energy})})
    _run(config, folder, as_json, fresh=False)


def compare(recipe: Recipe, overrides: Overrides = None, as_json: AsJson = False, energy: Energy = None) -> None:
    """Compare several methods over several seeds on one federation.

    Finished runs are kept, so an interrupted comparison continues where it stopped. By default one run per core
    executes at a time (engine.at_once).

    Example: [bold]fedquilt compare recipes/demo.toml compare.seeds=[0,1][/bold]
    """
    from fedquilt.config.config import load
    from fedquilt.runs.progress import Progress
    from fedquilt.show.studies import comparison_table
    from fedquilt.studies.compare import cells
    from fedquilt.studies.compare import compare as compare_all

    config = load(recipe, with_energy(overrides, energy))
    top, todo = cells(config)
    if not as_json:
        typer.echo(f"{len(todo)} run{'s' * (len(todo) > 1)}; to follow in a browser: fedquilt watch {top}")
    with stops_on_sigterm(), Progress(quiet=as_json) as progress:
        summary = compare_all(config, progress.parts(config.rounds, len(todo)))
    if as_json:
        echo(summary)
    else:
        comparison_table(summary)
    if summary["failed"]:
        raise typer.Exit(3)


def robustness(recipe: Recipe, overrides: Overrides = None, as_json: AsJson = False, energy: Energy = None) -> None:
    r"""Compare aggregators under attacks by a growing fraction of malicious clients.

    The section \[robustness] sets rules, attacks, shares, by (clients or samples) and seeds. Finished runs are kept, so
    an interrupted study continues where it stopped and can be extended later.

    Example: [bold]fedquilt robustness quick rounds=5 'robustness.attacks=["ipm"]' robustness.seeds=[0][/bold]
    """
    from fedquilt.config.config import load
    from fedquilt.runs.progress import Progress
    from fedquilt.show.studies import robustness_table
    from fedquilt.studies.robustness import cells, folder_of
    from fedquilt.studies.robustness import robustness as play

    config = load(recipe, with_energy(overrides, energy))
    count = len(cells(config))
    if not as_json:
        typer.echo(f"{count} runs; to follow in a browser: fedquilt watch {folder_of(config)}")
    with stops_on_sigterm(), Progress(quiet=as_json) as progress:
        summary = play(config, progress.parts(config.rounds, count))
    echo(summary) if as_json else robustness_table(summary)


def newcomers(
    folder: Folder,
    epochs: Annotated[int, typer.Option(help="Epochs over a new client's own samples.", min=1)] = 5,
    as_json: AsJson = False,
) -> None:
    """Evaluate held-out clients (data.newcomers): without training, after fine-tuning, and tuning only the head.

    Example: [bold]fedquilt newcomers runs/quick-1a2b3c4d --epochs 2[/bold]
    """
    from fedquilt.analysis.afterwards import config_in, newcomers_of
    from fedquilt.config.data import federations_of
    from fedquilt.show.show import newcomers_table

    config = config_in(folder)
    federation, new = federations_of(config)
    if new is None:
        raise InputError(f"The recipe of '{folder}' holds out no clients. Run it with, for example, data.newcomers=5.")
    found = newcomers_of(config, folder, federation, new, epochs)
    if as_json:
        echo(found)
    else:
        newcomers_table(found)


def _run(config: Config, folder: Path, as_json: bool, fresh: bool) -> None:
    from fedquilt.analysis.afterwards import newcomers_of
    from fedquilt.config.data import federations_of
    from fedquilt.report import write_report
    from fedquilt.runs.build import engine_of, result_for, run_of
    from fedquilt.runs.progress import Progress
    from fedquilt.show.show import newcomers_table, result_table
    from fedquilt.storage.federation_file import write_federation
    from fedquilt.storage.finished import result_of
    from fedquilt.studies.listening import play_to

    federation, new = federations_of(config)
    found, notes = None if fresh else result_for(folder, federation, config.rounds), list[str]()
    played = found is None
    if found is None:
        engine = engine_of(config)
        try:
            made = run_of(config, engine, folder, federation, fresh)
            write_federation(folder, federation)
            with stops_on_sigterm(), Progress(quiet=as_json) as progress:
                play_to(progress.bar(folder.name, config.rounds), made)
        finally:
            engine.close()
        found, notes = result_of(folder) or {}, made.notes
    elif not as_json:
        typer.echo(f"This run is already finished; use --fresh to run it again. Folder: {folder}")
    scores = None if new is None else newcomers_of(config, folder, federation, new)
    report = folder / "report.html"
    if played or not report.exists():
        write_report(folder)
    if as_json:
        new_scores = {} if scores is None else {"newcomers": scores}
        echo({"folder": str(folder), "report": str(report), "notes": notes, **found, **new_scores})
        return
    result_table(folder, found)
    if scores is not None:
        newcomers_table(scores)


def demo(
    scenes: Annotated[
        list[str] | None, typer.Argument(help="groups, heads, rare, links, tasks; default: all.", metavar="[SCENE]...")
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting to override in every scene. Repeatable."),
    ] = None,
    to: Annotated[Path, typer.Option(help="Output folder.")] = Path("runs/demo"),
    as_json: AsJson = False,
) -> None:
    """Show five federated learning problems, each with a method that addresses it, on real data.

    Writes one HTML page. About 90 seconds on two cores, no network access. Finished scenes are kept.

    Example: [bold]fedquilt demo groups[/bold]
    """
    from fedquilt.demo.play import config_of, play, write
    from fedquilt.demo.play import scenes as called
    from fedquilt.runs.progress import Progress
    from fedquilt.terminal import say

    todo = [(scene, config_of(scene, to, changes or [])) for scene in called(scenes or [])]
    shown = []
    with stops_on_sigterm(), Progress(quiet=as_json) as progress:
        for scene, config in todo:
            with progress.whole(f"{scene.name}: {scene.title}") as audience:
                shown.append(play(scene, config, audience))
            progress.tell(f"{scene.name}: {shown[-1].told.sentence}")
    page = write(shown, to)
    if as_json:
        echo({"page": str(page), "scenes": [one.row() for one in shown]})
        return
    say(f"\npage {page}")
