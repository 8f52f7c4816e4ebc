"""The command ``fedquilt audit``. Heavy libraries are imported when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedquilt.commands.options import AsJson, Overrides, Recipe, echo


def audit(
    recipe: Recipe,
    overrides: Overrides = None,
    methods: Annotated[str | None, typer.Option(help="Methods, with commas; by default the recipe's.")] = None,
    codecs: Annotated[
        str, typer.Option(help="own (the method's), plain, hgc, hgc=64, sign, half, top_k=0.05, ..., with commas.")
    ] = "own",
    attacks: Annotated[str, typer.Option(help="dlg, idlg, peer, labels, features.")] = "dlg,idlg,peer,labels,features",
    defences: Annotated[
        str, typer.Option(help="none, batch, noise, no_bias, round; combined with '+': batch+noise.")
    ] = "none,batch,noise,no_bias,round",
    images: Annotated[int, typer.Option(help="How many clients are attacked.", min=1)] = 4,
    batch: Annotated[int, typer.Option(help="Rows of the larger batch.", min=2)] = 8,
    clip: Annotated[float, typer.Option(help="noise: largest norm of an upload, in steps of gradient norm 1.")] = 1.0,
    noise: Annotated[float, typer.Option(help="noise: standard deviation, relative to --clip.")] = 0.03,
    rounds: Annotated[int, typer.Option(help="Rounds of the recipe played first.", min=0)] = 0,
    iterations: Annotated[int, typer.Option(help="Of each search; one is 20 steps of L-BFGS.", min=1)] = 30,
    restarts: Annotated[int, typer.Option(help="Random starts of each search; the best counts.", min=1)] = 2,
    seed: Annotated[int, typer.Option(help="Of the rows, the noise and the searches.", min=0)] = 0,
    out: Annotated[Path, typer.Option(help="Where the table and the pictures go.", metavar="DIR")] = Path("audit"),
    as_json: AsJson = False,
) -> None:
    """Attack what the clients of a recipe really send, and tell how much of their data comes back.

    Example: [bold]fedquilt audit recipes/quick.toml --images 2 --out audit[/bold]

    Example: [bold]fedquilt audit recipes/quick.toml --methods fedavg,fedper --attacks dlg --defences none,noise[/bold]
    """
    from fedquilt.audit.cells import Plan, audited, cells
    from fedquilt.audit.report import show, write
    from fedquilt.config.config import load
    from fedquilt.runs.build import federation_of
    from fedquilt.show.progress import Progress

    plan = Plan(
        methods=_listed(methods),
        codecs=_listed(codecs),
        attacks=_listed(attacks),
        defences=_listed(defences),
        images=images,
        batch=batch,
        clip=clip,
        noise=noise,
        rounds=rounds,
        iterations=iterations,
        restarts=restarts,
        seed=seed,
    )
    config = load(recipe, overrides or [])
    federation = federation_of(config)
    todo, findings = cells(config, plan), []
    with Progress(quiet=as_json) as progress:
        bar = progress.bar("audit", len(todo))
        for done, cell in enumerate(todo, 1):
            findings += audited(cell, federation, plan)
            bar.title = f"audit {cell.config.method.kind}, {cell.codec}, {cell.defence}"
            bar.round(done, {})
    found = write(findings, plan, out)
    echo(found) if as_json else show(found)


def _listed(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())
