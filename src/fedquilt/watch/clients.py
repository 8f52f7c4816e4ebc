"""The clients of one run: their last scores and visits, from the ends of long logs."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

from fedquilt.core.plain import Row
from fedquilt.metrics.table import cells, client_columns
from fedquilt.storage.logs import CLIENTS, row_in
from fedquilt.storage.logs import VISITS as VISITS_LOG
from fedquilt.watch.tail import Tail

_REACH = 1 << 23  # bytes from the end: the last rounds are enough for the last word on most clients
VISITS = ("exchange", "examples", "steps", "loss", "seconds", "bytes_down", "bytes_up")


class Clients:
    """The last row of every client; only runs that someone looks at are read so closely."""

    def __init__(self, folder: Path) -> None:
        self._scores = Tail(folder / CLIENTS, _REACH, (b'"deployed"', b'"test"'), partial(row_in, name=CLIENTS))
        self._visits = Tail(folder / VISITS_LOG, _REACH, sound=partial(row_in, name=VISITS_LOG))
        self._rows: dict[str, Row] = {}
        self._looks: dict[str, int] = {}
        self.born = 0

    def look(self, number: int) -> None:
        """Read what is new."""
        (void, scores), (gone, visits) = self._scores.read(), self._visits.read()
        if void or gone:  # the run went back: both are read again
            self.born, self._rows, self._looks = number, {}, {}
            for tail in (self._scores, self._visits):
                tail.forget()
            (_, scores), (_, visits) = self._scores.read(), self._visits.read()
        for row in visits:
            self._note(row, number, {f"visit_{name}": row.get(name) for name in VISITS}, "visited")
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
