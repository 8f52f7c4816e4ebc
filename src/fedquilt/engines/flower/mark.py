"""A note at a site of what is being worked on: every process there can see it, and it goes with the one that works."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fedquilt.core.locks import lock


@dataclass(frozen=True)
class Mark:
    """A locked file with the number of a batch of jobs. One process works at a time; the lock ends with the process."""

    file: Path

    @contextmanager
    def set(self, number: str) -> Iterator[None]:
        """Hold the mark while working; waits for another process that holds it."""
        self.file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self.file.open("a", encoding="utf-8") as file:
            lock(file, wait=True)
            file.truncate(0)
            file.write(number)
            file.flush()
            yield

    def shows(self, number: str) -> bool:
        """Whether some process works on this batch of jobs now."""
        try:
            with self.file.open(encoding="utf-8") as file:
                return not lock(file, shared=True) and file.read() == number
        except FileNotFoundError:
            return False
