"""Flower's simulation runtime as an engine: Ray actors on one machine or on a cluster, bit-identical to ``local``."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from queue import Empty, Queue
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid
from flwr.simulation import run_simulation

from fedquilt.core.exchange import Method
from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId, Source
from fedquilt.engines.flower.apps import FlowerClient, FlowerServer, versions
from fedquilt.engines.flower.content import from_content, to_content
from fedquilt.engines.flower.jobs import Parcel
from fedquilt.engines.flower.simulated import Actor, Arrays, JobBatch, flat_arrays, stripped
from fedquilt.engines.worker import Done, JobFailed, begin_of
from fedquilt.engines.workers import cores
from fedquilt.errors import ExchangeError, FedquiltError, InputError, WorkerError
from fedquilt.records.record import pack, unpack
from fedquilt.rounds.client import Evaluation, Outcome, Score, Scores, Task
from fedquilt.rounds.engine import Facts, Lost

_LONG = 30 * 24 * 3600.0  # seconds; a simulated client may take as long as it likes
_PAUSE = 0.02
_START = 180.0
_DEATHS = 3  # actors that may die for good in one exchange before the run is given up


class FlowerSimulation:
    """Runs client updates on the Ray actors of Flower's simulation runtime.

    One exchange is one message to each Flower node, and a node hosts as many of the cohort's clients as it gets: they
    are dealt anew each time, larger ones first, so that all nodes have about the same to do. States travel with the
    work and are kept by the run, as with ``workers``. When an actor dies, the runtime is started anew and its work is
    done once more; a client whose work ends its actor again is left out of the round, with the reason.

    Args:
        nodes: How many Flower nodes; by default one for each core that Ray has.
        processes: On one machine: how many actors; by default one per core. A cluster that runs already (named by the
            variable RAY_ADDRESS) has what it has.
    """

    name = "flower-simulation"
    keeps_states = False

    def __init__(self, nodes: int | None = None, processes: int | None = None) -> None:
        if importlib.util.find_spec("ray") is None:
            raise InputError(
                'The simulation needs Ray. Install the extra "simulation": pip install "fedquilt[simulation]".'
            )
        for name, count in (("nodes", nodes), ("processes", processes)):
            if count is not None and count < 1:
                raise InputError(f"A simulation needs at least 1 of {name}, got {count}.")
        if processes is not None and os.environ.get("RAY_ADDRESS"):
            raise InputError("RAY_ADDRESS names a running cluster, whose size is its own. Leave engine.processes out.")
        self.wanted, self.processes = nodes, processes
        self._runtime: _Runtime | None = None
        self._begin: tuple[bytes, Source] | None = None
        self._arrays: Arrays = {}
        self._method = ""

    def begin(self, method: Method, source: Source, seed: Seed, score: Score | None) -> None:
        """Start the runtime, if it is not there yet, and put the data where all actors find them."""
        share = getattr(source, "columns_for_sharing", None)
        if share is None:
            raise InputError(f"A simulation cannot share a {type(source).__name__}. Use engine='local'.")
        known = self._begin is not None and self._begin[1] is source
        arrays, index = flat_arrays(share())
        message = begin_of(method, source, seed, score, index)
        if any(f"{quote}__main__:" in repr((message.method, message.source)) for quote in "'\""):
            raise InputError(
                "A simulation's actors cannot import what a script defines. Put it into a module that every machine "
                "has, or use engine='workers'."
            )
        self._method, self._arrays, self._begin = type(method).__name__, arrays, (pack(message), source)
        if self._runtime is not None and not self._runtime.alive:
            self.close()
        if self._runtime is None:
            self._start()
        elif not known:
            self._runtime.share(arrays)

    def _start(self) -> None:
        self._runtime = _Runtime(self.wanted, self.processes)
        self._runtime.share(self._arrays)
        self._runtime.start()

    def updates(
        self, clients: Sequence[ClientId], task: Callable[[ClientId], Task]
    ) -> Iterator[tuple[ClientId, Outcome | Lost]]:
        """Client updates by all actors; outcomes in the order of ``clients``."""
        tasks = [task(client) for client in clients]
        kind = f"train.{tasks[0].exchange}" if tasks else ""
        for asked, result in zip(tasks, self._results(kind, tasks), strict=True):
            if isinstance(result, JobFailed):
                raise ExchangeError(
                    self._method, asked.exchange, result.stage, asked.client, asked.round, result.reason, result.trace
                )
            yield asked.client, result

    def evaluations(
        self, clients: Sequence[ClientId], evaluation: Callable[[ClientId], Evaluation]
    ) -> Iterator[tuple[ClientId, Scores]]:
        """Evaluations by all actors; results in the order of ``clients``."""
        evaluations = [evaluation(client) for client in clients]
        for asked, result in zip(evaluations, self._results("evaluate.evaluation", evaluations), strict=True):
            if isinstance(result, JobFailed):
                raise (FedquiltError if result.told else WorkerError)(f"client {asked.client!r}: {result.reason}")
            if isinstance(result, Lost):
                raise WorkerError(f"client {asked.client!r} could not be evaluated: {result.reason}")
            yield asked.client, result

    def _results(self, kind: str, asked: Sequence[Task | Evaluation]) -> list[Any]:
        """One result for each job, whatever Flower makes of the messages."""
        if self._runtime is None or self._begin is None:
            raise AssertionError("the simulation has not begun")
        found: dict[int, Any] = {}
        hands = self._deal(asked, self._runtime.nodes)
        failed = self._round(kind, asked, hands, found)
        if failed:
            self._once_more(kind, asked, sorted(n for _, hand in failed for n in hand), found)
        return [found[number] for number in range(len(asked))]

    def _once_more(
        self, kind: str, asked: Sequence[Task | Evaluation], jobs: Sequence[int], found: dict[int, Any]
    ) -> None:
        """An actor died. Flower keeps it in its pool, so only a new pool helps; there, jobs are done one by one, so
        that those which kill their actor are left out, and no others."""
        deaths = 0
        self._restart()
        for number in jobs:
            for reason, _ in self._round(kind, asked, [[number]], found):
                deaths += 1
                if deaths > _DEATHS:
                    raise WorkerError(f"The actors of the simulation die again and again: {reason}")
                found[number] = Lost(f"its actor died twice during this client update: {reason}")
                self._restart()

    def _restart(self) -> None:
        self.close()
        self._start()

    def _deal(self, asked: Sequence[Task | Evaluation], nodes: int) -> list[list[int]]:
        """Whose work goes to which node: the largest first, always to the node that has least."""
        size = self._begin[1].size if self._begin is not None else (lambda client: 0)
        sizes = {n: size(job.client) if isinstance(job, Task) else 1 for n, job in enumerate(asked)}
        hands: list[list[int]] = [[] for _ in range(min(nodes, len(asked)))]
        loads = [0] * len(hands)
        for number in sorted(sizes, key=lambda n: (-sizes[n], n)):
            least = loads.index(min(loads))
            hands[least].append(number)
            loads[least] += sizes[number] + 1
        return hands

    def _round(
        self, kind: str, asked: Sequence[Task | Evaluation], hands: Sequence[list[int]], found: dict[int, Any]
    ) -> list[tuple[str, list[int]]]:
        """Send every node its hand and collect the results; returns the hands that failed, with the reason."""
        if self._runtime is None or self._begin is None:
            raise AssertionError("the simulation has not begun")
        replies = self._runtime.exchange([(kind, self._frames(asked, hand)) for hand in hands])
        failed = []
        for hand, reply in zip(hands, replies, strict=True):
            if reply.has_error():
                failed.append((reply.error.reason or f"Flower's error {reply.error.code}", hand))
                continue
            found.update(_results_in(reply))
            if not set(hand) <= found.keys():
                failed.append(("not all jobs were answered", hand))
        return failed

    def _frames(self, asked: Sequence[Task | Evaluation], hand: Sequence[int]) -> dict[str, bytes]:
        parcel = Parcel()
        downs = [parcel.add(asked[n].down or b"") for n in hand]
        wholes = [None if (w := getattr(asked[n], "whole", None)) is None else parcel.add(w) for n in hand]
        parcel.head("batch", JobBatch([stripped(n, asked[n]) for n in hand], downs, wholes))
        return {"begin": self._begin[0] if self._begin is not None else b"", **parcel.frames}

    def saved(self, oldest: int) -> None:
        """Clients' states are in the run's folder, which looks after itself."""

    def facts(self) -> Facts:
        """Nodes, cores and versions."""
        runtime = self._runtime
        found = {} if runtime is None else {"nodes": runtime.nodes, "cores": runtime.cores}
        return {"engine": self.name, **found, "versions": versions()}

    def close(self) -> None:
        """End the runtime and the actors."""
        if self._runtime is not None:
            self._runtime.end()
            self._runtime = None

    def __enter__(self) -> FlowerSimulation:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class _Runtime:
    """Ray, and Flower's simulation on it in a thread whose server app lends us its grid. Ray is there once."""

    _only = threading.Lock()

    def __init__(self, nodes: int | None, processes: int | None) -> None:
        import ray

        if not self._only.acquire(blocking=False):
            raise InputError("A process can hold one simulation at a time. Close the other engine first.")
        self.ray: Any = ray
        self._quiet = _Quiet()
        try:
            if not ray.is_initialized():
                _start_ray(ray, processes)
        except WorkerError:
            self._only.release()
            raise
        self.cores = int(ray.cluster_resources().get("CPU", 1))
        self.nodes = nodes or self.cores
        self.actor = Actor()
        self._grid: Queue[Grid] = Queue()
        self._over = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="flower-simulation", daemon=True)

    def share(self, arrays: Arrays) -> None:
        """Put the data into Ray's store; Flower sends the actor's code, and so this reference, with every message."""
        self.actor.data = self.ray.put(arrays)

    def start(self) -> None:
        """Start the simulation and wait for its grid, with all nodes on it."""
        self._thread.start()
        end = time.monotonic() + _START
        while True:
            with contextlib.suppress(Empty):
                self.grid = self._grid.get(timeout=0.1)
                break
            self._check(end)
        while len(list(self.grid.get_node_ids())) < self.nodes:
            time.sleep(_PAUSE)
            self._check(end)

    @property
    def alive(self) -> bool:
        """Whether the simulation still runs."""
        return self._thread.is_alive()

    def _check(self, end: float = float("inf")) -> None:
        """Flower hides failures; so look whether the simulation still runs."""
        if not self.alive:
            raise WorkerError(f"Flower's simulation ended: {self._failure or 'it gave no reason'}") from self._failure
        if time.monotonic() > end:
            raise WorkerError(f"Flower's simulation was not ready after {_START:.0f} seconds.")

    def _run(self) -> None:
        try:
            resources: Any = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
            run_simulation(FlowerServer(self._lend), FlowerClient(self.actor), self.nodes, backend_config=resources)
        except BaseException as error:
            self._failure = error.__cause__ or error

    def _lend(self, grid: Grid, context: object) -> None:
        self._grid.put(grid)
        while not self._over.wait(0.5):
            if not threading.main_thread().is_alive():  # the program ends without closing the engine
                return

    def exchange(self, contents: Sequence[tuple[str, dict[str, bytes]]]) -> list[Message]:
        """Send one message to each of the first nodes; the replies, in that order. Every message gets one."""
        nodes = sorted(self.grid.get_node_ids())
        messages = [
            Message(to_content(frames), dst_node_id=nodes[place % len(nodes)], message_type=kind, ttl=_LONG)
            for place, (kind, frames) in enumerate(contents)
        ]
        sent = list(self.grid.push_messages(messages))
        if len(sent) < len(messages):
            raise WorkerError(f"Flower took {len(sent)} of {len(messages)} messages.")
        found: dict[str, Message] = {}
        while len(found) < len(sent):
            for reply in self.grid.pull_messages([m for m in sent if m not in found]):
                found[reply.metadata.reply_to_message_id] = reply
            if len(found) < len(sent):
                self._check()
                time.sleep(_PAUSE)
        return [found[m] for m in sent]

    def end(self) -> None:
        """Let the server app end, and Ray with it."""
        self._over.set()
        if self.alive:
            self._thread.join(30)
        self.ray.shutdown()
        self._quiet.end()
        self._only.release()


def _results_in(reply: Message) -> dict[int, Any]:
    """The results of a node's jobs, by their numbers."""
    answers = unpack(from_content(reply.content)["answers"])
    if answers and isinstance(answers[0], JobFailed) and answers[0].number == -1:
        raise WorkerError(f"An actor could not rebuild the run: {answers[0].reason}\n\n{answers[0].trace}")
    return {a.number: a.result if isinstance(a, Done) else a for a in answers}


def _start_ray(ray: Any, processes: int | None) -> None:
    """Start Ray here, or connect to the cluster that RAY_ADDRESS names; actors import from where we do."""
    elsewhere = bool(os.environ.get("RAY_ADDRESS"))
    places = os.pathsep.join([*filter(None, sys.path), os.environ.get("PYTHONPATH", "")])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # it tells of its own plans
            ray.init(
                num_cpus=None if elsewhere else processes or cores(),
                include_dashboard=None if elsewhere else False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                runtime_env={"env_vars": {"PYTHONPATH": places, "OMP_NUM_THREADS": "1", "FEDQUILT_WORKER": "1"}},
            )
    except Exception as error:
        raise WorkerError(f"Ray could not be started: {error}") from error


class _Quiet:
    """Flower's log lets errors through only; what matters is in the replies."""

    def __init__(self) -> None:
        self.log = logging.getLogger("flwr")
        self.before = self.log.level
        self.log.setLevel(logging.ERROR)

    def end(self) -> None:
        self.log.setLevel(self.before)
