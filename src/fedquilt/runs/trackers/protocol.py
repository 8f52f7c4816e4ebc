"""What a tracker must offer, and what it is told of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fedquilt.core.plain import JSON


@dataclass(frozen=True)
class RunInfo:
    """A run as a tracker sees it.

    Args:
        name: The name of its folder.
        folder: Where it lies.
        config: Its settings, as dotted names and texts.
        told: How many rounds the tracker has heard of already; more than 0 if the run was resumed.
        place: What :meth:`Tracker.start` gave when the run began, for example its id at the tracker; empty at first.
    """

    name: str
    folder: Path
    config: Mapping[str, str]
    told: int = 0
    place: str = ""


class Tracker(Protocol):
    """Hears of a run as it goes. It is made with the options of the recipe, which must be cheap; packages that it needs
    are imported by ``start``. Whatever it raises ends the tracking, never the run."""

    def start(self, run: RunInfo) -> str:
        """The run begins or goes on; returns what finds it again when it is resumed."""
        ...

    def log(self, round: int, numbers: Mapping[str, float]) -> None:
        """The numbers after a round; they must be safe when this returns."""
        ...

    def finish(self, result: Mapping[str, JSON] | None) -> None:
        """The run is over, with what ``result.json`` says; or it was interrupted (None) and may be resumed."""
        ...
