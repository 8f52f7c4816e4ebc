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
    from fedquilt.analysis.predict import Answers, TaskAnswers
    from fedquilt.core.plain import Row
    from fedquilt.core.table import ClientId
    from fedquilt.pieces.realign import Realign


def pretrain_mae(
    recipe: Recipe,
    overrides: Overrides = None,
    out: Annotated[Path, typer.Option("-o", "--out", help="Output folder.")] = Path("mae"),
    epochs: Annotated[int, typer.Option(help="Epochs over the samples set aside.", min=1)] = 20,
    batch_size: Annotated[int, typer.Option(help="Batch size.", min=1)] = 128,
    lr: Annotated[float, typer.Option(help="Peak learning rate.")] = 1e-3,
    weight_decay: Annotated[float, typer.Option(help="Weight decay of AdamW.", min=0)] = 0.05,
    warm_up: Annotated[float, typer.Option(help="Fraction of steps for learning-rate warm-up.")] = 0.05,
    seed: Annotated[int, typer.Option(help="Seed of initial weights, sample order and masks.", min=0)] = 0,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start from scratch, replacing the folder.")] = False,
    as_json: AsJson = False,
    energy: Energy = None,
) -> None:
    """Pretrain the masked autoencoder of a recipe, without labels, on samples that no client has.

    The recipe defines the data, the fraction of samples set aside (data.pretraining), and the model. If interrupted,
    the same command continues. Use the folder as model.pretrained in a recipe.

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
            help="Safetensors files, .pt or .bin files (tensors only; no code is executed), or transformers folders.",
            metavar="MODEL",
        ),
    ],
    out: Annotated[Path, typer.Option("-o", "--out", help="Output file (safetensors).")],
    base: Annotated[Path | None, typer.Option(help="The common base model.")] = None,
    rule: Annotated[
        str,
        typer.Option(
            help="stitch, task_arithmetic, ties, dare, dare_ties, soup, greedy_soup, slerp, fisher or regmean."
        ),
    ] = "stitch",
    keep: Annotated[float | None, typer.Option(help="stitch, ties: fraction of changes to keep.")] = None,
    per: Annotated[str | None, typer.Option(help="stitch, ties: fraction over 'all' weights or per 'tensor'.")] = None,
    conflicts: Annotated[str | None, typer.Option(help="stitch: mean, elect or median.")] = None,
    count: Annotated[str | None, typer.Option(help="stitch: weights to count, mask or nonzero.")] = None,
    scale: Annotated[float | None, typer.Option(help="task_arithmetic, ties: scaling factor.")] = None,
    drop: Annotated[float | None, typer.Option(help="dare: fraction of changes to drop.")] = None,
    t: Annotated[float | None, typer.Option(help="slerp: interpolation from first (0) to second (1).")] = None,
    shrink: Annotated[float | None, typer.Option(help="regmean: scaling of off-diagonal entries.")] = None,
    statistics: Annotated[
        list[Path] | None, typer.Option(help="fisher, regmean: one statistics file per model.")
    ] = None,
    recipe: Annotated[
        Path | None, typer.Option(help="greedy_soup: recipe that provides the validation samples.")
    ] = None,
    weight: Annotated[list[float] | None, typer.Option(help="Weight of each model, in order.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of randomised rules.", min=0)] = 0,
    force: Annotated[bool, typer.Option(help="Overwrite --out.")] = False,
    as_json: AsJson = False,
) -> None:
    """Merge saved models into one (stitch, TIES, DARE, soups, Fisher, ...), one tensor at a time.

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
    rows: Annotated[int | None, typer.Option(help="Maximum samples per task for training and testing probes.")] = None,
    to: Annotated[Path | None, typer.Option(help="Output folder; default: RUN/continual.")] = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate continual learning: probe features after every task for accuracy, forgetting and transfer.

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


Kappa = Annotated[float | None, typer.Option(help="Norm of realigned rows; default: the run's, or 1.7.")]
Tau = Annotated[float | None, typer.Option(help="Degree of realignment: 1 full, 0 none.")]
Personal = Annotated[
    Literal["readme", "code", "sum"] | None,
    typer.Option(help="Variant of personal head; default: the run's, or readme."),
]
PriorTau = Annotated[
    float | None,
    typer.Option(help="How far scores are adjusted for the clients' class shares: 1 wholly, 0 not at all."),
]
ScaleBias = Annotated[bool | None, typer.Option(help="Scale biases with their rows.")]
To = Annotated[Path | None, typer.Option(help="Output folder; default: RUN/modes.")]


def realign(
    folder: Folder,
    kappa: Kappa = None,
    tau: Tau = None,
    personal: Personal = None,
    scale_bias: ScaleBias = None,
    prior_tau: PriorTau = None,
    to: To = None,
    as_json: AsJson = False,
) -> None:
    """Realign classifier heads without training; save and evaluate the resulting models.

    Besides rows of one norm there is the global head whose scores are adjusted for how many samples of each class the
    clients train on; a real federation's server knows these numbers only if clients send them.

    Example: [bold]fedquilt realign runs/digits_lt-1a2b3c4d --kappa 1.7[/bold]
    """
    from fedquilt.analysis.modes import realigned

    given = {"kappa": kappa, "tau": tau, "personal": personal, "scale_bias": scale_bias, "prior_tau": prior_tau}
    found = realigned(folder, _rule(folder, {k: v for k, v in given.items() if v is not None}), to)
    _show(found, to or folder / "modes", as_json)


def tails(
    folder: Folder,
    to: Annotated[Path | None, typer.Option(help="Output folder; default: RUN/tails.")] = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate long-tail accuracy of any method: head, middle and tail classes.

    Example: [bold]fedquilt tails runs/digits_lt-1a2b3c4d[/bold]
    """
    from fedquilt.analysis.tails import evaluate
    from fedquilt.storage.files import to_json, write_atomic

    found, place = evaluate(folder), to or folder / "tails"
    write_atomic(place / "tails.json", to_json(found).encode())
    _show(found, place, as_json)


Model = Annotated[
    str, typer.Option(help="global, best (global model of the best round), cluster:2 or client:7.", metavar="NAME")
]


def predict(
    folder: Folder,
    data: Annotated[
        Path,
        typer.Argument(
            help="An image folder, an .npz with x, a table (.csv, .parquet), or a .txt with one text per line.",
            metavar="DATA",
        ),
    ],
    model: Model = "global",
    mode: Annotated[
        Literal["universal", "global", "plain", "adjusted", "universal_adjusted", "personal"] | None,
        typer.Option(help="Use a model saved by 'fedquilt realign'."),
    ] = None,
    client: Annotated[str | None, typer.Option(help="Client, for --mode personal.")] = None,
    to: Annotated[Path, typer.Option(help="Output file (CSV).")] = Path("predictions.csv"),
    as_json: AsJson = False,
) -> None:
    """Predict classes and probabilities for new data with a model of a run.

    Inputs are preprocessed as in training; the training data are not needed.

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
            _tell_numbers(given, to, as_json)
            return
        found = given
    else:
        from fedquilt.analysis.modes import predict as answer_in_mode

        who: ClientId = int(client) if client is not None and client.isdecimal() else client
        found = answer_in_mode(folder, data, mode, who)
    found.save(to)
    _tell_answers(found, to, as_json)


def _tell_answers(found: Answers, to: Path, as_json: bool) -> None:
    """How many rows were answered with each class, and how many rightly."""
    names = found.class_names or tuple(map(str, range(found.probabilities.shape[1])))
    counts = dict(zip(names, found.classes.bincount(minlength=len(names)).tolist(), strict=True))
    told = {"rows": len(found.names), "answers": counts, "accuracy": found.accuracy, "file": str(to)}
    if as_json:
        echo({**told, "note": found.note})
        return
    right = "" if found.accuracy is None else f", {100 * found.accuracy:.1f} % right"
    shares = ", ".join(f"{count} of class {name}" for name, count in counts.items() if count)
    typer.echo(
        "\n".join([*filter(None, [found.note]), f"Wrote {to}: predictions for {told['rows']} rows{right}: {shares}"])
    )


def _tell_numbers(found: TaskAnswers, to: Path, as_json: bool) -> None:
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
        str | None, typer.Option(help="safetensors, onnx or hf (a folder); default: by the suffix of --to.")
    ] = None,
    to: Annotated[
        Path | None, typer.Option(help="Output file or folder; default: named after the model.", metavar="PATH")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite --to.")] = False,
    as_json: AsJson = False,
) -> None:
    """Export a model of a run: safetensors state dict, ONNX, or Hugging Face transformers folder.

    ONNX files have a dynamic batch size and are only written if onnxruntime reproduces the outputs.

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

    names = ("kappa", "tau", "personal", "scale_bias", "prior_tau")
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
