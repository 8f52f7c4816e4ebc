"""The command about what a run on a stream remembers. Heavy libraries are imported by those that need them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedquilt.commands.options import AsJson, Folder, echo


def continual(
    folder: Folder,
    rows: Annotated[int | None, typer.Option(help="At most so many rows of each task to train and test on.")] = None,
    to: Annotated[Path | None, typer.Option(help="Where pictures go; by default RUN/continual.")] = None,
    as_json: AsJson = False,
) -> None:
    """Probe the features of a run on a stream after every task: accuracy, forgetting, transfer; with pictures.

    Example: [bold]fedquilt continual runs/podfcssv-smoke-1a2b3c4d[/bold]
    """
    from fedquilt.runs.continual import FILE, Recalled, keep
    from fedquilt.runs.continual_plots import pictures
    from fedquilt.runs.continual_view import continual_tables

    run = Recalled.of(folder, rows)
    found = keep(run)
    drawn = [str(path) for path in pictures(run, found, to or folder / "continual")]
    if as_json:
        echo({**found, "pictures": drawn})
        return
    continual_tables(found)
    typer.echo("\n".join([f"numbers {folder / FILE}", *(f"picture {path}" for path in drawn)]))
