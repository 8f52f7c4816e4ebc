"""All runs below a folder, looked at together; what a page is told that knows what an earlier look found."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import fmean

from fedquilt.core.plain import Row
from fedquilt.metrics.table import cells, client_columns
from fedquilt.storage.logs import CLIENTS, row_in
from fedquilt.storage.logs import UPDATES as UPDATES_LOG
from fedquilt.watch.find import places
from fedquilt.watch.follow import Followed, point, scores
from fedquilt.watch.tail import Tail

_REST = 0.4  # seconds between two looks, however many pages ask


_REACH = 1 << 23  # bytes from the end: the last rounds are enough for the last message on most clients
UPDATES = ("exchange", "samples", "steps", "loss", "seconds", "bytes_down", "bytes_up")


class Clients:
    """The last row of every client; only runs that someone looks at are read so closely."""

    def __init__(self, folder: Path) -> None:
        self._scores = Tail(folder / CLIENTS, _REACH, (b'"deployed"', b'"test"'), partial(row_in, name=CLIENTS))
        self._updates = Tail(folder / UPDATES_LOG, _REACH, sound=partial(row_in, name=UPDATES_LOG))
        self._rows: dict[str, Row] = {}
        self._looks: dict[str, int] = {}
        self.born = 0

    def look(self, number: int) -> None:
        """Read what is new."""
        (void, scores), (gone, updates) = self._scores.read(), self._updates.read()
        if void or gone:  # the run went back: both are read again
            self.born, self._rows, self._looks = number, {}, {}
            for tail in (self._scores, self._updates):
                tail.forget()
            (_, scores), (_, updates) = self._scores.read(), self._updates.read()
        for row in updates:
            self._note(row, number, {f"update_{name}": row.get(name) for name in UPDATES}, "asked")
        columns = [*client_columns("watch"), {"key": "rows"}]
        for row in scores:
            if (row.get("model"), row.get("split")) == ("deployed", "test"):
                self._note(row, number, cells(columns, row), "scored")

    def _note(self, row: Row, number: int, values: Row, when: str) -> None:
        client = row.get("client")
        key = client if isinstance(client, str) else json.dumps(client)
        held = self._rows.setdefault(key, {"client": key})
        held |= values
        held[when] = row.get("round")
        self._looks[key] = number

    def since(self, number: int) -> Row:
        """The rows that changed after an earlier look; ``anew``: all of them."""
        anew = number < self.born or number == 0
        return {"anew": anew, "rows": [row for key, row in self._rows.items() if anew or self._looks[key] > number]}


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
            "dropped": run.dropped.since(have),
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
    pace = fmean(paces)
    times = [
        (line["rounds"] or usual) * pace if line["left"] is None else line["left"]
        for line in lines
        if line["state"] in ("running", "waiting")
    ]
    return float(max(max(times), sum(times) / running))
