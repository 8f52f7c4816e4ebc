"""Commands about models: pretraining, merging, and what runs learned of long tails and streams.

Heavy libraries are imported by the commands that need them, never for --help.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fedquilt.commands.options import AsJson, Energy, Folder, Overrides, Recipe, echo, with_energy
from fedquilt.errors import InputError

if TYPE_CHECKING:
    from fedquilt.analysis.predict import TaskAnswers
    from fedquilt.core.plain import Row
    from fedquilt.core.table import ClientId
    from fedquilt.pieces.realign import Realign


def pretrain_mae(
    recipe: Recipe,
    overrides: Overrides = None,
    out: Annotated[Path, typer.Option("-o", "--out", help="The folder that the autoencoder goes to.")] = Path("mae"),
    epochs: Annotated[int, typer.Option(help="Passes over the rows set aside.", min=1)] = 20,
    batch_size: Annotated[int, typer.Option(help="Images in a step.", min=1)] = 128,
    lr: Annotated[float, typer.Option(help="The highest learning rate.")] = 1e-3,
    weight_decay: Annotated[float, typer.Option(help="Of AdamW.", min=0)] = 0.05,
    warm_up: Annotated[float, typer.Option(help="The share of steps in which the rate grows.")] = 0.05,
    seed: Annotated[int, typer.Option(help="For first weights, order and masks.", min=0)] = 0,
    fresh: Annotated[bool, typer.Option("--fresh", help="Begin anew, whatever the folder holds.")] = False,
    as_json: AsJson = False,
    energy: Energy = None,
) -> None:
    """Pretrain the masked autoencoder of a recipe, without labels, on rows that no client of the recipe gets.

    The recipe says which data, which share of the rows is set aside (data.pretraining), and how large the model is.
    When interrupted, the same command goes on. The folder is what model.pretrained names in a recipe.

    Example: [bold]fedquilt pretrain-mae recipes/pretrain_mae.toml --epochs 5 -o mae-digits[/bold]

    Example: [bold]fedquilt pretrain-mae recipes/pretrain_mae.toml data.source=cifar10 data.pretraining=0.5
    model.width=96 -o mae-cifar10[/bold]
    """
    from fedquilt.analysis.pretrain import Pretraining
    from fedquilt.config.config import load
    from fedquilt.show.models import shown

    how = Pretraining(epochs, batch_size, lr, weight_decay, warm_up, seed)
    found = shown(load(recipe, with_energy(overrides, energy)), out, how, fresh, quiet=as_json)
    if as_json:
        echo(found)


def merge(
    models: Annotated[
        list[Path],
        typer.Argument(
            help="Safetensors files, .pt or .bin files of torch.save (tensors only, nothing in them is run), or "
            "transformers folders.",
            metavar="MODEL",
        ),
    ],
    out: Annotated[Path, typer.Option("-o", "--out", help="Where the merged model goes, as safetensors.")],
    base: Annotated[Path | None, typer.Option(help="What the models began from.")] = None,
    rule: Annotated[
        str,
        typer.Option(
            help="stitch, task_arithmetic, ties, dare, dare_ties, soup, greedy_soup, slerp, fisher or regmean."
        ),
    ] = "stitch",
    keep: Annotated[float | None, typer.Option(help="stitch, ties: the share of changes that has a say.")] = None,
    per: Annotated[str | None, typer.Option(help="stitch, ties: that share over 'all' or of each 'tensor'.")] = None,
    conflicts: Annotated[str | None, typer.Option(help="stitch: mean, elect or median.")] = None,
    count: Annotated[str | None, typer.Option(help="stitch: what is counted, mask or nonzero.")] = None,
    scale: Annotated[float | None, typer.Option(help="task_arithmetic, ties: factor of the change.")] = None,
    drop: Annotated[float | None, typer.Option(help="dare: the share of changes that is dropped.")] = None,
    t: Annotated[float | None, typer.Option(help="slerp: how far from the first to the second.")] = None,
    shrink: Annotated[float | None, typer.Option(help="regmean: factor of off-diagonals.")] = None,
    statistics: Annotated[list[Path] | None, typer.Option(help="fisher, regmean: a file for each model.")] = None,
    recipe: Annotated[Path | None, typer.Option(help="greedy_soup: whose validation samples to score on.")] = None,
    weight: Annotated[list[float] | None, typer.Option(help="How much each model counts, in order.")] = None,
    seed: Annotated[int, typer.Option(help="For rules that draw.", min=0)] = 0,
    force: Annotated[bool, typer.Option(help="Replace what is at --out.")] = False,
    as_json: AsJson = False,
) -> None:
    """Merge saved models into one, reading one tensor of each at a time.

    Example: [bold]fedquilt merge a.safetensors b.safetensors --base start.safetensors --keep 0.05 -o ab[/bold]
    """
    from fedquilt.analysis.merging import Request
    from fedquilt.show.models import merged_models

    asked = {
        "keep": keep,
        "per": per,
        "conflicts": conflicts,
        "count": count,
        "scale": scale,
        "drop": drop,
        "t": t,
        "shrink": shrink,
        "statistics": statistics,
        "recipe": recipe,
    }
    options = {name: value for name, value in asked.items() if value is not None}
    found = merged_models(Request(models, out, rule, base, options, weight, seed, force), quiet=as_json)
    if as_json:
        echo(found)


def continual(
    folder: Folder,
    rows: Annotated[int | None, typer.Option(help="At most so many rows of each task to train and test on.")] = None,
    to: Annotated[Path | None, typer.Option(help="Where pictures go; by default RUN/continual.")] = None,
    as_json: AsJson = False,
) -> None:
    """Probe the features of a run on a stream after every task: accuracy, forgetting, transfer; with pictures.

    Example: [bold]fedquilt continual runs/podfcssv-smoke-1a2b3c4d[/bold]
    """
    from fedquilt.analysis.continual import FILE, Recalled, keep
    from fedquilt.analysis.continual_plots import pictures
    from fedquilt.show.models import continual_tables

    run = Recalled.of(folder, rows)
    found = keep(run)
    drawn = [str(path) for path in pictures(run, found, to or folder / "continual")]
    if as_json:
        echo({**found, "pictures": drawn})
        return
    continual_tables(found)
    typer.echo("\n".join([f"numbers {folder / FILE}", *(f"picture {path}" for path in drawn)]))


Kappa = Annotated[float | None, typer.Option(help="The norm of realigned rows; by default the run's, or 1.7.")]
Tau = Annotated[float | None, typer.Option(help="How far rows are realigned: 1 wholly, 0 not at all.")]
Personal = Annotated[
    Literal["readme", "code", "sum"] | None, typer.Option(help="Which personal head; by default the run's, or readme.")
]
ScaleBias = Annotated[bool | None, typer.Option(help="Whether biases are scaled with their rows.")]
To = Annotated[Path | None, typer.Option(help="Where files go; by default RUN/modes.")]


def realign(
    folder: Folder,
    kappa: Kappa = None,
    tau: Tau = None,
    personal: Personal = None,
    scale_bias: ScaleBias = None,
    to: To = None,
    as_json: AsJson = False,
) -> None:
    """Realign the heads of a run without training, save the models of all modes, and score them.

    Example: [bold]fedquilt realign runs/digits_lt-1a2b3c4d --kappa 1.7[/bold]
    """
    from fedquilt.analysis.modes import realigned

    given = {"kappa": kappa, "tau": tau, "personal": personal, "scale_bias": scale_bias}
    found = realigned(folder, _rule(folder, {k: v for k, v in given.items() if v is not None}), to)
    _show(found, to or folder / "modes", as_json)


def tails(
    folder: Folder,
    to: Annotated[Path | None, typer.Option(help="Where pictures go; by default RUN/tails.")] = None,
    as_json: AsJson = False,
) -> None:
    """Score a run under its long tail: head, middle and tail, with and without mask, whatever its method.

    Example: [bold]fedquilt tails runs/digits_lt-1a2b3c4d[/bold]
    """
    from fedquilt.analysis.tails import evaluate
    from fedquilt.storage.files import to_json, write_atomic

    found, place = evaluate(folder), to or folder / "tails"
    write_atomic(place / "tails.json", to_json(found).encode())
    _show(found, place, as_json)


Model = Annotated[
    str, typer.Option(help="global, best (the global one of the best round), cluster:2 or client:7.", metavar="NAME")
]


def predict(
    folder: Folder,
    data: Annotated[
        Path,
        typer.Argument(
            help="A folder of images, an .npz with x, a table (.csv, .parquet), or a .txt with a text in each line.",
            metavar="DATA",
        ),
    ],
    model: Model = "global",
    mode: Annotated[
        Literal["universal", "global", "plain", "personal"] | None,
        typer.Option(help="Instead of a model of the run, one that 'fedquilt realign' saved."),
    ] = None,
    client: Annotated[str | None, typer.Option(help="Whose model, for the mode personal.")] = None,
    to: Annotated[Path, typer.Option(help="Where the answers go, as CSV.")] = Path("predictions.csv"),
    as_json: AsJson = False,
) -> None:
    """Answer new rows with a model of a run: the class of each, by name where classes have names, and probabilities.

    Rows are read and prepared as the run's were; its own data are not needed.

    Example: [bold]fedquilt predict runs/quick-1a2b3c4d new.npz --model client:7 --to answers.csv[/bold]
    """
    if mode is None and client is not None:
        raise InputError(f"--client goes with --mode personal. A client's model of the run is --model client:{client}.")
    if mode is None:
        from fedquilt.analysis.predict import TaskAnswers
        from fedquilt.analysis.predict import predict as answer

        given = answer(folder, data, model)
        if isinstance(given, TaskAnswers):
            given.save(to)
            _tell_answers(given, to, as_json)
            return
        found = given
    else:
        from fedquilt.analysis.modes import predict as answer_in_mode

        who: ClientId = int(client) if client is not None and client.isdecimal() else client
        found = answer_in_mode(folder, data, mode, who)
    found.save(to)
    names = found.class_names or tuple(map(str, range(found.probabilities.shape[1])))
    counts = dict(zip(names, found.classes.bincount(minlength=len(names)).tolist(), strict=True))
    told = {"rows": len(found.names), "answers": counts, "accuracy": found.accuracy, "file": str(to)}
    if as_json:
        echo({**told, "note": found.note})
        return
    right = "" if found.accuracy is None else f", {100 * found.accuracy:.1f} % right"
    shares = ", ".join(f"{count} of class {name}" for name, count in counts.items() if count)
    typer.echo("\n".join([*filter(None, [found.note]), f"Wrote {to}: answers to {told['rows']} rows{right}: {shares}"]))


def _tell_answers(found: TaskAnswers, to: Path, as_json: bool) -> None:
    """What was written of another task than one class label for each row."""
    if as_json:
        echo({"rows": len(found.names), "metrics": dict(found.metrics), "file": str(to), "note": found.note})
        return
    scores = ", ".join(f"{name} {value:.4g}" for name, value in found.metrics.items())
    told = f"Wrote {to}: answers to {len(found.names)} rows{scores and ': '}{scores}"
    typer.echo("\n".join([*filter(None, [found.note]), told]))


def export_model(
    folder: Folder,
    model: Model = "global",
    format: Annotated[
        str | None, typer.Option(help="safetensors, onnx or hf (a folder); by default as the name of --to ends.")
    ] = None,
    to: Annotated[
        Path | None, typer.Option(help="The file or folder; by default named after the model.", metavar="PATH")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace what is at --to.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a model of a run as other programs load it: a state dict as safetensors, ONNX, or a folder of transformers.

    An ONNX file takes any number of prepared rows, and is written only if onnxruntime computes the same with it.

    Example: [bold]fedquilt export-model runs/quick-1a2b3c4d --model client:7 --to client-7.onnx[/bold]
    """
    from fedquilt.analysis.export import export_model as write

    name = model.replace(":", "-").replace("/", "%2F")
    place = to or Path(name + {"onnx": ".onnx", "hf": ""}.get(format or "", ".safetensors"))
    made = write(folder, place, model, format, force)
    if as_json:
        shown = {"path": str(made.path), "format": made.format, "difference": made.difference, "notes": made.notes}
        echo({**shown, **made.facts})
        return
    classes = ", ".join(made.facts["names"][:12]) or made.facts["classes"]
    rows = made.facts["input"]
    lines = [
        *made.notes,
        f"{made.path}: {model} of {made.facts['run']} after round {made.facts['round']}, as {made.format}",
        f"takes {rows['dtype']} rows of shape {rows['shape']} ({made.facts['prepared']}); classes: {classes}",
    ]
    if made.difference is not None:
        lines.append(f"onnxruntime computes the same: scores differ by {made.difference:.1e} of the largest at most")
    typer.echo("\n".join(lines))


def _rule(folder: Path, given: Row) -> Realign | None:
    """The rule that was asked for; None for the run's own."""
    if not given:
        return None
    from fedquilt.analysis.afterwards import config_in
    from fedquilt.pieces.realign import Realign

    names = ("kappa", "tau", "personal", "scale_bias")
    own = {k: v for k, v in config_in(folder).method.options.items() if k in names}
    return Realign(**{**own, **given})


def _show(found: Row, to: Path, as_json: bool) -> None:
    from fedquilt.analysis.tails import pictures
    from fedquilt.show.models import tails_tables

    drawn = [str(path) for path in pictures(found, to)]
    if as_json:
        echo({**found, "pictures": drawn})
        return
    tails_tables(found)
    typer.echo("\n".join([f"picture {path}" for path in drawn] + [f"models {to}"] * ("files" in found)))
