"""The command ``fedquilt merge``. Heavy libraries are imported by the commands that need them, never for --help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedquilt.commands.options import AsJson, Energy, Overrides, Recipe, echo, with_energy


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
    from fedquilt.show.pretrain_view import shown

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
    from fedquilt.show.show import merged_models

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
