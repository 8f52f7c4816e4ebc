"""How fast are the engines? Ratios inside one run, medians of several.

    python benchmarks/engine.py [--repeats 5] [--workload CNN LeNet B] [--json benchmarks/results/engine.json]

CNN, LeNet, MLP, ResNet-10, ViT: FedAvg, one pass in batches of 10 over each client's images, SGD.
Workload B: logistic regression, 1,000 clients x 60 images, 10 per round, batch 10, 100 rounds, evaluation every 20.
The bare loop is what one writes by hand: one nn.Module, torch.optim.SGD, preloaded tensors, one thread, the same
memory format, the same batches, the same evaluations.

Each takes its turn with a few rounds in a row, as in a run (MLP 5, CNN and LeNet 2, others 1): after a second in which
others had the caches, the first round is a slow one, and that is nobody's doing.

How much a second process is worth is the machine's doing as well as ours: neighbours slow two busy cores more than one.
So every repeat of CNN, LeNet and MLP has a control that knows nothing of this library: two processes that play half
of the bare round each, side by side. A repeat in which they need more than 0.54 of the bare round's time counts only if
there are not enough others. Both the control and the number of repeats left out are printed and kept.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from fedquilt.core.exchange import at_random
from fedquilt.core.net import Net
from fedquilt.core.seed import Seed
from fedquilt.data import IID, Federation
from fedquilt.engines.local import Local
from fedquilt.engines.workers import Workers
from fedquilt.methods.fedavg import FedAvg
from fedquilt.models.registry import make
from fedquilt.pieces.optimizers import SGD
from fedquilt.rounds.rounds import Rounds
from fedquilt.runs.runner import run


def images(count: int, shape: tuple[int, ...] = (1, 28, 28)) -> tuple[np.ndarray, np.ndarray]:
    """Noise: time does not depend on what is in the pictures."""
    rng = np.random.default_rng(0)
    return rng.random((count, *shape), dtype=np.float32), rng.integers(0, 10, count)


def bare_round(module, start, tables, cohort, lr, batch, generator):
    """One round by hand; returns the averaged state dict."""
    total, weight = {}, 0
    for client in cohort:
        module.load_state_dict(start)
        optimizer = torch.optim.SGD(module.parameters(), lr=lr)
        x, y = tables[client]
        order = torch.randperm(len(x), generator=generator)
        for low in range(0, len(x), batch):
            rows = order[low : low + batch]
            optimizer.zero_grad()
            F.cross_entropy(module(x[rows]), y[rows]).backward()
            optimizer.step()
        for name, value in module.state_dict().items():
            total[name] = total.get(name, 0) + value * len(x)
        weight += len(x)
    return {n: (v / weight).to(start[n].dtype) for n, v in total.items()}


MODELS: dict[str, tuple[str, tuple[int, ...], int, int, dict[str, Any]]] = {  # shape, clients, rows of each, options
    "CNN": ("fedavg_cnn", (1, 28, 28), 20, 100, {}),
    "LeNet": ("lenet5", (1, 28, 28), 20, 250, {}),
    "MLP": ("mlp", (1, 28, 28), 20, 500, {}),
    "ResNet-10": ("resnet10", (3, 32, 32), 6, 20, {}),
    "ViT": ("vit_tiny", (3, 32, 32), 6, 40, {}),
}


PAIRED = ("CNN", "LeNet", "MLP")  # those whose ``workers`` are judged
IN_A_ROW = {"MLP": 5, "CNN": 2, "LeNet": 2}  # rounds
QUIET = 0.54  # of the bare round's time, for two halves of it side by side
PATIENCE = 8  # times the repeats that are wanted, until enough were quiet


class Pair:
    """Two processes that play half of a round by hand each, at the same time: what two cores give here, now."""

    def __init__(self, halves: list[Callable[[], object]]) -> None:
        context = multiprocessing.get_context("fork")
        self._doors = []
        for half in halves:
            ours, theirs = context.Pipe()
            context.Process(target=self._serve, args=(half, theirs), daemon=True).start()
            self._doors.append(ours)

    @staticmethod
    def _serve(half: Callable[[], object], door: Any) -> None:
        while door.recv():
            half()
            door.send(True)

    def play(self) -> None:
        """Both halves."""
        for door in self._doors:
            door.send(True)
        for door in self._doors:
            door.recv()

    def close(self) -> None:
        """End the processes."""
        for door in self._doors:
            door.send(False)


def workload(name: str, repeats: int) -> dict[str, Any]:
    """One round of FedAvg with batches of 10: by hand, on ``local`` and on two ``workers``."""
    kind, shape, clients, rows, options = MODELS[name]
    x, y = images(clients * rows, shape)
    federation = Federation.from_arrays(x, y, partition=IID(), clients=clients, test=0.0, valid=0.0, standardise=None)
    net = Net(make(kind, shape, 10, **options))
    method = FedAvg(objective=net, optimizer=SGD(0.01), batch_size=10)
    form = torch.channels_last if net._resident().channels_last else torch.contiguous_format
    tables = {}
    for client in federation.ids:
        held = federation.site(client, 0).train.whole()
        tables[client] = held.x.contiguous(memory_format=form), held.y
    module = net.build().to(memory_format=form)
    start = {n: t.clone() for n, t in module.state_dict().items()}
    generator = torch.Generator()
    by_hand = partial(bare_round, module, start, tables, lr=0.01, batch=10, generator=generator)
    pair = Pair([partial(by_hand, federation.ids[k::2]) for k in range(2)]) if name in PAIRED else None
    local = Rounds(method, federation, Local(), Seed(0))
    rows: list[dict[str, float]] = []
    with Workers(2) as engine:
        workers = Rounds(method, federation, engine, Seed(0))
        turns = {"bare": partial(by_hand, federation.ids), "local": local.play, "workers": workers.play}
        turns |= {} if pair is None else {"pair": pair.play}
        while len(rows) <= PATIENCE * repeats and sum(map(quiet, rows[1:])) < repeats:  # the first round warms up
            rows.append({who: seconds(work, IN_A_ROW.get(name, 1)) for who, work in turns.items()})
        if local.digest() != workers.digest():
            raise SystemExit("local and workers disagree: the timing means nothing")
    if pair is not None:
        pair.close()
    good = [row for row in rows[1:] if quiet(row)]
    kept = good if len(good) == repeats else rows[1:]
    times: dict[str, Any] = {who: statistics.median(row[who] for row in kept) for who in turns}
    return times | {"left out": len(rows) - 1 - len(kept)}


def quiet(row: dict[str, float]) -> bool:
    """Whether two processes by hand got what two cores can give."""
    return row.get("pair", 0.0) <= QUIET * row["bare"]


def seconds(work: Callable[[], object], times: int) -> float:
    """How long it takes, as a mean of so many times in a row."""
    began = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - began) / times


def bare_b(x, y, federation, rounds: int) -> None:
    """The whole of workload B by hand, evaluations included."""
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))
    state = {n: t.clone() for n, t in module.state_dict().items()}
    tables, tests = {}, {}
    for client in federation.ids:
        rows = federation.site(client, 0).train.whole()
        tables[client] = rows.x, rows.y
        held = federation.evaluation(client, "test").whole()
        tests[client] = held.x, held.y
    generator, rng = torch.Generator(), np.random.default_rng(0)
    for number in range(rounds):
        cohort = rng.choice(1000, 10, replace=False)
        state = bare_round(module, state, tables, [int(c) for c in cohort], 0.01, 10, generator)
        if (number + 1) % 20 == 0:
            module.load_state_dict(state)
            with torch.no_grad():
                for held, labels in tests.values():
                    scores = module(held)
                    F.cross_entropy(scores, labels).item()
                    (scores.argmax(1) == labels).sum().item()


def workload_b(repeats: int) -> dict[str, Any]:
    x, y = images(75_000)  # a fifth of each client's 75 rows is held out for evaluation
    times: dict[str, list[float]] = {"bare": [], "fedquilt": []}
    for repeat in range(repeats + 1):
        federation = Federation.from_arrays(x, y, partition=IID(), clients=1000, test=0.2, valid=0.0, standardise=None)
        began = time.perf_counter()
        bare_b(x, y, federation, 100)
        bare = time.perf_counter() - began
        began = time.perf_counter()
        net = Net(make("logistic", (1, 28, 28), 10))
        method = FedAvg(objective=net, optimizer=SGD(0.01), batch_size=10, cohort=at_random(10))
        for _ in run(method, federation, rounds=100, engine="auto", evaluate_every=20):
            pass
        if repeat:
            times["bare"].append(bare)
            times["fedquilt"].append(time.perf_counter() - began)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--workload", nargs="+", default=[*MODELS, "B"], choices=[*MODELS, "B"])
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/engine.json"))
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    results, failed = {}, []
    limits = {name: [("local / bare", 1.05)] for name in MODELS} | {"B": [("fedquilt / bare", 1.50)]}
    for name in PAIRED:
        limits[name].append(("workers / local", 0.55))
    for name in chosen.workload:
        times = workload_b(chosen.repeats) if name == "B" else workload(name, chosen.repeats)
        left_out = times.pop("left out", 0)
        print(f"{name}: " + ", ".join(f"{k} {v:.3f} s" for k, v in times.items()) + f"; {left_out} repeats left out")
        ratios = {}
        if "pair" in times:
            ratios["pair / bare"] = times["pair"] / times["bare"]
            print(f"  pair / bare = {ratios['pair / bare']:.3f}   (what two processes by hand need here)")
        for label, limit in limits[name]:
            over, under = label.split(" / ")
            ratios[label] = times[over] / times[under]
            good = ratios[label] <= limit
            print(f"  {label} = {ratios[label]:.3f}   (at most {limit}) {'ok' if good else 'TOO SLOW'}")
            failed += [] if good else [label]
        results[name] = {"seconds": times, "ratios": ratios, "left out": left_out}
    chosen.json.parent.mkdir(parents=True, exist_ok=True)
    chosen.json.write_text(json.dumps(results, indent=1))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
