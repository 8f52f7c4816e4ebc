"""What happens in a federation, in words: on the terminal, and with its time in a log."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from fedquilt.errors import FedquiltError

NODES = "nodes.log"  # in the folder of a run: which sites came, went and failed
SITE = "node.log"  # in the state folder of a site: what happened there
Answer = Callable[[str, dict[str, bytes]], dict[str, bytes]]
Note = Callable[[str], None]


def write(log: Path, text: str) -> None:
    """Write a line down; a disk that is full stops nobody."""
    with suppress(OSError), log.open("a", encoding="utf-8") as file:
        file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")


def told(log: Path, note: Note, text: str) -> None:
    """Say something, and write it down."""
    note(text)
    write(log, text)


def printable(text: str) -> str:
    """One line, with nothing in it that a terminal obeys."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))


def telling(answer: Answer, say: Note) -> Answer:
    """The same answers, and a line about each message: what it was, and how long it took or why it was refused."""
    known: set[str] = set()

    def spoken(kind: str, frames: dict[str, bytes]) -> dict[str, bytes]:
        began, name = time.monotonic(), printable(kind[:60])
        try:
            found = answer(kind, frames)
        except FedquiltError as error:
            say(printable(f"{name}: refused: {error}"))
            raise
        except Exception as error:
            say(printable(f"{name}: failed ({type(error).__name__}: {error})"))
            raise
        if not name.startswith("query."):
            say(f"{name}: answered in {time.monotonic() - began:.1f} s")
        elif name == "query.here" and name not in known:
            known.add(name)
            say("the server has asked who is here")
        return found

    return spoken
