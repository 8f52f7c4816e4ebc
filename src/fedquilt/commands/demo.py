"""The command ``fedquilt demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedquilt.commands.options import AsJson, echo, stops_on_sigterm


def demo(
    scenes: Annotated[
        list[str] | None,
        typer.Argument(help="groups, heads, rare, links, tasks; all without a name.", metavar="[SCENE]..."),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting to change in every scene; may be repeated."),
    ] = None,
    to: Annotated[Path, typer.Option(help="Where the page and the runs go.")] = Path("runs/demo"),
    as_json: AsJson = False,
) -> None:
    """Play five problems of federated learning, and what answers them, on real data; ends with one page.

    About 90 seconds on two cores, without a network. Scenes that are finished are kept.

    Example: [bold]fedquilt demo groups[/bold]
    """
    from fedquilt.demo.play import config_of, play, write
    from fedquilt.demo.play import scenes as called
    from fedquilt.runs.progress import Progress
    from fedquilt.terminal import say

    todo = [(scene, config_of(scene, to, changes or [])) for scene in called(scenes or [])]
    shown = []
    with stops_on_sigterm(), Progress(quiet=as_json) as progress:
        for scene, config in todo:
            with progress.whole(f"{scene.name}: {scene.title}") as audience:
                shown.append(play(scene, config, audience))
            progress.tell(f"{scene.name}: {shown[-1].told.sentence}")
    page = write(shown, to)
    if as_json:
        echo({"page": str(page), "scenes": [one.row() for one in shown]})
        return
    say(f"\npage {page}")
