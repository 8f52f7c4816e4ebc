"""Commands that tell what there is. Heavy libraries are imported by the commands that need them, never for --help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedquilt.commands.options import AsJson, echo, listing
from fedquilt.errors import InputError


def bench(
    seconds: Annotated[float, typer.Option(help="Seconds per model and engine.")] = 1.5,
    processes: Annotated[int | None, typer.Option(help="Worker processes; by default one per core.", min=1)] = None,
    model: Annotated[list[str] | None, typer.Option(help="Benchmark only this model. Repeatable.")] = None,
    as_json: AsJson = False,
) -> None:
    """Benchmark this machine in under a minute: steps per second by engine, memory, recommended settings.

    Example: [bold]fedquilt bench --model lenet5 --seconds 3[/bold]
    """
    from fedquilt.analysis.bench import MODELS, advice, measured
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


def recipes(
    name: Annotated[str | None, typer.Argument(help="A recipe to print.", metavar="NAME")] = None,
    copy: Annotated[bool, typer.Option("--copy", help="Copy it into the current folder.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the included recipes, print one, or copy it. Names work wherever a recipe is expected.

    Example: [bold]fedquilt recipes quick[/bold] or [bold]fedquilt recipes stitch/digits --copy[/bold]
    """
    from fedquilt.config import recipes as there

    if name is None:
        if copy:
            raise InputError("--copy needs a recipe: fedquilt recipes NAME --copy.")
        listing([recipe.row for recipe in there.recipes().values()], as_json, "recipes")
        return
    file = there.find(name)
    text, to = file.read_text(encoding="utf-8"), Path(file.name)
    if copy:
        if to.exists():
            raise InputError(f"'{to}' already exists here. Rename or remove it, or use another folder.")
        to.write_text(text, encoding="utf-8")
    if as_json:
        echo({"name": name, "text": text, **({"file": str(to)} if copy else {})})
    else:
        typer.echo(f"Written: {to}. Run it with: fedquilt {there.command(text)} {to}" if copy else text.rstrip())


def methods(
    name: Annotated[str | None, typer.Argument(help="A method to show.", metavar="NAME")] = None,
    as_json: AsJson = False,
) -> None:
    """List the methods, or show the options and training defaults of one.

    Example: [bold]fedquilt methods podfcssv[/bold]
    """
    _tell("method", name, as_json)


def codecs(
    name: Annotated[str | None, typer.Argument(help="A codec to show.", metavar="NAME")] = None, as_json: AsJson = False
) -> None:
    """List the codecs, or show the options of one. Example: [bold]fedquilt codecs top_k[/bold]"""
    _tell("codec", name, as_json)


def partitions(
    name: Annotated[str | None, typer.Argument(help="A partition to show.", metavar="NAME")] = None,
    as_json: AsJson = False,
) -> None:
    """List the ways to partition data among clients, or show the options of one.

    Example: [bold]fedquilt partitions dirichlet[/bold]
    """
    _tell("partition", name, as_json)


def _tell(kind: str, name: str | None, as_json: bool) -> None:
    """A list of what there is, or one of it with its options."""
    if name is None:
        from fedquilt.registry import entries

        rows = [{"name": e.name, "about": e.about, "reference": e.reference} for e in entries(kind).values()]
        listing(rows, as_json, f"{kind}s")
        return
    from fedquilt.config.described import detail, lines

    found = detail(kind, name)
    if as_json:
        echo(found)
        return
    listing(lines(found), False, f"{name}: {found['about']}")
    if found["reference"]:
        typer.echo(found["reference"])


def models(
    name: Annotated[str | None, typer.Argument(help="A model to show.", metavar="NAME")] = None,
    options: Annotated[list[str] | None, typer.Argument(help="Model options.", metavar="KEY=VALUE")] = None,
    shape: Annotated[str | None, typer.Option(help="Input shape, for example 3,32,32.")] = None,
    classes: Annotated[int | None, typer.Option(help="Number of classes.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the models, or show the size, compute cost and options of one.

    Example: [bold]fedquilt models resnet18 norm=batch --shape 3,32,32 --classes 100[/bold]
    """
    from fedquilt.config.described import lines, model_detail, model_words
    from fedquilt.models.registry import available

    found = available() if name is None else model_detail(name, shape, classes, options or [])
    if as_json:
        echo(found)
        return
    listing(model_words(found), False, name or "models")
    if isinstance(found, dict):
        listing(lines(found), False, "options")


def datasets(
    name: Annotated[str | None, typer.Argument(help="A data set to show.", metavar="NAME")] = None,
    as_json: AsJson = False,
    download: Annotated[str | None, typer.Option(help="Download this data set.", metavar="NAME")] = None,
    via: Annotated[str, typer.Option(help="Download source: official, or hf for Hugging Face.")] = "official",
    verify: Annotated[str | None, typer.Option(help="Verify the files of this data set.", metavar="NAME")] = None,
    clear_cache: Annotated[bool, typer.Option("--clear-cache", help="Delete cached decoded copies.")] = False,
) -> None:
    """List the data sets; show, download or verify one; clear the cache.

    Example: [bold]fedquilt datasets cifar10[/bold] or [bold]fedquilt datasets --download cifar10[/bold]
    """
    from fedquilt.show import models as actions

    if clear_cache:
        listing(actions.cleared(), as_json, "removed from the cache")
    elif download is not None:
        listing(actions.downloaded(download, via, quiet=as_json), as_json, f"{download}: files")
        if not as_json:
            typer.echo(actions.rest(download))
    elif verify is not None:
        rows = actions.verified(verify)
        listing(rows, as_json, f"{verify}: files")
        if any(row["ok"] is False for row in rows) or not any(row["here"] for row in rows):
            raise typer.Exit(2)
    else:
        actions.tell(name, echo if as_json else None)


def doctor(as_json: AsJson = False) -> None:
    """Check this machine: versions, cores, memory, workers, data sets. Example: [bold]fedquilt doctor[/bold]"""
    from fedquilt.analysis.doctor import checks

    found = checks()
    listing(found, as_json, "doctor")
    if any(row["state"] == "fails" for row in found):
        raise typer.Exit(5)
