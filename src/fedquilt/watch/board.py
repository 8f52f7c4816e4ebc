"""All runs below a folder, looked at together; what a page is told that knows what an earlier look found."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from fedquilt.core.plain import Row
from fedquilt.metrics.table import client_columns
from fedquilt.watch.clients import Clients
from fedquilt.watch.find import places
from fedquilt.watch.follow import Followed, point, scores

_REST = 0.4  # seconds between two looks, however many pages ask


class Board:
    """The runs below a folder. Any number of threads may ask."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.runs: dict[str, Followed] = {}
        self._close: dict[str, Clients] = {}
        self._guard = threading.Lock()
        self._number, self._looked = 0, 0.0

    def look(self) -> None:
        """See what has changed, unless someone did a moment ago."""
        if self._number and time.monotonic() - self._looked < _REST:
            return
        self._number += 1
        found: dict[str, Followed] = {}
        for place in places(self.top):
            known = self.runs.get(place.key)
            found[place.key] = known if known is not None and known.place == place else Followed(place)
            found[place.key].seen(self._number)
        self.runs = found
        self._close = {key: clients for key, clients in self._close.items() if key in found}
        self._looked = time.monotonic()

    def lines(self) -> list[Row]:
        """Every run in a line."""
        with self._guard:
            self.look()
            return [run.told() for run in self.runs.values()]

    def told(self, since: int, key: str | None = None, have: int = 0) -> Row:
        """What is new since a look; of the run ``key`` everything that is new since the look ``have``."""
        with self._guard:
            self.look()
            lines = [run.told() for run in self.runs.values()]
            curves = {k: new for k, run in self.runs.items() if (new := run.points.since(since))["rows"] or new["anew"]}
            found = {
                "look": self._number,
                "time": time.time(),
                "folder": self.top.resolve().name,
                "point": point(),
                "scores": scores(),
                "columns": client_columns("watch"),
                "runs": lines,
                "curves": curves,
                "whole": whole(lines),
            }
            if key is not None and key in self.runs:
                found["run"] = self._closely(key, have)
            return found

    def _closely(self, key: str, have: int) -> Row:
        run = self.runs[key]
        clients = self._close.setdefault(key, Clients(run.place.folder))
        clients.look(self._number)
        return {
            "id": key,
            "folder": str(run.place.folder),
            "clients": clients.since(have),
            "last": run.last,
            "ledger": run.ledger.since(have),
            "messages": run.messages.since(have),
        }


def whole(lines: Sequence[Row]) -> Row:
    """All runs as one: how many are in which state, rounds done and planned, and the time left."""
    usual = max((line["rounds"] or 0 for line in lines), default=0)
    return {
        "states": dict(Counter(line["state"] for line in lines)),
        "left": _left(lines, usual),
        "done": sum(line["round"] for line in lines),
        "planned": sum(
            line["round"] if line["state"] == "done" else max(line["rounds"] or usual, line["round"]) for line in lines
        ),
    }


def _left(lines: Sequence[Row], usual: int) -> float | None:
    """The seconds left for all that is not over, where a run tells its pace; ``usual`` are the rounds of most runs."""
    running = sum(line["state"] == "running" for line in lines)
    paces = [line["pace"] for line in lines if line["pace"]]
    if not running or not paces:
        return None
    pace = sum(paces) / len(paces)
    waited = [line for line in lines if line["state"] in ("running", "waiting")]
    times = [(line["rounds"] or usual) * pace if line["left"] is None else line["left"] for line in waited]
    return float(max(max(times), sum(times) / running))
