"""The command ``fedquilt pretrain-mae``. Heavy libraries are imported when it runs, never for --help."""

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
    from fedquilt.runs.config import load
    from fedquilt.runs.pretrain import Pretraining
    from fedquilt.runs.pretrain_view import shown

    how = Pretraining(epochs, batch_size, lr, weight_decay, warm_up, seed)
    found = shown(load(recipe, with_energy(overrides, energy)), out, how, fresh, quiet=as_json)
    if as_json:
        echo(found)
