"""What commands share: arguments that many take, and how results are printed."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fedquilt.core.plain import Row


STOPPED = 143
Recipe = Annotated[
    Path, typer.Argument(help="A recipe: a .toml file, or a name listed by 'fedquilt recipes'.", metavar="RECIPE")
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="Settings to override, for example rounds=5 method.mu=0.1.", metavar="KEY=VALUE"),
]
Folder = Annotated[Path, typer.Argument(help="A run folder.", metavar="RUN")]
Energy = Annotated[
    bool | None,
    typer.Option("--energy/--no-energy", help="Measure energy where the hardware supports it (meters.energy)."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print only JSON.")]


def with_energy(overrides: list[str] | None, energy: bool | None) -> list[str]:
    """The settings to change, with the switch of the command line."""
    return [*(overrides or []), *([] if energy is None else [f"meters.energy={str(energy).lower()}"])]


@contextmanager
def stops_on_sigterm() -> Iterator[None]:
    """Inside, SIGTERM ends this process as Ctrl-C does, so that what runs can say so; with exit code 143."""
    if threading.current_thread() is not threading.main_thread():  # others cannot listen to signals
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(STOPPED))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def listing(rows: list[Row], as_json: bool, title: str) -> None:
    """Print rows as a table, or as JSON."""
    from fedquilt.show.show import listing as table

    if as_json:
        echo(rows)
    else:
        table(rows, title)


def echo(value: object) -> None:
    """Print a value as JSON."""
    from fedquilt.storage.files import to_json

    typer.echo(to_json(value))
