"""Trackers: other places that a run's numbers go to, by name (entry points ``fedquilt.trackers``)."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from operator import methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fedquilt.core.plain import JSON, Row
from fedquilt.moved import renamed
from fedquilt.runs.callbacks import Callback
from fedquilt.runs.snapshot import Snapshot
from fedquilt.storage.files import storage, to_json

if TYPE_CHECKING:
    from fedquilt.runs.play import Run

__all__ = ["RunInfo", "Tracker", "Trackers"]


@dataclass(frozen=True)
class RunInfo:
    """A run as a tracker sees it.

    Args:
        name: The name of its folder.
        folder: Where it lies.
        config: Its settings, as dotted names and texts.
        logged: How many rounds the tracker has logged already; more than 0 if the run was resumed.
        place: What :meth:`Tracker.start` gave when the run began, for example its id at the tracker; empty at first.
    """

    name: str
    folder: Path
    config: Mapping[str, str]
    logged: int = 0
    place: str = ""

    told = renamed("told", "logged")


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


FILE = "trackers.json"


class Trackers(Callback):
    """Tells several trackers about a run.

    A resumed run repeats some rounds, with the same numbers: those that a tracker knows are not logged again. What
    fails is noted once and left out from then on; the next run in the folder tries again.

    Args:
        trackers: By the name they are noted under.
        info: The run; ``logged`` and ``place`` are filled in for each tracker from the run's folder.
    """

    def __init__(self, trackers: Mapping[str, Tracker], info: RunInfo) -> None:
        self._info = info
        self._waiting, self._live = dict(trackers), dict[str, Tracker]()
        self._known: dict[str, Row] = {}

    def on_run_begin(self, run: Run) -> None:
        """The run begins or resumes: each tracker learns how many rounds it has logged."""
        self._note = run.note
        self._live = dict(self._waiting)
        self._known = _read(self._info.folder / FILE)
        for name in list(self._live):
            known = self._known.setdefault(name, {"told": 0, "place": ""})
            info = replace(self._info, logged=known["told"], place=known["place"])
            known["place"] = self._try(name, methodcaller("start", info)) or known["place"]
        self._keep()

    def on_round_end(self, snapshot: Snapshot) -> None:
        """Log the numbers of a round."""
        numbers = plain_numbers(snapshot.metrics) if self._live else {}
        for name in list(self._live):
            if snapshot.round > self._known[name]["told"]:
                self._try(name, methodcaller("log", snapshot.round, numbers))
                if name in self._live:
                    self._known[name]["told"] = snapshot.round
        self._keep()

    def on_run_end(self, result: Row | None) -> None:
        """The run is over; None if it was interrupted."""
        for name in list(self._live):
            self._try(name, methodcaller("finish", result))
        self._live = {}

    def _try(self, name: str, do: Callable[[Tracker], Any]) -> Any:
        try:
            return do(self._live[name])
        except Exception as error:  # whatever another package does: the run is worth more than its tracking
            del self._live[name]
            self._note(f"the tracker {name!r} failed and was disabled: {type(error).__name__}: {error}")
            return None

    def _keep(self) -> None:
        if self._live:
            part = self._info.folder / f"{FILE}.part"
            with storage(self._info.folder):
                part.write_text(to_json(self._known), encoding="utf-8")
                part.replace(self._info.folder / FILE)


def plain_numbers(metrics: Mapping[str, JSON]) -> dict[str, float]:
    """The finite numbers of a row, but for its round."""
    found = {n: float(v) for n, v in metrics.items() if isinstance(v, int | float) and not isinstance(v, bool)}
    return {n: v for n, v in found.items() if math.isfinite(v) and n != "round"}


def _read(path: Path) -> dict[str, Row]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {str(n): {"told": int(k["told"]), "place": str(k["place"])} for n, k in found.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # missing, or not what was written
        return {}
