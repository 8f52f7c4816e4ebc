"""Start at once in this process; move to worker processes when the run turns out to be long."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fedquilt.core.errors import InputError, WorkerError
from fedquilt.core.exchange import Method
from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId, Source
from fedquilt.engines.client_side import Exam, Outcome, Score, Task
from fedquilt.engines.engine import Engine, Lost
from fedquilt.engines.local import Local
from fedquilt.engines.workers import Workers, cores, refuse_in_worker

WORTH_SECONDS = 10.0
LOOK_SECONDS = 2.0


class Auto:
    """``local`` until the rest of the run would take more than ten seconds, then ``workers``.

    Both give the same bits, and clients' states live outside engines, so nothing but time changes at the switch.
    """

    name = "auto"
    keeps_states = False

    def __init__(self, processes: int | None = None) -> None:
        refuse_in_worker()
        self.processes = processes or cores()
        self._inner: Engine = Local()
        self._run: tuple[Method, Source, Seed, Score | None] | None = None
        self._watched = (0.0, 0)
        self._settled = self.processes < 2

    def begin(self, method: Method, source: Source, seed: Seed, score: Score | None) -> None:
        """Get ready for a run."""
        self._run, self._watched = (method, source, seed, score), (0.0, 0)
        try:
            self._inner.begin(*self._run)
        except (InputError, WorkerError):
            if isinstance(self._inner, Local):
                raise
            self._inner.close()
            self._inner, self._settled = Local(), True
            self._inner.begin(*self._run)

    def expect(self, seconds: float, left: int) -> None:
        """Hear how long a round took and how many are left; move if that is worth it."""
        spent, rounds = self._watched[0] + seconds, self._watched[1] + 1
        self._watched = (spent, rounds)
        if self._settled or self._run is None or spent < LOOK_SECONDS or spent / rounds * left < WORTH_SECONDS:
            return
        self._settled = True
        workers: Engine = Workers(self.processes)
        try:
            workers.begin(*self._run)
        except (InputError, WorkerError) as error:
            workers.close()  # this run cannot be moved to other processes; it goes on here
            warnings.warn(f"The run goes on in one process: {error}", stacklevel=2)
            return
        self._inner.close()
        self._inner = workers

    def visits(
        self, clients: Sequence[ClientId], task: Callable[[ClientId], Task]
    ) -> Iterator[tuple[ClientId, Outcome | Lost]]:
        """As the engine in use."""
        return self._inner.visits(clients, task)

    def exams(
        self, clients: Sequence[ClientId], exam: Callable[[ClientId], Exam]
    ) -> Iterator[tuple[ClientId, dict[str, Any]]]:
        """As the engine in use."""
        return self._inner.exams(clients, exam)

    def saved(self, oldest: int) -> None:
        """Clients' states are in the run's folder, which looks after itself."""

    def facts(self) -> dict[str, Any]:
        """As the engine in use."""
        return self._inner.facts()

    def close(self) -> None:
        """Close the engine in use."""
        self._inner.close()
