"""How fast are the engines? Ratios inside one run, medians of several.

    python benchmarks/engine.py [--repeats 5] [--workload CNN LeNet B] [--json benchmarks/results/engine.json]

CNN, LeNet, MLP, ResNet-10, ViT: FedAvg, one pass in batches of 10 over each client's images, SGD.
Workload B: logistic regression, 1,000 clients x 60 images, 10 per round, batch 10, 100 rounds, evaluation every 20.
The bare loop is what one writes by hand: one nn.Module, torch.optim.SGD, preloaded tensors, one thread, the same
memory format, the same batches, the same evaluations.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
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
from fedquilt.engines.rounds import Rounds
from fedquilt.engines.workers import Workers
from fedquilt.methods.fedavg import FedAvg
from fedquilt.models.registry import make
from fedquilt.pieces.optimizers import SGD
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


def workload(name: str, repeats: int) -> dict[str, float]:
    """One round of FedAvg with batches of 10: by hand, on ``local`` and on two ``workers``."""
    kind, shape, clients, rows, options = MODELS[name]
    x, y = images(clients * rows, shape)
    federation = Federation.from_arrays(x, y, partition=IID(), clients=clients, test=0.0, valid=0.0)
    net = Net(make(kind, shape, 10, **options))
    method = FedAvg(objective=net, optimizer=SGD(0.01), batch_size=10)
    form = torch.channels_last if net._resident().channels_last else torch.contiguous_format
    tables = {}
    for client in federation.ids:
        held = federation.site(client, 0).train.whole()
        tables[client] = held.x.contiguous(memory_format=form), held.y
    module = net.build().to(memory_format=form)
    start = {n: t.clone() for n, t in module.state_dict().items()}
    local = Rounds(method, federation, Local(), Seed(0))
    times: dict[str, list[float]] = {"bare": [], "local": [], "workers": []}
    with Workers(2) as engine:
        workers = Rounds(method, federation, engine, Seed(0))
        generator = torch.Generator()
        for repeat in range(repeats + 1):
            for who, work in (
                ("bare", lambda: bare_round(module, start, tables, federation.ids, 0.01, 10, generator)),
                ("local", local.play),
                ("workers", workers.play),
            ):
                began = time.perf_counter()
                work()
                if repeat:  # the first round warms up
                    times[who].append(time.perf_counter() - began)
        if local.digest() != workers.digest():
            raise SystemExit("local and workers disagree: the timing means nothing")
    return {who: statistics.median(values) for who, values in times.items()}


def bare_b(x, y, federation, rounds: int) -> None:
    """The whole of workload B by hand, evaluations included."""
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))
    state = {n: t.clone() for n, t in module.state_dict().items()}
    tables, tests = {}, {}
    for client in federation.ids:
        rows = federation.site(client, 0).train.whole()
        tables[client] = rows.x, rows.y
        held = federation.exam(client, "test").whole()
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


def workload_b(repeats: int) -> dict[str, float]:
    x, y = images(75_000)  # a fifth of each client's 75 rows is held out for evaluation
    times: dict[str, list[float]] = {"bare": [], "fedquilt": []}
    for repeat in range(repeats + 1):
        federation = Federation.from_arrays(x, y, partition=IID(), clients=1000, test=0.2, valid=0.0)
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
    for name in ("CNN", "LeNet", "MLP"):
        limits[name].append(("workers / local", 0.55))
    for name in chosen.workload:
        times = workload_b(chosen.repeats) if name == "B" else workload(name, chosen.repeats)
        print(f"{name}: " + ", ".join(f"{k} {v:.3f} s" for k, v in times.items()))
        ratios = {}
        for label, limit in limits[name]:
            over, under = label.split(" / ")
            ratios[label] = times[over] / times[under]
            good = ratios[label] <= limit
            print(f"  {label} = {ratios[label]:.3f}   (at most {limit}) {'ok' if good else 'TOO SLOW'}")
            failed += [] if good else [label]
        results[name] = {"seconds": times, "ratios": ratios}
    chosen.json.parent.mkdir(parents=True, exist_ok=True)
    chosen.json.write_text(json.dumps(results, indent=1))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
