"""Playing a run to its end while somebody listens."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Protocol

from fedquilt.core.plain import JSON
from fedquilt.runs.play import Run


class Listener(Protocol):
    """Hears how far a run is."""

    def step(self, round: int, phase: str, done: int, of: int) -> None:
        """So many clients of a phase of a round are done; told now and then."""
        ...

    def round(self, done: int, metrics: Mapping[str, JSON], totals: Mapping[str, JSON] | None = None) -> None:
        """So many rounds are done, with these numbers; ``totals`` are those of the whole run."""
        ...

    def say(self, text: str) -> None:
        """Something worth knowing."""
        ...


class Nobody:
    """Does not listen."""

    def step(self, round: int, phase: str, done: int, of: int) -> None:
        """Nothing."""

    def round(self, done: int, metrics: Mapping[str, JSON], totals: Mapping[str, JSON] | None = None) -> None:
        """Nothing."""

    def say(self, text: str) -> None:
        """Nothing."""


def play_to(listener: Listener, run: Run) -> None:
    """Play a run, telling of each round, of steps inside it, of notes and of replies that were left out."""
    run.journal.hear = listener.step
    told = 0
    with closing(iter(run)) as rounds:  # who is stopped in between saves what it has
        for snapshot in rounds:
            for note in run.notes[told:]:
                listener.say(note)
            told = len(run.notes)
            for entry in snapshot.log.quarantined:
                listener.say(f"round {snapshot.round}: client {entry.client!r} left out: {entry.reason}")
            listener.round(snapshot.round, snapshot.metrics, run.progress)
