"""The program of a worker process: ``python -m fedquilt.engines.worker SOCKET``."""

from __future__ import annotations

import contextlib
import os
import runpy
import signal
import socket
import sys
import time
import traceback
import types
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from fedquilt import own_code
from fedquilt.core.describe import build, describe, find
from fedquilt.core.exchange import Method
from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId
from fedquilt.engines.kept_memory import give_back
from fedquilt.engines.lanes import update_together
from fedquilt.engines.pipe import Pipe, mapped
from fedquilt.errors import ExchangeError, FedquiltError
from fedquilt.records.record import record
from fedquilt.rounds.client import ClientSide, Evaluation, Score, Task
from fedquilt.rounds.phases import peak_bytes

READY = -1  # the number of the answer to Begin


@record(name="fedquilt.engines.worker:Begin")
class Begin:
    """A run begins: what to build here, and where the data are."""

    method: object
    source: str
    prepare: object
    layout: object
    index: Any
    score: object
    seed: int
    main: str | None
    path: list[str]
    device: str | None
    code: list[list[Any]]  # of the user's own that all this names


def begin_of(method: Method, source: Any, seed: Seed, score: Score | None, index: object) -> Begin:
    """What processes are told that build a run of importable things; ``index`` says where the data are."""
    method_, prepare, score_ = describe(method), describe(source.prepare, "prepare"), describe(score, "score")
    return Begin(
        method=method_,
        source=f"{type(source).__module__}:{type(source).__qualname__}",
        prepare=prepare,
        layout=source.layout(),
        index=index,
        score=score_,
        seed=seed.value,
        main=None,
        path=[],
        device=None,
        code=own_code.packed(own_code.used(method_, prepare, score_, index)),
    )


@record(name="fedquilt.engines.worker:Job")
class WorkerJob:
    """A task or an evaluation, numbered. A download equal to the last one is left out; so is a global model (b"")."""

    number: int
    what: Task | Evaluation | Several | Together


@record(name="fedquilt.engines.worker:Together")
class Together:
    """Client updates to make side by side; a download equal to the first one's is left out."""

    down: bytes | None
    tasks: tuple[Task, ...]


@record(name="fedquilt.engines.worker:Several")
class Several:
    """Tasks or evaluations to do one after another. A download and a global model equal to the first one's are left out
    of the parts (None and b"")."""

    down: bytes | None
    whole: bytes | None
    parts: tuple[Task | Evaluation, ...]


@record(name="fedquilt.engines.worker:Done")
class Done:
    """The result of a job, and how long it took."""

    number: int
    result: object
    seconds: float = 0.0


@record(name="fedquilt.engines.worker:Failed")
class JobFailed:
    """A job that raised: where, and what it said."""

    number: int
    stage: str
    reason: str
    trace: str
    told: bool
    client: ClientId = None


Work = Task | Evaluation | Several | Together


def together(tasks: Sequence[Task]) -> Together:
    """These client updates as one job."""
    first = tasks[0].down
    return Together(first, tuple(replace(t, down=None) if t.down is first else t for t in tasks))


def several(parts: Sequence[Task | Evaluation]) -> Task | Evaluation | Several:
    """These as one job."""
    if len(parts) == 1:
        return parts[0]
    down, whole = parts[0].down, getattr(parts[0], "whole", None)
    return Several(down, whole, tuple(_without(part, down, whole) for part in parts))


def _without(part: Task | Evaluation, down: bytes | None, whole: bytes | None) -> Task | Evaluation:
    left_out: dict[str, Any] = {"down": None} if part.down is down else {}
    if isinstance(part, Evaluation) and part.whole is not None and part.whole is whole:
        left_out["whole"] = b""
    return replace(part, **left_out) if left_out else part


def serve(pipe: Pipe) -> None:
    """Answer jobs until the other side goes away."""
    side: ClientSide | None = None
    down: bytes | None = None
    whole: bytes | None = None
    while True:
        try:
            message = pipe.receive()
        except (EOFError, ConnectionError):
            return
        if isinstance(message, Begin):
            descriptor = pipe.receive_descriptor()
            try:
                side, down, whole = _begin(message, descriptor), None, None
                side.room = pipe.room
            except Exception as error:
                pipe.send(JobFailed(READY, "begin", f"{type(error).__name__}: {error}", traceback.format_exc(), True))
                continue
            pipe.send(Done(READY, None))
        elif isinstance(message, WorkerJob) and side is not None:
            what = message.what
            down = what.down if what.down is not None else down
            whole = (what.whole or whole) if isinstance(what, Evaluation | Several) else whole
            pipe.send(answer(side, message, down, whole))
        else:
            pipe.send(Done(-2, {"peak_bytes": peak_bytes()}))


def _begin(message: Begin, descriptor: int) -> ClientSide:
    sys.path[:] = [p for p in message.path if p not in sys.path] + sys.path
    if message.main is not None and getattr(sys.modules["__main__"], "__file__", None) != message.main:
        _adopt_main(message.main)
    own_code.let_in(own_code.unpacked(message.code))
    tensors = mapped(descriptor, message.index)
    source = find(message.source).from_shared(tensors, message.layout, build(message.prepare))
    device = None if message.device is None else torch.device(message.device)
    return ClientSide(build(message.method), source, Seed(message.seed), build(message.score), device)


def _adopt_main(path: str) -> None:
    """Run the user's script under another name, so that what it defines can be found here too."""
    module = types.ModuleType("__mp_main__")
    sys.argv = [path]
    sys.modules["__mp_main__"] = sys.modules["__main__"] = module
    module.__dict__.update(runpy.run_path(path, run_name="__mp_main__"))


def answer(side: ClientSide, job: WorkerJob, down: bytes | None, whole: bytes | None) -> Done | JobFailed:
    """The result of a job whose frames were left out of it."""
    what, began = job.what, time.perf_counter()
    parts = what.parts if isinstance(what, Several) else (what,)
    results: list[object] = []
    for part in parts:
        try:
            results.append(_result(side, part, down, whole))
            give_back()
        except ExchangeError as error:
            client = getattr(part, "client", error.client)
            return JobFailed(job.number, error.stage, error.reason, traceback.format_exc(), False, client)
        except Exception as error:
            told, client = isinstance(error, FedquiltError), getattr(part, "client", None)
            text = str(error) if told else own_code.told(error)
            return JobFailed(job.number, "evaluation", text, traceback.format_exc(), told, client)
    return Done(job.number, tuple(results) if isinstance(what, Several) else results[0], time.perf_counter() - began)


def _result(side: ClientSide, what: Task | Evaluation | Together, down: bytes | None, whole: bytes | None) -> object:
    """What came of a client update, of some side by side, or of an evaluation."""
    if isinstance(what, Together):
        return update_together(side, [replace(t, down=down) if t.down is None else t for t in what.tasks])
    if what.down is None:
        what = replace(what, down=down)
    if isinstance(what, Task):
        return side.update(what)
    return side.evaluation(replace(what, whole=whole) if what.whole == b"" else what)


def _stand_back() -> None:
    """A job that arrives must not interrupt whoever sends it: the other workers wait for theirs."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def main(door: socket.socket) -> None:
    """Serve on this socket."""
    os.environ["FEDQUILT_WORKER"] = "1"
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to stop
    torch.set_num_threads(1)
    _stand_back()
    with contextlib.suppress(ConnectionError, EOFError):  # the parent went away while an answer was on its way
        pipe = Pipe(door)
        pipe.accept()
        serve(pipe)


if __name__ == "__main__":
    # Records are found by the module they were defined in, so serve from the imported module, not from this one.
    from fedquilt.engines import worker

    worker.main(socket.socket(fileno=int(sys.argv[1])))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # nothing is left to clean up, and taking torch apart would take a second
