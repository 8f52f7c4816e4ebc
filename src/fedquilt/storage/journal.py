"""What a run says of itself while it goes on: messages with their time, and how far the present round has come.

Both are for people who look on. Nothing of a run depends on them, so a folder that takes no more of them is no error.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from fedquilt.storage.files import to_json

MESSAGES, NOW = "messages.jsonl", "now.json"
Kind = Literal["begun", "resumed", "note", "stopped", "failed", "finished"]
Step = Callable[[int, str, int, int], None]
_EVERY = 0.5  # seconds between two words about the present round
_WIDTH = 512  # bytes of them


class Journal:
    """The messages of a run, in ``messages.jsonl``, and its present round, in ``now.json``.

    Messages are never taken back: after a crash and a resume they tell both. ``hear``, if given, is told of the present
    round too.
    """

    def __init__(self, folder: Path | None, hear: Step | None = None) -> None:
        self.folder, self.hear = folder, hear
        self.open = False  # begun, and not ended
        self._next = 0.0
        self._file: int | None = None

    def say(self, kind: Kind, round: int, text: str = "") -> None:
        """Write a message down."""
        self.open = kind in ("begun", "resumed", "note")
        if self.folder is None:
            return
        row = {"time": _clock(), "kind": kind, "round": round, "text": text}
        with suppress(OSError), (self.folder / MESSAGES).open("a", encoding="utf-8") as file:
            file.write(to_json(row) + "\n")

    def step(self, round: int, phase: str, done: int, of: int) -> None:
        """So many clients of a phase of this round are done. Told now and then only, so that it costs nothing."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _EVERY
        if self.hear is not None:
            self.hear(round, phase, done, of)
        if self.folder is not None:
            row = {"time": _clock(), "round": round, "phase": phase[:60], "done": done, "of": of}
            with suppress(OSError):
                self._overwrite(to_json(row).encode().ljust(_WIDTH))

    def _overwrite(self, content: bytes) -> None:
        """In place and always as long: file systems hurry a new file of the same name, or an emptied one, to the disk.
        A reader that finds half of it looks again a moment later."""
        if self._file is None and self.folder is not None:
            self._file = os.open(self.folder / NOW, os.O_WRONLY | os.O_CREAT, 0o644)
        if self._file is not None:
            os.lseek(self._file, 0, os.SEEK_SET)
            os.write(self._file, content)

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    @contextmanager
    def ending(self, done: Callable[[], int]) -> Iterator[None]:
        """Write down how a run ended that began and did not finish; ``done`` gives its rounds."""
        try:
            yield
        except (GeneratorExit, KeyboardInterrupt, SystemExit):
            if self.open:
                self.say("stopped", done())
            raise
        except Exception as error:
            if self.open:
                self.say("failed", done(), f"{type(error).__name__}: {error}")
            raise
        finally:
            self.close()


def _clock() -> float:
    return int(1000 * time.time()) / 1000
