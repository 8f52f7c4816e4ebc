"""The command ``fedquilt``. Heavy libraries are imported by the commands that need them, never for --help."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedquilt.audit.command import audit
from fedquilt.core.errors import FedquiltError, InputError
from fedquilt.deploy.commands import export, join, keys, serve
from fedquilt.runs.tail_commands import predict, realign, tails

if TYPE_CHECKING:
    from fedquilt.runs.config import Config

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Learn from clients whose data differ, without moving the data.",
    epilog="Exit codes: 0 done, 2 wrong input, 3 a method or a round failed, 4 the run folder cannot be used, "
    "5 worker processes or Flower failed, 6 a download failed, 130 interrupted.",
)

Recipe = Annotated[Path, typer.Argument(help="A recipe: a .toml file.", metavar="RECIPE")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="Settings to change, for example rounds=5 method.mu=0.1.", metavar="KEY=VALUE"),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON and nothing else.")]


@app.command()
def run(recipe: Recipe, overrides: Overrides = None, as_json: AsJson = False,
        fresh: Annotated[bool, typer.Option(help="Start anew even if this run exists.")] = False) -> None:  # fmt: skip
    """Run one method and keep everything about it in a folder.

    Example: [bold]fedquilt run recipes/quick.toml rounds=10 method.kind=fedprox method.mu=0.1[/bold]
    """
    from fedquilt.runs.config import load

    config = load(recipe, overrides or [])
    _run(config, Path(config.output.folder) / config.folder_name, as_json, fresh)


@app.command()
def resume(folder: Annotated[Path, typer.Argument(help="The folder of a run.", metavar="RUN")],
           as_json: AsJson = False) -> None:  # fmt: skip
    """Go on with a run that was interrupted; the result is the same to the last bit.

    Example: [bold]fedquilt resume runs/quick-1a2b3c4d[/bold]
    """
    from fedquilt.runs.afterwards import config_in

    _run(config_in(folder), folder, as_json, fresh=False)


def _run(config: Config, folder: Path, as_json: bool, fresh: bool) -> None:
    from fedquilt.runs.afterwards import newcomers_of
    from fedquilt.runs.build import engine_of, result_for, result_of, run_of
    from fedquilt.runs.data import federations_of
    from fedquilt.runs.show import Progress, newcomers_table, result_table

    federation, new = federations_of(config)
    found, notes = None if fresh else result_for(folder, federation), list[str]()
    if found is None:
        engine = engine_of(config)
        try:
            made = run_of(config, engine, folder, federation, fresh)
            with Progress(quiet=as_json) as progress:
                bar = progress.bar(folder.name, config.rounds)
                told = 0
                for snapshot in made:
                    for note in made.notes[told:]:
                        progress.note(note)
                    told = len(made.notes)
                    bar.update(snapshot)
        finally:
            engine.close()
        found, notes = result_of(folder) or {}, made.notes
    elif not as_json:
        typer.echo(f"This run is finished already; --fresh runs it anew. Folder: {folder}")
    scores = None if new is None else newcomers_of(config, folder, federation, new)
    if as_json:
        _echo({"folder": str(folder), "notes": notes, **found, **({} if scores is None else {"newcomers": scores})})
        return
    result_table(folder, found)
    if scores is not None:
        newcomers_table(scores)


@app.command()
def compare(recipe: Recipe, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Compare several methods over several seeds on one federation.

    Runs that are finished are kept, so an interrupted comparison goes on where it stopped.

    Example: [bold]fedquilt compare recipes/demo.toml compare.seeds=[0,1][/bold]
    """
    from fedquilt.runs.compare import cells
    from fedquilt.runs.compare import compare as compare_all
    from fedquilt.runs.comparison_view import comparison_table
    from fedquilt.runs.config import load
    from fedquilt.runs.show import Progress

    config = load(recipe, overrides or [])
    _, todo = cells(config)
    with Progress(quiet=as_json) as progress:
        bar = progress.bar("comparison", config.rounds * len(todo))
        summary = compare_all(
            config, lambda cell, snapshot: bar.update(snapshot, f"{cell.label} seed {cell.config.seed}")
        )
    if as_json:
        _echo(summary)
    else:
        comparison_table(summary)
    if summary["failed"]:
        raise typer.Exit(3)


@app.command()
def newcomers(folder: Annotated[Path, typer.Argument(help="The folder of a run.", metavar="RUN")],
              epochs: Annotated[int, typer.Option(help="Passes over a newcomer's own rows.", min=1)] = 5,
              as_json: AsJson = False) -> None:  # fmt: skip
    """Score the clients that a run held out (data.newcomers): as it is, after fine-tuning, and tuning the head only.

    Example: [bold]fedquilt newcomers runs/quick-1a2b3c4d --epochs 2[/bold]
    """
    from fedquilt.runs.afterwards import config_in, newcomers_of
    from fedquilt.runs.data import federations_of
    from fedquilt.runs.show import newcomers_table

    config = config_in(folder)
    federation, new = federations_of(config)
    if new is None:
        raise InputError(f"The recipe of '{folder}' holds nobody out; run it with data.newcomers=5, say.")
    found = newcomers_of(config, folder, federation, new, epochs)
    if as_json:
        _echo(found)
    else:
        newcomers_table(found)


@app.command()
def clusters(folder: Annotated[Path, typer.Argument(help="The folder of a run.", metavar="RUN")],
             to: Annotated[Path | None, typer.Option(help="Where pictures go; by default RUN/clusters.")] = None,
             as_json: AsJson = False) -> None:  # fmt: skip
    """Look at the clusters that a run found: table, tree with its cut, likeness, moves over rounds (PNG, SVG, CSV).

    Example: [bold]fedquilt clusters runs/groups-1a2b3c4d[/bold]
    """
    from fedquilt.runs.cluster_view import clusters_table, viewed

    found = viewed(folder, to)
    _echo(found) if as_json else clusters_table(found)


@app.command()
def assign(folder: Annotated[Path, typer.Argument(help="The folder of a run.", metavar="RUN")],
           data: Annotated[Path, typer.Option(help="The new client's rows: an .npz with x and y.")],
           as_json: AsJson = False) -> None:  # fmt: skip
    """Tell which cluster of a run a new client belongs to, from the run's folder and the client's rows.

    Example: [bold]fedquilt assign runs/groups-1a2b3c4d --data new.npz[/bold]
    """
    from dataclasses import asdict

    from fedquilt.runs.assign import assign as place

    found = asdict(place(folder, data))
    short = {k: round(v, 4) if isinstance(v, float) else v for k, v in found.items()}
    _echo(found) if as_json else _listing([short], False, f"{data}")


@app.command()
def csv(folder: Annotated[Path, typer.Argument(help="The folder of a run.", metavar="RUN")],
        to: Annotated[Path, typer.Option(help="The folder that the files go to.")],
        as_json: AsJson = False) -> None:  # fmt: skip
    """Write a run's numbers as server_metrics.csv, cluster_metrics.csv and client_ID/metrics.csv.

    Example: [bold]fedquilt csv runs/groups-1a2b3c4d --to tables[/bold]
    """
    from fedquilt.runs.csv_export import export_csv

    found = export_csv(folder, to)
    if as_json:
        _echo(found)
    else:
        typer.echo(f"{found['rounds']} rounds, {found['clients']} clients: {found['folder']}")


@app.command()
def traffic(folder: Annotated[Path, typer.Argument(help="The folder of a run.", metavar="RUN")],
            plot: Annotated[Path | None, typer.Option(help="Where accuracy by megabytes is drawn (PNG, CSV).")] = None,
            as_json: AsJson = False) -> None:  # fmt: skip
    """What a run sent: by exchange, direction and tensor, as it is and as it travelled; beside plain FedAvg.

    Example: [bold]fedquilt traffic runs/quick-1a2b3c4d --plot traffic.png[/bold]
    """
    from fedquilt.runs.traffic import drawn, summary, table

    found = summary(folder)
    if plot is not None:
        found["plot"] = str(drawn(folder, plot))
    _echo(found) if as_json else typer.echo(table(found))


@app.command()
def codecs(as_json: AsJson = False) -> None:
    """List the codecs. Example: [bold]fedquilt codecs[/bold]"""
    from fedquilt.runs.registry import entries

    rows = [{"name": e.name, "about": e.about, "reference": e.reference} for e in entries("codec").values()]
    _listing(rows, as_json, "codecs")


@app.command()
def methods(as_json: AsJson = False) -> None:
    """List the methods. Example: [bold]fedquilt methods --json[/bold]"""
    from fedquilt.runs.registry import entries

    rows = [{"name": e.name, "about": e.about, "reference": e.reference} for e in entries("method").values()]
    _listing(rows, as_json, "methods")


@app.command()
def datasets(name: Annotated[str | None, typer.Argument(help="One data set.", metavar="NAME")] = None,
             as_json: AsJson = False,
             download: Annotated[str | None, typer.Option(help="Download this one.", metavar="NAME")] = None,
             via: Annotated[str, typer.Option(help="Where from: official, or hf for Hugging Face.")] = "official",
             verify: Annotated[str | None, typer.Option(help="Check the files of this one.", metavar="NAME")] = None,
             clear_cache: Annotated[bool, typer.Option("--clear-cache", help="Remove decoded copies.")] = False,
             ) -> None:  # fmt: skip
    """List the data sets, tell about one, download it, check its files, or clear the cache of decoded ones.

    Example: [bold]fedquilt datasets cifar10[/bold] or [bold]fedquilt datasets --download cifar10[/bold]
    """
    from fedquilt.runs import datasets as actions

    if clear_cache:
        _listing(actions.cleared(), as_json, "removed from the cache")
    elif download is not None:
        _listing(actions.downloaded(download, via, quiet=as_json), as_json, f"{download}: files")
        if not as_json:
            typer.echo(actions.rest(download))
    elif verify is not None:
        rows = actions.verified(verify)
        _listing(rows, as_json, f"{verify}: files")
        if any(row["ok"] is False for row in rows) or not any(row["here"] for row in rows):
            raise typer.Exit(2)
    else:
        actions.tell(name, _echo if as_json else None)


@app.command()
def models(
    name: Annotated[str | None, typer.Argument(help="A model, to see more of it.", metavar="NAME")] = None,
    options: Annotated[list[str] | None, typer.Argument(help="Options of the model.", metavar="KEY=VALUE")] = None,
    shape: Annotated[str | None, typer.Option(help="The shape of one input, for example 3,32,32.")] = None,
    classes: Annotated[int | None, typer.Option(help="The number of classes.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the models, or look at one: its size, and what one row costs.

    Example: [bold]fedquilt models resnet18 norm=batch --shape 3,32,32 --classes 100[/bold]
    """
    from fedquilt.runs.models import detail, in_words, overview

    found = overview() if name is None else detail(name, shape, classes, options or [])
    if as_json:
        _echo(found)
    else:
        _listing(in_words(found), False, name or "models")


@app.command()
def partition(recipe: Recipe, overrides: Overrides = None, as_json: AsJson = False,
              plot: Annotated[Path, typer.Option(help="Where the picture goes.")] = Path("partition.png"),
              ) -> None:  # fmt: skip
    """Look at how a recipe divides its data: who has which labels, and how much.

    Example: [bold]fedquilt partition recipes/demo.toml data.partition.alpha=0.1 --plot split.png[/bold]
    """
    from fedquilt.data import Stream
    from fedquilt.runs.build import federation_of
    from fedquilt.runs.config import load
    from fedquilt.runs.division import looked_at, stream_looked_at
    from fedquilt.runs.show import partition_table, stream_tables

    config = load(recipe, overrides or [])
    federation = federation_of(config)
    how = "by user" if config.data.by_user else config.data.partition.kind
    title = f"{config.data.source or config.data.path}, {how}"
    if isinstance(federation, Stream):
        found = stream_looked_at(federation, title, plot)
        _echo(found) if as_json else stream_tables(federation, found)
    else:
        found = looked_at(federation, title, plot)
        _echo(found) if as_json else partition_table(federation, Path(found["plot"]))


@app.command()
def merge(
    models: Annotated[list[Path], typer.Argument(help="Safetensors files, or transformers folders.", metavar="MODEL")],
    out: Annotated[Path, typer.Option("-o", "--out", help="Where the merged model goes.")],
    base: Annotated[Path | None, typer.Option(help="What the models began from.")] = None,
    rule: Annotated[str, typer.Option(help="stitch, task_arithmetic, ties, dare, dare_ties, soup, greedy_soup, slerp, "
                                           "fisher or regmean.")] = "stitch",
    keep: Annotated[float | None, typer.Option(help="stitch, ties: the share of changes that has a say.")] = None,
    per: Annotated[str | None, typer.Option(help="stitch, ties: that share over 'all' or of each 'tensor'.")] = None,
    conflicts: Annotated[str | None, typer.Option(help="stitch: mean, elect or median.")] = None,
    count: Annotated[str | None, typer.Option(help="stitch: what is counted, mask or nonzero.")] = None,
    scale: Annotated[float | None, typer.Option(help="task_arithmetic, ties: factor of the change.")] = None,
    drop: Annotated[float | None, typer.Option(help="dare: the share of changes that is dropped.")] = None,
    t: Annotated[float | None, typer.Option(help="slerp: how far from the first to the second.")] = None,
    shrink: Annotated[float | None, typer.Option(help="regmean: factor of off-diagonals.")] = None,
    statistics: Annotated[list[Path] | None, typer.Option(help="fisher, regmean: a file for each model.")] = None,
    recipe: Annotated[Path | None, typer.Option(help="greedy_soup: whose validation rows to score on.")] = None,
    weight: Annotated[list[float] | None, typer.Option(help="How much each model counts, in order.")] = None,
    seed: Annotated[int, typer.Option(help="For rules that draw.", min=0)] = 0,
    force: Annotated[bool, typer.Option(help="Replace what is at --out.")] = False,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Merge saved models into one, reading one tensor of each at a time.

    Example: [bold]fedquilt merge a.safetensors b.safetensors --base start.safetensors --keep 0.05 -o ab[/bold]
    """
    from fedquilt.runs.merging import Request
    from fedquilt.runs.show import merged_models

    asked = {"keep": keep, "per": per, "conflicts": conflicts, "count": count, "scale": scale, "drop": drop, "t": t,
             "shrink": shrink, "statistics": statistics, "recipe": recipe}  # fmt: skip
    options = {name: value for name, value in asked.items() if value is not None}
    found = merged_models(Request(models, out, rule, base, options, weight, seed, force), quiet=as_json)
    if as_json:
        _echo(found)


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Check this machine: versions, cores, memory, worker processes, data. Example: [bold]fedquilt doctor[/bold]"""
    from fedquilt.runs.doctor import checks

    found = checks()
    _listing(found, as_json, "doctor")
    if any(row["state"] == "fails" for row in found):
        raise typer.Exit(5)


app.command()(audit)
for _about_tails in (realign, tails, predict):
    app.command(rich_help_panel="Long tails")(_about_tails)
for _command in (serve, join, keys, export):
    app.command(rich_help_panel="Real federations")(_command)


def _listing(rows: list[dict[str, Any]], as_json: bool, title: str) -> None:
    from fedquilt.runs.show import listing

    if as_json:
        _echo(rows)
    else:
        listing(rows, title)


def _echo(value: Any) -> None:
    from fedquilt.runs.files import to_json

    typer.echo(to_json(value))


@contextmanager
def _told(as_json: bool) -> Iterator[None]:
    """Turn errors into one message on standard error and an exit code."""
    try:
        yield
    except FedquiltError as error:
        _say(as_json, str(error), error.exit_code, type(error).__name__)
    except KeyboardInterrupt:
        _interrupted(as_json)
    except SystemExit as end:
        if end.code == 130:  # typer makes this of a KeyboardInterrupt
            _interrupted(as_json)
        raise
    except BrokenPipeError:
        sys.exit(141)


def _interrupted(as_json: bool) -> None:
    _say(as_json, "Interrupted. Snapshots are kept; 'fedquilt resume RUN' goes on.", 130, "Interrupted")


def _say(as_json: bool, text: str, code: int, kind: str) -> None:
    if as_json:
        print(json.dumps({"error": kind, "message": text, "exit_code": code}))
    else:
        print(f"fedquilt: {text}", file=sys.stderr)
    sys.exit(code)


def main(run_app: Callable[..., Any] = app) -> None:
    """The entry point."""
    as_json = "--json" in sys.argv
    with _told(as_json):
        if not as_json:
            run_app()
            return
        try:
            sys.exit(run_app(standalone_mode=False) or 0)
        except Exception as error:
            message = getattr(error, "format_message", None)  # a wrong command line, in click's words
            if message is None:
                raise
            _say(True, message(), 2, "UsageError")


if __name__ == "__main__":
    main()
