"""Start at once in this process; move to worker processes when the run turns out to be long."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence

from fedquilt.core.exchange import Method
from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId, Source
from fedquilt.engines.lanes import Lanes, trains
from fedquilt.engines.local import Local
from fedquilt.engines.pipe import POSIX
from fedquilt.engines.workers import Workers, cores, refuse_in_worker
from fedquilt.errors import FedquiltError, InputError, WorkerError
from fedquilt.rounds.client import Evaluation, Outcome, Score, Scores, Task
from fedquilt.rounds.engine import Engine, Facts, Lost

WORTH_SECONDS = 10.0
LOOK_SECONDS = 2.0


class Auto:
    """``local`` until the rest of the run would take more than ten seconds, then ``workers``.

    Both give the same bits, and clients' states live outside engines, so nothing but time changes at the switch.

    Args:
        processes: How many workers; by default one per core.
        exact: If False, clients go side by side in lanes where a trial in the first round finds that faster; numbers
            then agree with other engines but for rounding, and the width that was chosen is among the run's facts.
    """

    name = "auto"
    keeps_states = False

    def __init__(self, processes: int | None = None, exact: bool = True) -> None:
        refuse_in_worker()
        self.processes, self.exact = processes or cores(), exact
        self._width = 1
        self._inner: Engine = Local()
        self._run: tuple[Method, Source, Seed, Score | None] | None = None
        self._watched = (0.0, 0)
        self._settled = self.processes < 2 or not POSIX

    def begin(self, method: Method, source: Source, seed: Seed, score: Score | None) -> None:
        """Get ready for a run."""
        self._run, self._watched = (method, source, seed, score), (0.0, 0)
        if not self.exact and isinstance(self._inner, Local):
            self._inner, self._width = Lanes(), 1
        try:
            self._inner.begin(*self._run)
        except (InputError, WorkerError):
            if type(self._inner) is Local:
                raise
            self._settled = self._settled or not isinstance(self._inner, Lanes)
            self._one_by_one()

    def _one_by_one(self) -> None:
        assert self._run is not None
        self._inner.close()
        self._inner, self._width = Local(), 1
        self._inner.begin(*self._run)

    def expect(self, seconds: float, left: int) -> None:
        """Hear how long a round took and how many are left; move if that is worth it."""
        spent, rounds = self._watched[0] + seconds, self._watched[1] + 1
        self._watched = (spent, rounds)
        if self._settled or self._run is None or spent < LOOK_SECONDS or spent / rounds * left < WORTH_SECONDS:
            return
        self._settled = True
        workers: Engine = Workers(self.processes, width=self._width)
        try:
            workers.begin(*self._run)
        except (InputError, WorkerError) as error:
            workers.close()  # this run cannot be moved to other processes; it goes on here
            warnings.warn(f"The run continues in one process: {error}", stacklevel=2)
            return
        self._inner.close()
        self._inner = workers

    def updates(
        self, clients: Sequence[ClientId], task: Callable[[ClientId], Task]
    ) -> Iterator[tuple[ClientId, Outcome | Lost]]:
        """As the engine in use; the first that train decide whether clients go side by side."""
        lanes = self._inner
        if isinstance(lanes, Lanes) and lanes.width is None and clients and trains(lanes.side, task(clients[0])):
            try:
                self._width = lanes.tune(clients, task)
            except FedquiltError:  # vmap cannot take this objective
                self._width = 1
            if self._width == 1:
                self._one_by_one()
        return self._inner.updates(clients, task)

    def evaluations(
        self, clients: Sequence[ClientId], evaluation: Callable[[ClientId], Evaluation]
    ) -> Iterator[tuple[ClientId, Scores]]:
        """As the engine in use."""
        return self._inner.evaluations(clients, evaluation)

    def saved(self, oldest: int) -> None:
        """Clients' states are in the run's folder, which looks after itself."""

    @property
    def one_at_a_time(self) -> bool:
        """As the engine in use."""
        return bool(getattr(self._inner, "one_at_a_time", False))

    def facts(self) -> Facts:
        """As the engine in use."""
        return self._inner.facts()

    def close(self) -> None:
        """Close the engine in use."""
        self._inner.close()
