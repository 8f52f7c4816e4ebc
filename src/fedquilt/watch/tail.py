"""Logs that grow while they are read, are cut back when a run goes on from a snapshot, and may end half-way."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from fedquilt.core.plain import JSON, Row
from fedquilt.storage.logs import row_in

_MARK = 256  # bytes before the place we are at that must still be what they were
_MOST = 1 << 24  # bytes that are read in one go


class Tail:
    """The rows of a log, each read once. A line counts when its end is there.

    Args:
        path: The log; it need not exist yet.
        reach: Begin at most so many bytes before its end; None for its beginning.
        having: Only lines with these bytes in them are rows; others are not even parsed.
        sound: Makes a row of a line, or None of one that is damaged.
    """

    def __init__(
        self,
        path: Path,
        reach: int | None = None,
        having: Sequence[bytes] = (),
        sound: Callable[[bytes], Row | None] = row_in,
    ) -> None:
        self.path, self.reach, self.having, self.sound = path, reach, having, sound
        self._place, self._mark = 0, b""
        self._known: tuple[int, int, int] | None = None  # inode, size, time of change

    def read(self) -> tuple[bool, list[Row]]:
        """Whether all that was read before is void, and the rows that are new."""
        try:
            with self.path.open("rb") as file:
                return self._read(file)
        except OSError:  # not there, or there no more
            void = self._known is not None
            self.forget()
            return void, []

    def forget(self) -> None:
        """Begin again."""
        self._place, self._mark, self._known = 0, b"", None

    def _read(self, file: IO[bytes]) -> tuple[bool, list[Row]]:
        found = os.fstat(file.fileno())
        known = (found.st_ino, found.st_size, found.st_mtime_ns)
        if known == self._known and self._place == found.st_size:
            return False, []
        void = self._known is not None and (known[0] != self._known[0] or not self._as_it_was(file, found.st_size))
        if void or self._known is None:
            self._place, self._mark = self._start(file, found.st_size), b""
        self._known = known
        file.seek(self._place)
        block = file.read(_MOST)
        block = block[: block.rfind(b"\n") + 1]
        if block:
            self._place += len(block)
            self._mark = (self._mark + block)[-_MARK:]
        return void, [row for line in block.splitlines() if (row := self._row(line)) is not None]

    def _as_it_was(self, file: IO[bytes], size: int) -> bool:
        """Whether what we have read is still there; a log may be cut back and grow again between two looks."""
        if size < self._place:
            return False
        file.seek(self._place - len(self._mark))
        return file.read(len(self._mark)) == self._mark

    def _start(self, file: IO[bytes], size: int) -> int:
        if self.reach is None or size <= self.reach:
            return 0
        file.seek(size - self.reach)
        return size - self.reach + len(file.readline())

    def _row(self, line: bytes) -> Row | None:
        return self.sound(line) if all(part in line for part in self.having) else None


class Log:
    """What a log has told, each row with the number of the look that found it.

    ``take`` makes of a row, and of what was made of the one before it, what is kept.
    """

    def __init__(self, tail: Tail, take: Callable[[Row, JSON], JSON] = lambda row, before: row) -> None:
        self.tail, self.take = tail, take
        self.rows: list[JSON] = []
        self.born = 0
        self._looks: list[int] = []

    def look(self, number: int) -> bool:
        """Read on; whether anything is new."""
        void, rows = self.tail.read()
        if void:
            self.rows, self._looks, self.born = [], [], number
        for row in rows:
            self.rows.append(self.take(row, self.rows[-1] if self.rows else None))
        self._looks += [number] * len(rows)
        return void or bool(rows)

    def since(self, number: int) -> Row:
        """The rows that a reader has not got who was here at an earlier look; ``anew``: it must forget the others."""
        anew = number < self.born or number == 0
        return {"anew": anew, "rows": self.rows if anew else self.rows[bisect_right(self._looks, number) :]}
