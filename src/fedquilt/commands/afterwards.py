"""Commands about what runs learned: long tails, streams, answers. Heavy libraries are imported when they are needed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fedquilt.commands.options import AsJson, Folder, echo

if TYPE_CHECKING:
    from fedquilt.core.plain import Row
    from fedquilt.core.table import ClientId


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
    from fedquilt.analysis.continual_view import continual_tables

    run = Recalled.of(folder, rows)
    found = keep(run)
    drawn = [str(path) for path in pictures(run, found, to or folder / "continual")]
    if as_json:
        echo({**found, "pictures": drawn})
        return
    continual_tables(found)
    typer.echo("\n".join([f"numbers {folder / FILE}", *(f"picture {path}" for path in drawn)]))


if TYPE_CHECKING:
    from fedquilt.pieces.realign import Realign

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


def predict(
    folder: Folder,
    data: Annotated[
        Path, typer.Argument(help="A folder of images, an .npz with x, or a table (.csv, .parquet).", metavar="DATA")
    ],
    mode: Annotated[
        Literal["universal", "global", "plain", "personal"], typer.Option(help="Which saved model answers.")
    ] = "global",
    client: Annotated[str | None, typer.Option(help="Whose model, for the mode personal.")] = None,
    to: Annotated[Path, typer.Option(help="Where the answers go, as CSV.")] = Path("predictions.csv"),
    as_json: AsJson = False,
) -> None:
    """Answer new rows with a model that 'fedquilt realign' saved.

    Example: [bold]fedquilt predict runs/digits_lt-1a2b3c4d new.npz --mode personal --client 3[/bold]
    """
    from fedquilt.analysis.predict import predict as answer
    from fedquilt.analysis.predict import save

    who: ClientId = int(client) if client is not None and client.isdecimal() else client
    found = answer(folder, data, mode, who)
    save(found, to)
    counts = found.classes.bincount().tolist()
    told = {"rows": len(found.names), "answers": counts, "accuracy": found.accuracy, "file": str(to)}
    if as_json:
        echo(told)
        return
    right = "" if found.accuracy is None else f", {100 * found.accuracy:.1f} % right"
    typer.echo(f"{told['rows']} rows{right}; per class {counts}: {to}")


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
    from fedquilt.results.tail_plots import pictures
    from fedquilt.show.tail_view import tails_tables

    drawn = [str(path) for path in pictures(found, to)]
    if as_json:
        echo({**found, "pictures": drawn})
        return
    tails_tables(found)
    typer.echo("\n".join([f"picture {path}" for path in drawn] + [f"models {to}"] * ("files" in found)))
