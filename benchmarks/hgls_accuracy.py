"""How much does HGLS add to a personal head? Accuracy of methods on fresh seeds, with paired tests.

    python benchmarks/hgls_accuracy.py [--settings fashion-0.5 fashion-0.1 cifar10-0.2] [--seeds 0 1 2 3 4]
        [--methods fedavg fedper ...] [--results benchmarks/results/hgls_accuracy.jsonl] [--table]

It needs fashion_mnist and cifar10 in FEDQUILT_DATA. Every finished run is a line of the file of results and is not made
again; --table only prints the table of what is there. A seed gives the images, their division among the clients and
all randomness of training, the same for every method, so methods are compared pairwise on equal ground.

20 clients, Dirichlet over labels, FedAvgCNN, SGD with 0.01, batches of 10, two local epochs, everyone every round. Half
of each client's samples are for the test, and the models of the last round are scored: nothing is chosen by accuracy.
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

import torch
from scipy import stats

from fedquilt.config.config import parse
from fedquilt.runs.build import federation_of, method_of
from fedquilt.runs.runner import run

CODED = {"gradient": "last_batch", "search_base": "local"}
HOME = {"kind": "hgls", "mean_head": False}
METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {"kind": "fedavg"},
    "fedper": {"kind": "fedper"},
    "fedper + 2 head epochs": {"kind": "fedper_finetune"},
    "hgls, own gradient only": {**HOME, "own_only": True},
    "hgls as coded": {**HOME, **CODED},
    "hgls as coded + hgc": {**HOME, **CODED, "gradient_codec": "hgc"},
    "hgls": HOME,
    "hgls + hgc": {**HOME, "gradient_codec": "hgc"},
    "hgls joint, ridge": {**HOME, "search": "joint"},
    "hgls joint, ridge + hgc": {**HOME, "search": "joint", "gradient_codec": "hgc"},
    "hgls joint, held out": {**HOME, "search": "joint", "ridge": 0.0, "accept": "held_out"},
}
SETTINGS = {
    "fashion-0.5": {"source": "fashion_mnist", "alpha": 0.5, "limit": 2000, "rounds": 12},
    "fashion-0.1": {"source": "fashion_mnist", "alpha": 0.1, "limit": 2000, "rounds": 12},
    "cifar10-0.2": {"source": "cifar10", "alpha": 0.2, "limit": 1500, "rounds": 10},
}
AGAINST = ("fedper", "fedper + 2 head epochs")


def config(setting: str, method: str, seed: int) -> Any:
    """The settings of one run."""
    chosen = SETTINGS[setting]
    return parse(
        {
            "name": "hgls",
            "rounds": chosen["rounds"],
            "seed": seed,
            "model": {"kind": "fedavg_cnn"},
            "method": METHODS[method],
            "data": {
                "source": chosen["source"],
                "limit": chosen["limit"],
                "clients": 20,
                "test": 0.5,
                "valid": 0.0,
                "mean": 0.5,
                "std": 0.5,
                "seed": seed,
                "partition": {"kind": "dirichlet", "alpha": chosen["alpha"], "minimum": 20},
            },
            "train": {"epochs": 2, "batch_size": 10, "optimizer": {"kind": "sgd", "lr": 0.01}},
        }
    )


def play(setting: str, method: str, seed: int, data: dict[Any, Any]) -> dict[str, Any]:
    """One run, as a line of the file of results."""
    wanted, began = config(setting, method, seed), time.perf_counter()
    if (setting, seed) not in data:
        data.clear()
        data[setting, seed] = federation_of(wanted)
    federation, up, down = data[setting, seed], 0, 0
    for snapshot in run(
        method_of(wanted, federation), federation, rounds=wanted.rounds, seed=seed, engine="local", evaluate_every=4
    ):
        up, down = up + snapshot.log.bytes_up, down + snapshot.log.bytes_down
        last = snapshot
    tally = getattr(last.state, "tally", None)
    return {
        "setting": setting,
        "method": method,
        "seed": seed,
        "accuracy": last.metrics["test_accuracy"],
        "pooled": last.metrics["test_accuracy_pooled"],
        "worst10": last.metrics["test_accuracy_worst10"],
        "megabytes_up": up / 1e6,
        "megabytes_down": down / 1e6,
        "seconds": time.perf_counter() - began,
        "aligned": tally and tally.aligned,
        "taken": tally and tally.taken,
        "state": last.digest(),
    }


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of the file of results."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def versus(found: dict[int, float], other: dict[int, float]) -> str:
    """The mean difference in points over common seeds, how often it is positive, and the paired t-test's p."""
    seeds = sorted(found.keys() & other.keys())
    gaps = [100 * (found[s] - other[s]) for s in seeds]
    if len(gaps) < 2 or not any(gaps):
        return "-"
    p = float(stats.ttest_1samp(gaps, 0.0).pvalue)
    won = sum(g > 0 for g in gaps)
    return f"{statistics.mean(gaps):+.1f} ({won}/{len(gaps)}, p {'< 0.001' if p < 0.001 else f'= {p:.3f}'})"


def table(rows: list[dict[str, Any]], setting: str) -> str:
    """The table of one setting, in Markdown."""
    here = [r for r in rows if r["setting"] == setting]
    pooled = {m: {r["seed"]: r["pooled"] for r in here if r["method"] == m} for m in METHODS}
    lines = [
        f"**{setting}**\n",
        "| method | all test samples, % | mean over clients, % | MB up | MB down | against FedPer, points "
        "| against 2 head epochs, points | seeds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for method in METHODS:
        mine = [r for r in here if r["method"] == method]
        if mine:
            values = [100 * r["pooled"] for r in mine]
            spread = statistics.stdev(values) if len(values) > 1 else math.nan
            gaps = " | ".join("" if method == o else versus(pooled[method], pooled[o]) for o in AGAINST)
            clients, up, down = (
                statistics.mean(r[n] for r in mine) for n in ("accuracy", "megabytes_up", "megabytes_down")
            )
            lines.append(
                f"| {method} | {statistics.mean(values):.1f} ± {spread:.1f} | {100 * clients:.1f} | {up:.0f} | "
                f"{down:.0f} | {gaps} | {len(mine)} |"
            )
    return "\n".join(lines)


def main() -> None:
    """Make the runs that are missing, then print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/hgls_accuracy.jsonl"))
    parser.add_argument("--table", action="store_true")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    data: dict[Any, Any] = {}
    for setting in () if chosen.table else chosen.settings:
        for seed in chosen.seeds:
            for method in chosen.methods:
                done = {(r["setting"], r["method"], r["seed"]) for r in read(chosen.results)}
                if (setting, method, seed) not in done:
                    line = play(setting, method, seed, data)
                    chosen.results.parent.mkdir(parents=True, exist_ok=True)
                    with chosen.results.open("a") as file:
                        file.write(json.dumps(line) + "\n")
                    print({k: v for k, v in line.items() if k != "state"}, file=sys.stderr, flush=True)
    for setting in chosen.settings:
        print(table(read(chosen.results), setting), end="\n\n")


if __name__ == "__main__":
    main()
