"""What this machine does: training steps per second on each engine, and what to set."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np

from fedquilt.core.net import Net
from fedquilt.core.plain import Row
from fedquilt.core.seed import Seed
from fedquilt.data import IID, Federation
from fedquilt.engines.lanes import Lanes
from fedquilt.engines.local import Local
from fedquilt.engines.pipe import POSIX
from fedquilt.engines.workers import Workers, cores
from fedquilt.errors import InputError
from fedquilt.methods.fedavg import FedAvg
from fedquilt.models.registry import make
from fedquilt.pieces.optimizers import SGD
from fedquilt.rounds.engine import Engine
from fedquilt.rounds.rounds import Rounds

MODELS = ("logistic", "mlp", "lenet5", "fedavg_cnn")
WORTH = 1.1  # an engine is worth naming if it is so much faster than ``local``
BATCH, SHAPE, CLASSES = 10, (1, 28, 28), 10


def measured(
    models: Sequence[str] = MODELS, processes: int | None = None, seconds: float = 1.5, clients: int = 8, rows: int = 50
) -> Iterator[Row]:
    """For each model and engine: steps per second of FedAvg with batches of 10, and the memory that is taken.

    Args:
        models: Kinds of :func:`fedquilt.models.registry.make`, for grey images of 28 x 28.
        processes: Of the engine ``workers``; by default one per core.
        seconds: How long each pair is measured, at least two rounds.
        clients, rows: How many clients, and how many images each of them has.
    """
    if seconds <= 0:
        raise InputError(f"seconds must be more than 0, got {seconds}.")
    rng = np.random.default_rng(0)
    x = rng.random((clients * rows, *SHAPE), dtype=np.float32)
    federation = Federation.from_arrays(
        x, np.arange(len(x)) % CLASSES, IID(), clients, test=0.0, valid=0.0, standardise=None
    )
    engines: dict[str, Engine] = {"local": Local(), "lanes": Lanes(clients)}
    count = processes or cores()
    if count > 1 and POSIX:
        engines["workers"] = Workers(count)
    steps = clients * -(-rows // BATCH)
    for kind in models:
        net = Net(make(kind, SHAPE, CLASSES))
        method = FedAvg(objective=net, optimizer=SGD(0.01), batch_size=BATCH)
        for name, engine in engines.items():
            with closing(engine):
                rounds = Rounds(method, federation, engine, Seed(0))
                spent = _round_seconds(rounds, seconds)
                memory = _megabytes(engine)
            yield {"model": kind, "engine": name, "steps_per_second": steps / spent, "memory_mb": memory}


def _round_seconds(rounds: Rounds, seconds: float) -> float:
    rounds.play()  # makes everything warm
    began, played = time.perf_counter(), 0
    while played < 2 or time.perf_counter() - began < seconds:
        rounds.play()
        played += 1
    return (time.perf_counter() - began) / played


def _megabytes(engine: Engine) -> float | None:
    """What this process and the engine's own take now, shared pages once; None where the system does not tell."""
    try:
        return sum(_pss(pid) for pid in ("self", *getattr(engine, "pids", ()))) / 2**20
    except (OSError, StopIteration):
        return None


def _pss(process: int | str) -> int:
    lines = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def advice(rows: Sequence[Row]) -> list[dict[str, str]]:
    """For each model the fastest engine, and what to set for it."""
    found = []
    for kind in dict.fromkeys(row["model"] for row in rows):
        speeds = {row["engine"]: row["steps_per_second"] for row in rows if row["model"] == kind}
        best = max(speeds, key=speeds.__getitem__)
        if speeds[best] < WORTH * speeds["local"]:
            best = "local"
        found.append(
            {"model": kind, "best": best, "times_local": f"{speeds[best] / speeds['local']:.1f}", "set": _SET[best]}
        )
    return found


_SET = {
    "local": "nothing: 'auto' begins with it; engine.kind=local never starts other processes",
    "workers": "nothing for long runs: 'auto' moves to it; engine.kind=workers starts with it",
    "lanes": "engine.kind=lanes (equal to 'local' but for rounding)",
}
