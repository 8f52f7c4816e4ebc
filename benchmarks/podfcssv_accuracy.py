"""Does anchoring to a bank of prototypes keep features from being forgotten? Probes on a stream of CIFAR-10.

    python benchmarks/podfcssv_accuracy.py --pretrained FOLDER [--seeds 0 1 2] [--methods frozen fedmae ...]
        [--results benchmarks/results/podfcssv_accuracy.jsonl] [--table]

It needs cifar10 in FEDQUILT_DATA and a backbone that ``fedquilt pretrain-mae`` trained on half of its training samples
(data.pretraining = 0.5, data.seed = 0). Every finished run is a line of the file of results and is not made again;
--table only prints the tables of what is there.

Five tasks of two classes, three rounds each; four clients with Dirichlet(1) shares of 250 training samples a task on
average; the rows are drawn by the seed from the other half, so the backbone saw none of them. Adapters of 16 numbers
behind every block, AdamW 0.001, batches of 50, two local epochs. After every task the features of 500 training samples
a task are probed on 500 test samples: a linear layer and 20 neighbours, within each task and over all ten classes.
Clients that learn alone are probed one by one; their mean is told. ``joint`` trains on the pooled rows of all tasks,
with as many passes over images as the others: it never meets a task, so it forgets none. A seed gives rows, their
division and all randomness of training, the same for every method.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats

from fedquilt.analysis.continual import TaskEvaluator, summary
from fedquilt.config.data import set_aside
from fedquilt.core.seed import Seed
from fedquilt.data import Dirichlet, Federation, Pixels
from fedquilt.data.sources.sources import read as read_source
from fedquilt.data.streams.streams import Stream
from fedquilt.methods.self_supervised.podfcssv import PODFCSSV, FedMAE, MAEAlone, MAEPooled
from fedquilt.models.registry import net as net_called
from fedquilt.pieces.optimizers import AdamW
from fedquilt.runs.runner import run

MEAN, STD = (0.491, 0.482, 0.447), (0.247, 0.244, 0.262)
TASKS = ((0, 1), (2, 3), (4, 5), (6, 7), (8, 9))
CLIENTS, ROWS, ROUNDS, PROBED = 4, 2000, 3, 500
WORK: dict[str, Any] = {"optimizer": AdamW(1e-3, weight_decay=0.05), "batch_size": 50, "epochs": 2}
METHODS: dict[str, tuple[Any, dict[str, Any]]] = {
    "frozen": (None, {}),
    "joint": (MAEPooled, {}),
    "pooled, task after task": (MAEPooled, {}),
    "alone": (MAEAlone, {}),
    "fedmae": (FedMAE, {}),
    **{
        f"podfcssv {weight}{', centred' * center}": (PODFCSSV, {"lambda_proto": weight, "center": center})
        for weight in (0.01, 0.1, 1.0)
        for center in (False, True)
    },
}


def stream(seed: int) -> Stream:
    """The tasks of a seed."""
    _, arrays = set_aside(read_source("cifar10"), 0.5, 0)
    tasks = []
    for number, classes in enumerate(TASKS):
        here = np.flatnonzero(np.isin(arrays.y, classes))
        rows = np.sort(Seed(seed).fold("rows", number).numpy().choice(here, ROWS, replace=False))
        tasks.append(
            Federation.from_arrays(
                arrays.x[rows],
                arrays.y[rows],
                Dirichlet(1.0),
                CLIENTS,
                test=0.5,
                valid=0.0,
                seed=seed,
                classes=10,
                prepare=Pixels(MEAN, STD),
            )
        )
    return Stream.of(tasks, ROUNDS)


def play(name: str, seed: int, pretrained: str, data: dict[int, Stream]) -> dict[str, Any]:
    """One run, as a line of the file of results."""
    began, (make, options) = time.perf_counter(), METHODS[name]
    if seed not in data:
        data.clear()
        data[seed] = stream(seed)
    tasks = data[seed]
    net = net_called("mae", (3, 32, 32), 10, pretrained=pretrained, bottleneck=16)
    method = (make or FedMAE)(net, **WORK, **options)
    evaluator = TaskEvaluator(method, tasks, tuple(range(len(TASKS))), PROBED, seed=Seed(seed))
    before = evaluator.scores(net.init(Seed(seed).fold("server")))
    after, up, down, banks, spent = [], 0, 0, [], 0.0
    source: Any = tasks.together() if name == "joint" else tasks
    rounds = 0 if make is None else ROUNDS if name == "joint" else ROUNDS * len(TASKS)
    for snapshot in run(method, source, rounds=rounds, seed=seed, engine="local", score=None) if rounds else ():
        up, down = up + snapshot.log.bytes_up, down + snapshot.log.bytes_down
        spent += snapshot.log.seconds
        banks.append(len(snapshot.state.bank))
        if snapshot.round % ROUNDS == 0:
            whole = method.global_model(snapshot.state)
            models = [snapshot.personal_model(c) for c in tasks.evaluated] if whole is None else [whole]
            after.append(evaluator.mean_scores(models))
    if len(after) == len(TASKS):
        found = summary(before, after)
    else:  # no tasks were met: the scores at the end are all there is
        end = after[-1] if after else before
        found = {n: {"average": statistics.mean(v), "forgetting": None, "before": before[n]} for n, v in end.items()}
    return {
        "method": name,
        "seed": seed,
        "measures": found,
        "bank": banks,
        "bytes_up": up,
        "bytes_down": down,
        "seconds": time.perf_counter() - began,
        "training_seconds": spent,
    }


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of the file of results."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def versus(found: dict[int, float], other: dict[int, float], scale: float = 100.0) -> str:
    """The mean difference in points over common seeds, how often it is positive, and the paired t-test's p."""
    gaps = [scale * (found[s] - other[s]) for s in sorted(found.keys() & other.keys())]
    if len(gaps) < 2 or not any(gaps):
        return "-"
    p = float(stats.ttest_1samp(gaps, 0.0).pvalue)
    return f"{statistics.mean(gaps):+.1f} ({sum(g > 0 for g in gaps)}/{len(gaps)}, p = {p:.3f})"


def table(rows: list[dict[str, Any]], measure: str) -> str:
    """Average accuracy and forgetting of one measure, in Markdown."""
    averages, forgotten = (
        {m: {r["seed"]: r["measures"][measure][what] for r in rows if r["method"] == m} for m in METHODS}
        for what in ("average", "forgetting")
    )
    lines = [
        f"**{measure}**\n",
        "| method | average accuracy, % | forgetting, points | average against fedmae | forgetting against fedmae "
        "| average against frozen | rows of the bank | MB up | seeds |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for method in METHODS:
        mine = [r for r in rows if r["method"] == method]
        if not mine:
            continue
        lost = {s: v for s, v in forgotten[method].items() if v is not None}
        base = {s: v for s, v in forgotten["fedmae"].items() if v is not None}
        bank = [r["bank"][-1] for r in mine if r["bank"]]
        lines.append(
            f"| {method} | {_spread(averages[method].values())} | {_spread(lost.values())} | "
            f"{'' if method == 'fedmae' else versus(averages[method], averages['fedmae'])} | "
            f"{'' if method == 'fedmae' else versus(lost, base)} | "
            f"{'' if method == 'frozen' else versus(averages[method], averages['frozen'])} | "
            f"{statistics.mean(bank) if bank else 0:.0f} | {statistics.mean(r['bytes_up'] for r in mine) / 1e6:.1f} | "
            f"{len(mine)} |"
        )
    return "\n".join(lines)


def _spread(values: Any) -> str:
    some = [100 * v for v in values]
    if not some:
        return "-"
    return f"{statistics.mean(some):.1f} ± {statistics.stdev(some) if len(some) > 1 else math.nan:.1f}"


def main() -> None:
    """Make the runs that are missing, then print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pretrained", help="The folder that fedquilt pretrain-mae wrote.")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/podfcssv_accuracy.jsonl"))
    parser.add_argument("--table", action="store_true")
    chosen = parser.parse_args()
    if not chosen.table and chosen.pretrained is None:
        parser.error("--pretrained is needed: a backbone that was never trained proves nothing.")
    torch.set_num_threads(1)
    data: dict[int, Stream] = {}
    for seed in () if chosen.table else chosen.seeds:
        for method in chosen.methods:
            if (method, seed) not in {(r["method"], r["seed"]) for r in read(chosen.results)}:
                line = play(method, seed, chosen.pretrained, data)
                chosen.results.parent.mkdir(parents=True, exist_ok=True)
                with chosen.results.open("a") as file:
                    file.write(json.dumps(line) + "\n")
                told = {n: {k: m[k] for k in ("average", "forgetting")} for n, m in line["measures"].items()}
                print({**{k: v for k, v in line.items() if k != "measures"}, **told}, file=sys.stderr, flush=True)
    for measure in ("probe", "neighbours", "probe_all", "neighbours_all"):
        print(table(read(chosen.results), measure), end="\n\n")


if __name__ == "__main__":
    main()
