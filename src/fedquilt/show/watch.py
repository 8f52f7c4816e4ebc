"""What ``fedquilt watch`` says in the terminal."""

from __future__ import annotations

import webbrowser
from collections.abc import Sequence
from pathlib import Path

from fedquilt.core.plain import Row
from fedquilt.metrics.table import PRIMARY, metric
from fedquilt.show.progress import span
from fedquilt.show.show import listing
from fedquilt.storage.files import to_json
from fedquilt.terminal import say
from fedquilt.watch.server import WatchServer


def follow(top: Path, port: int, open_page: bool, begun: bool, as_json: bool) -> None:
    """Serve the page until Ctrl-C."""
    with WatchServer(top, port) as server:
        if as_json:
            say(to_json({"url": server.url, "port": server.server_port, "folder": str(top)}))
        else:
            say(f"watching {top}: open this address in a browser of this machine (Ctrl-C ends)")
            if not begun:
                say("There are no runs yet; they appear on the page when they begin.")
            say(server.url)
        if open_page:
            webbrowser.open(server.url)
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            if not as_json:
                say("\nThe page has ended; runs go on.")


def tell(lines: Sequence[Row], title: str) -> None:
    """The runs as a table, and what is missing of them."""
    listing(lines_of(lines), title)
    for line in lines:
        if line["missing"]:
            say(f"note: {line['label']}: {line['missing']}")


def lines_of(lines: Sequence[Row]) -> list[Row]:
    """The runs as rows of a table."""
    return [
        {
            "run": line["label"] + (f", seed {line['seed']}" if line["group"] else ""),
            "state": line["state"],
            "rounds": f"{line['round']}/{line['rounds'] or '?'}",
            "left": "" if line["left"] is None else span(line["left"]),
            "accuracy, %": metric(PRIMARY).written(line["accuracy"], line["accuracy_half"])
            + (" (validation)" if line["accuracy_on"] == "validation" else ""),
            "loss": "" if line["loss"] is None else f"{line['loss']:.4f}",
            "MB": f"{line['up'] + line['down']:.2f}",
            "left out": line["left_out"] or "",
        }
        for line in lines
    ]
