"""Where a round's time and memory go, by exchange and phase, the same on every engine.

At every moment of a round the server is in one phase: it makes downloads ('broadcast'), waits for clients' work or, on
an engine in this process, does it ('train'), reads and checks uploads ('upload'), or works on its own state
('aggregate'). Scoring ('evaluate') is no part of a round and is added by the run.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

from fedquilt.core.memory import peak_bytes as peak_bytes

PHASES = ("broadcast", "train", "upload", "aggregate", "evaluate")
LEAST = 0.01  # seconds between two looks at the memory, so that many short client updates cost little
T = TypeVar("T")


@dataclass
class Phase:
    """What one phase of one exchange took in a round: seconds of the server's clock, and the largest resident memory
    of the server's process that was seen in it (in bytes)."""

    exchange: str | None
    phase: str
    seconds: float = 0.0
    memory: int = 0


def resident() -> int:
    """The resident bytes of this process now; where the system does not tell, the most there ever were."""
    own = _statm()
    return peak_bytes() if own is None else int(os.pread(own, 64, 0).split()[1]) * mmap.PAGESIZE


@cache
def _statm() -> int | None:
    try:
        return os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    except (OSError, AttributeError):  # macOS, Windows
        return None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_statm.cache_clear)  # a process that was forked off has numbers of its own


class PhaseMeter:
    """A stopwatch that is always in one phase of one exchange; :meth:`to` changes it.

    Example:
        >>> meter = PhaseMeter()
        >>> before = meter.to("train", "broadcast")
        >>> meter.stop()
        >>> [(p.exchange, p.phase) for p in meter.phases]
        [(None, 'aggregate'), ('train', 'broadcast')]
    """

    def __init__(self, phase: str = "aggregate") -> None:
        self._held: dict[tuple[str | None, str], Phase] = {}
        self._now: tuple[str | None, str] = (None, phase)
        self._since = time.perf_counter()
        self._looked = 0.0

    def to(self, exchange: str | None, phase: str) -> tuple[str | None, str]:
        """Go on in another phase; returns the one before, to go back to."""
        before, now = self._now, time.perf_counter()
        held = self._held.get(before)
        if held is None:
            held = self._held[before] = Phase(*before)
        held.seconds += now - self._since
        if now - self._looked >= LEAST or not held.memory:
            held.memory = max(held.memory, resident())
            self._looked = now
        self._now, self._since = (exchange, phase), now
        return before

    def during(self, exchange: str, phase: str, items: Iterable[T]) -> Iterator[T]:
        """The items; waiting for each of them is of this phase."""
        waiting = iter(items)
        try:
            while True:
                before = self.to(exchange, phase)
                try:
                    item = next(waiting)
                except StopIteration:
                    return
                finally:
                    self.to(*before)
                yield item
        finally:
            close = getattr(waiting, "close", None)
            if close is not None:
                close()

    def stop(self) -> None:
        """Count what has passed."""
        self.to(*self._now)

    @property
    def phases(self) -> list[Phase]:
        """In the order they first came."""
        return list(self._held.values())
