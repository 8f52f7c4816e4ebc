"""The default engine on a machine with several cores: persistent processes, bit-identical to ``local``.

How many client updates or evaluations go to a worker in one message: enough to be worth it, few enough to end together.
"""

from __future__ import annotations

import heapq
import os
import selectors
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from fedquilt.core.exchange import Method
from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId, Source
from fedquilt.engines.kept_memory import keep_memory
from fedquilt.engines.lanes import WIDTHS, best_width, by_size, checked_width, refuse, trains, windows
from fedquilt.engines.pipe import POSIX, UNIX_ONLY, SharedTensors
from fedquilt.engines.process import Worker
from fedquilt.engines.worker import READY, Begin, Done, JobFailed, Work, begin_of, several, together
from fedquilt.errors import ExchangeError, FedquiltError, FrameError, InputError, WorkerError
from fedquilt.rounds.client import ClientSide, Evaluation, Outcome, Score, Scores, Task
from fedquilt.rounds.engine import Facts, Lost

T = TypeVar("T")
GRAIN = 0.03  # seconds of work that one message should bring
MOST = 16


@dataclass
class Pace:
    """How long one takes, as far as is known."""

    seconds: float = 0.0
    count: int = 0

    def add(self, seconds: float, count: int) -> None:
        """So many took so long."""
        self.seconds, self.count = self.seconds + seconds, self.count + count

    @property
    def together(self) -> int:
        """How many a message should bring; one, as long as nothing is known."""
        return max(1, int(min(MOST, GRAIN * self.count / self.seconds))) if self.seconds > 0 else 1


def grouped(items: Sequence[T], most: int, workers: int) -> list[tuple[T, ...]]:
    """Neighbours together, at most so many; towards the end fewer, so that no worker is left with many of them.

    Example:
        >>> [len(group) for group in grouped(range(20), 4, 2)]
        [4, 4, 3, 2, 1, 1, 1, 1, 1, 1, 1]
    """
    found, at = [], 0
    while at < len(items):
        size = max(1, min(most, (len(items) - at) // (2 * workers)))
        found.append(tuple(items[at : at + size]))
        at += size
    return found


@dataclass
class _Jobs:
    """Numbered jobs under way: ``waiting`` has those that nobody works on, the largest first."""

    opened: int
    pace: Pace | None
    waiting: list[tuple[int, int]] = field(default_factory=list)
    results: dict[int, Any] = field(default_factory=dict)
    retried: set[int] = field(default_factory=set)

    def open(self, end: int, size: Callable[[int], int]) -> None:
        """Let all jobs up to this number wait."""
        for number in range(self.opened, end):
            heapq.heappush(self.waiting, (-size(number), number))
        self.opened = max(self.opened, end)

    def answered(self, number: int, answer: Done | JobFailed) -> None:
        """A job is done, or failed."""
        self.results[number] = answer.result if isinstance(answer, Done) else answer
        if self.pace is not None and isinstance(answer, Done):
            self.pace.add(answer.seconds, len(answer.result) if isinstance(answer.result, tuple) else 1)

    def again(self, given: Sequence[int], fate: str) -> None:
        """These jobs were a worker's that died; the first was under way, and is not tried a third time."""
        for number in given:
            if number == given[0] and number in self.retried:
                self.results[number] = Lost(f"the worker process {fate} twice during this client update")
            else:
                heapq.heappush(self.waiting, (0, number))
        self.retried.update(given[:1])


_WINDOW = (
    64  # replies that may wait for an earlier client; bounds memory, and long client updates start first within it
)
_shared: WeakKeyDictionary[Source, SharedTensors] = WeakKeyDictionary()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_shared.clear)  # a child lets go of its parent's files


class Workers:
    """Runs client updates in persistent processes, one torch thread each; client data are shared, not copied.

    Client updates go to whichever worker is free, larger clients first; short ones, several in a message. A worker that
    dies is restarted and its client update is made once more; if that kills a worker again, the client is left out of
    the round, with the reason.

    Args:
        processes: How many; by default one per core.
        devices: For example ["cuda:0", "cuda:1"]; workers are mapped to them round-robin.
        width: How many clients a worker trains at once, side by side, as :class:`fedquilt.engines.lanes.Lanes`; None
            finds the fastest. With more than 1, equal to ``local`` but for rounding.
    """

    keeps_states = False

    def __init__(
        self, processes: int | None = None, devices: Sequence[str] | None = None, width: int | None = 1
    ) -> None:
        count = processes if processes is not None else cores()
        if count < 1:
            raise InputError(f"The workers engine needs at least 1 process, got {processes}.")
        if not POSIX:
            raise InputError(UNIX_ONLY)
        refuse_in_worker()
        self.devices = list(devices or [])
        self.count = count
        self.width = checked_width(width)
        self.name = "workers" if width == 1 else "lanes"
        self._workers: list[Worker] = []
        self._begin: Begin | None = None
        self._data: SharedTensors | None = None
        self._source: Source | None = None
        self._heirs_of: SharedTensors | None = None  # the data that were there when the last run began
        self._method: type = type(None)
        self._here: ClientSide | None = None
        self._given = 0  # how many jobs, in all runs
        self._paces: dict[str, Pace] = {}  # of client updates by exchange, and of evaluations

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes there are."""
        return tuple(worker.process.pid for worker in self._workers)

    def _device(self, place: int) -> str | None:
        return self.devices[place % len(self.devices)] if self.devices else None

    def begin(self, method: Method, source: Source, seed: Seed, score: Score | None) -> None:
        """Start the processes, if they are not there yet, and tell them what this run is."""
        keep_memory()
        self._method, self._source, self._here, self._paces = type(method), source, None, {}
        if self.width != 1:
            refuse(method)
            self._here = ClientSide(method, source, seed)
        share = getattr(source, "columns_for_sharing", None)
        if share is None:
            raise InputError(f"The workers engine cannot share a {type(source).__name__}. Use engine='local'.")
        self._data = _shared.get(source)
        if self._data is None:
            self._data = _shared[source] = SharedTensors(share())
        begin = begin_of(method, source, seed, score, self._data.index)
        uses_script = any(f"{q}__main__:" in repr((begin.method, type(source), begin.index)) for q in "'\"")
        main = _main_file() if uses_script else None
        if uses_script and main is None:
            raise InputError(
                "The workers engine cannot find what was defined in an interactive session. Put the method into a "
                "module or a script, or use engine='local'."
            )
        self._begin = replace(begin, main=main, path=list(sys.path))
        if self._data.inherited and self._heirs_of is not self._data:
            self.close()
        self._assemble()
        self._heirs_of = self._data
        for worker in self._workers:
            worker.begin(self._begin, self._data.descriptor)
        for worker in self._workers:
            self._ready(worker)

    def _assemble(self) -> None:
        """As many workers as are wanted, none of which has a job."""
        for place, worker in enumerate(self._workers):
            if worker.jobs:  # a run that failed is still held by somebody
                worker.kill()
            if worker.process.poll() is not None:  # killed since the last run
                worker.pipe.close()
                self._workers[place] = Worker(worker.device)
        while len(self._workers) < self.count:
            self._workers.append(Worker(self._device(len(self._workers))))

    def _ready(self, worker: Worker) -> None:
        try:
            answer = worker.pipe.receive()
        except (EOFError, ConnectionError) as error:
            fate = worker.fate()
            self.close()
            raise WorkerError(
                f"A worker process {fate} before it was ready. If a script of yours starts the run, put the call "
                "below 'if __name__ == \"__main__\":', or use engine='local'."
            ) from error
        if answer.number != READY:
            self.close()
            raise WorkerError(f"A worker answered out of turn (number {answer.number}). Start the run again.")
        if isinstance(answer, JobFailed):
            self.close()
            raise WorkerError(f"A worker could not rebuild the run: {answer.reason}\n\n{answer.trace}")

    def updates(
        self, clients: Sequence[ClientId], task: Callable[[ClientId], Task]
    ) -> Iterator[tuple[ClientId, Outcome | Lost]]:
        """Client updates by all workers; outcomes in the order of ``clients``."""
        if self._here is not None and clients and trains(self._here, task(clients[0])):
            yield from self._together(self._here, clients, task)
            return
        if clients:
            for client, result in self._several(clients, task, self._size, task(clients[0]).exchange):
                if isinstance(result, JobFailed):
                    raise self._error(result, task(client))
                yield client, result

    def _several(
        self,
        clients: Sequence[ClientId],
        what: Callable[[ClientId], Task | Evaluation],
        size: Callable[[ClientId], int],
        kind: str,
    ) -> Iterator[tuple[ClientId, Any]]:
        """Jobs of one client, or of as many as it takes to be worth a message; what came, in the order of ``clients``.

        Of clients whose worker died twice, nobody knows which one it was: each is asked alone, and what was under way
        behind them is asked for again.
        """
        pace = Pace()
        most = self._paces.get(kind, pace).together
        left = grouped(clients, most, self._crew())
        window = max(_WINDOW // most, 3 * self._crew())
        while left:
            jobs = self._jobs(left, lambda g: several([what(c) for c in g]), lambda g: sum(map(size, g)), pace, window)
            for place, (group, result) in enumerate(jobs, 1):
                if isinstance(result, Lost) and len(group) > 1:
                    jobs.close()
                    yield from self._jobs(group, what, size)
                    left = left[place:]
                    break
                yield from _each(group, result)
            else:
                break
        self._paces[kind] = pace

    def _together(
        self, here: ClientSide, clients: Sequence[ClientId], task: Callable[[ClientId], Task]
    ) -> Iterator[tuple[ClientId, Outcome | Lost]]:
        """Client updates in groups, each by one worker."""
        if self.width is None:
            self.width = best_width(here, [task(c) for c in clients[: WIDTHS[-1]]])
        for window in windows(clients, self.width * self.count):
            groups = list(by_size(window, here.source, self.width))
            found: dict[ClientId, Outcome | Lost] = {}
            for group, result in self._jobs(groups, lambda g: together([task(c) for c in g]), lambda g: 0):
                if isinstance(result, JobFailed):
                    raise self._error(result, task(group[0]))
                each = [result] * len(group) if isinstance(result, Lost) else result
                found.update(zip(group, each, strict=True))
            yield from ((client, found[client]) for client in window)

    def _error(self, failed: JobFailed, asked: Task) -> ExchangeError:
        client = asked.client if failed.client is None else failed.client
        return ExchangeError(
            self._method.__name__, asked.exchange, failed.stage, client, asked.round, failed.reason, failed.trace
        )

    def evaluations(
        self, clients: Sequence[ClientId], evaluation: Callable[[ClientId], Evaluation]
    ) -> Iterator[tuple[ClientId, Scores]]:
        """Evaluations by all workers; results in the order of ``clients``."""
        for client, result in self._several(clients, evaluation, _no_size, ""):
            if isinstance(result, JobFailed):
                raise (FedquiltError if result.told else WorkerError)(f"client {client!r}: {result.reason}")
            if isinstance(result, Lost):
                raise WorkerError(f"client {client!r} could not be evaluated: {result.reason}")
            yield client, result

    def _crew(self) -> int:
        """How many workers there are."""
        if not self._workers:
            raise WorkerError("The engine is closed. Make another one.")
        return len(self._workers)

    def _jobs(
        self,
        clients: Sequence[T],
        what: Callable[[T], Work],
        size: Callable[[T], int],
        pace: Pace | None = None,
        window: int = _WINDOW,
    ) -> Generator[tuple[T, Any]]:
        """Give out jobs within a window, larger clients first; hand back results in order.

        A worker is given its next job while it is busy, so that it need not wait for one, as long as there is one for
        every worker.
        """
        first = wanted = self._given
        self._given += len(clients)  # no number is ever given twice, so no answer is taken for another's
        jobs = _Jobs(first, pace)
        for worker in list(self._workers):
            if worker.process.poll() is not None:
                self._replace(worker)
        with selectors.DefaultSelector() as selector, self._settled(range(first, self._given)):
            for worker in self._workers:
                selector.register(worker.pipe, selectors.EVENT_READ, worker)
            while wanted < first + len(clients) and self._crew():
                jobs.open(min(first + len(clients), wanted + window), lambda number: size(clients[number - first]))
                self._give(jobs.waiting, lambda number: what(clients[number - first]))
                ready = wanted in jobs.results
                events = selector.select(0 if ready else None)
                for key, _ in events:
                    self._hear(key.data, jobs, selector)
                if ready and not events:  # every worker has something to do while this reply is taken in
                    yield clients[wanted - first], jobs.results.pop(wanted)
                    wanted += 1

    def _hear(self, worker: Worker, jobs: _Jobs, selector: selectors.BaseSelector) -> None:
        """Take a worker's answer; if it died, another one takes its place."""
        given = list(worker.jobs)
        answer = self._collect(worker)
        if answer is not None:
            jobs.answered(given[0], answer)
            return
        selector.unregister(worker.pipe)
        fate = worker.fate()
        fresh = self._replace(worker)
        selector.register(fresh.pipe, selectors.EVENT_READ, fresh)
        jobs.again(given, fate)

    def _give(self, waiting: list[tuple[int, int]], what: Callable[[int], Work]) -> None:
        """Give jobs to whoever has none, then to whoever has one only."""
        for worker in self._workers:
            if waiting and not worker.jobs:
                number = heapq.heappop(waiting)[1]
                worker.give(number, what(number))
        for worker in self._workers:
            if len(worker.jobs) == 1 and not worker.patient and len(waiting) >= len(self._workers):
                number = waiting[0][1]
                if worker.give_ahead(number, what(number)):
                    heapq.heappop(waiting)

    @contextmanager
    def _settled(self, mine: range) -> Iterator[None]:
        """However the block ends, wait for the answers still under way, so that the next job finds quiet pipes."""
        try:
            yield
        finally:
            for worker in self._workers:
                if not worker.jobs or worker.jobs[0] not in mine:
                    continue
                if len(worker.jobs) > 1 or self._collect(worker) is None:
                    worker.kill()  # with a job that nobody waits for, or gone, or out of step: another takes its place

    def _size(self, client: ClientId) -> int:
        return self._source.size(client) if self._source is not None else 0

    def _collect(self, worker: Worker) -> Done | JobFailed | None:
        """Its answer; None if it is gone or out of step."""
        number = worker.jobs[0] if worker.jobs else None
        try:
            answer = worker.pipe.receive()
        except (EOFError, OSError, FrameError):
            answer = None
        except BaseException:  # interrupted in the middle of an answer: this pipe cannot be trusted any more
            worker.kill()
            raise
        if worker.jobs:
            worker.jobs.popleft()
        return answer if isinstance(answer, Done | JobFailed) and answer.number == number else None

    def _replace(self, dead: Worker) -> Worker:
        place = self._workers.index(dead)
        dead.pipe.close()
        fresh = self._workers[place] = Worker(self._device(place))
        if self._begin is None or self._data is None:
            raise AssertionError("a worker died before the run began")
        fresh.begin(self._begin, self._data.descriptor)
        self._ready(fresh)
        return fresh

    def saved(self, oldest: int) -> None:
        """Clients' states are in the run's folder, which looks after itself."""

    def facts(self) -> Facts:
        """Processes, devices, and the peak resident size of each worker."""
        peaks = []
        for worker in self._workers:
            with suppress(EOFError, OSError):  # a worker that was killed since its last job has no answer
                worker.pipe.send(None)
                peaks.append(worker.pipe.receive().result["peak_bytes"])
        facts = {"engine": self.name, "processes": self.count, "peak_bytes_of_workers": peaks}
        found = {} if self.name == "workers" else {"width": self.width}
        return {**facts, "devices": self.devices or ["cpu"], **found}

    def close(self) -> None:
        """End the processes."""
        for worker in self._workers:
            worker.pipe.close()
        for worker in self._workers:
            worker.end()
        self._workers = []

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _no_size(client: ClientId) -> int:
    """Clients that are evaluated may not train, and so have no size."""
    return 0


def _each(group: Sequence[ClientId], result: Any) -> Iterator[tuple[ClientId, Any]]:
    """What came of each client of a job."""
    if isinstance(result, JobFailed):
        yield result.client if result.client in group else group[0], result
    elif len(group) == 1:
        yield group[0], result
    else:
        yield from zip(group, result, strict=True)


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def refuse_in_worker() -> None:
    """Raise in a worker process: it only imports the user's script, and must not play the run in it."""
    if "FEDQUILT_WORKER" in os.environ:
        raise InputError(
            "A worker process tried to start a run of its own, because it had to import the script that started the "
            "run. In that script, put the call below 'if __name__ == \"__main__\":'."
        )


def _main_file() -> str | None:
    """The user's script, when there is one that other processes must also run to know its classes."""
    main = sys.modules.get("__main__")
    path = getattr(main, "__file__", None)
    if main is None or path is None or getattr(main, "__spec__", None) is not None:
        return None  # an interactive session, or a module that is imported by its own name
    return str(path) if str(path).endswith(".py") else None
