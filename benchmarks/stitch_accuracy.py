"""Accuracy against megabytes sent up: Localize-and-Stitch with and without error feedback, beside FedAvg.

    FEDQUILT_DATA=... python benchmarks/stitch_accuracy.py --data fashion_mnist --out out/stitch
    FEDQUILT_DATA=... python benchmarks/stitch_accuracy.py --data cifar10 --images 2000 --test 2000 --model lenet5
    python benchmarks/stitch_accuracy.py --data mnist fashion_mnist cifar10 --out out/stitch --table docs/stitch

Every run is kept as a file, so an interrupted study goes on where it stopped. Five clients, Dirichlet 0.15 over labels,
a split and a start of its own for each seed and the same for all methods, AdamW, 4 epochs in the first round and 1 in
the others. Accuracy is that of the merged model on the official test set (or its first --test images) after the last
round; no round is chosen. The density of the scheduled rows follows the clients' held-out accuracy.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "FedAvg": ("fedavg", {}),
    "FedAvg+Noise 0.04": ("fedavg_noise", {}),
    "K by accuracy, mu 0.035": ("stitch", {"mu": 0.035}),
    "K by accuracy, mu 1": ("stitch", {"mu": 1.0}),
    **{f"K {k:g}": ("stitch", {"keep": k}) for k in (1.0, 0.5, 0.1, 0.05, 0.01)},
    **{f"K {k:g}, feedback": ("stitch", {"keep": k, "error_feedback": True}) for k in (0.5, 0.1, 0.05, 0.01)},
    **{
        f"K {k:g}, feedback, {v}": ("stitch", {"keep": k, "error_feedback": True, "values": v})
        for k, v in ((0.05, "fp16"), (1.0, "sign"), (0.5, "sign"), (0.25, "sign"), (0.1, "sign"))
    },
}
ROUNDS, CLIENTS, ALPHA = 12, 5, 0.15


def subset(name: str, images: int, test: int, seed: int) -> Any:
    """So many training images, drawn by the seed, and the first of the test images."""
    from dataclasses import replace

    from fedquilt.data import read

    whole = read(name)
    rows = np.random.default_rng(seed).permutation(len(whole.x))[:images]
    return replace(whole, x=whole.x[rows], y=whole.y[rows], x_test=whole.x_test[:test], y_test=whole.y_test[:test])


def one(arrays: Any, model: str, kind: str, options: dict[str, Any], seed: int, lr: float) -> dict[str, Any]:
    """One run."""
    from fedquilt import run
    from fedquilt.data import Federation
    from fedquilt.data.partitions.legacy import DirichletCuts
    from fedquilt.methods.averaging.fedavg_noise import FedAvgNoise
    from fedquilt.methods.fedavg import FedAvg
    from fedquilt.methods.merging.localize_stitch import LocalizeStitch
    from fedquilt.models.registry import net
    from fedquilt.pieces.aggregators import uniform_mean
    from fedquilt.pieces.optimizers import AdamW

    federation = Federation.from_source(
        arrays, partition=DirichletCuts(ALPHA), clients=CLIENTS, test=0.0, valid=0.1, seed=seed, drop_empty=True
    )
    rows = federation.site(federation.ids[0], 0).train
    shape = tuple(rows.rows(rows.all_rows()[:1]).x.shape[1:])
    network = net(model, shape, 10, **({"hidden": (128,)} if model == "mlp" else {}))
    work: dict[str, Any] = {"optimizer": AdamW(lr), "batch_size": 64, "epochs": 1, "epochs_first": 4}
    method: Any
    if kind == "fedavg":
        method = FedAvg(objective=network, aggregate=uniform_mean, **work)
    elif kind == "fedavg_noise":
        method = FedAvgNoise(network, noise=0.04, **work)
    else:
        method = LocalizeStitch(network, **options, **work)
    began, rounds = time.perf_counter(), []
    for snapshot in run(method, federation, rounds=ROUNDS, seed=seed, engine="local"):
        m = snapshot.metrics
        rounds.append({"accuracy": m["common_test_accuracy"], "up": m["bytes_up"], "down": m["bytes_down"]})
    return {"rounds": rounds, "seconds": time.perf_counter() - began, "clients": len(federation.ids)}


def study(options: argparse.Namespace) -> None:
    """Every run that is not there yet."""
    torch.set_num_threads(1)
    for name in options.data:
        for seed in range(options.seeds):
            arrays = None
            for label, (kind, settings) in METHODS.items():
                file = options.out / name / f"{label}-seed{seed}.json"
                if file.exists():
                    continue
                if arrays is None:
                    arrays = subset(name, options.images, options.test, seed)
                found = one(arrays, options.model, kind, settings, seed, options.lr)
                file.parent.mkdir(parents=True, exist_ok=True)
                part = file.with_suffix(".part")
                setting = {k: getattr(options, k) for k in ("images", "test", "model", "lr")}
                part.write_text(json.dumps({"label": label, "seed": seed, **setting, **found}))
                part.replace(file)
                print(
                    f"{name} seed {seed} {label}: {found['rounds'][-1]['accuracy']:.4f} in {found['seconds']:.0f} s",
                    flush=True,
                )


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """One row for each method that has all the seeds that FedAvg has."""
    from scipy import stats

    runs: dict[str, dict[int, Any]] = {label: {} for label in METHODS}
    for file in sorted(folder.glob("*.json")):
        found = json.loads(file.read_text())
        runs[found["label"]][found["seed"]] = found
    base, rows = runs["FedAvg"], []
    for label, found in runs.items():
        seeds = sorted(set(base) & set(found))
        if not seeds or len(seeds) < len(base):
            continue
        mine, other = (np.array([r[s]["rounds"][-1]["accuracy"] for s in seeds]) for r in (found, base))
        up, up_base = (np.array([sum(q["up"] for q in r[s]["rounds"]) for s in seeds]) for r in (found, base))
        difference = mine - other
        half = float(stats.t.ppf(0.975, len(seeds) - 1) * difference.std(ddof=1) / math.sqrt(len(seeds)))
        p = float(stats.ttest_rel(mine, other).pvalue) if difference.any() else 1.0
        rows.append(
            {
                "method": label,
                "seeds": len(seeds),
                "accuracy": float(mine.mean()),
                "std": float(mine.std(ddof=1)),
                "difference": float(difference.mean()),
                "difference_half_95": half,
                "p": p,
                "megabytes_up": float(up.mean()) / 1e6,
                "times_fewer": float(up_base.mean() / up.mean()),
            }
        )
    return rows


def table(options: argparse.Namespace) -> None:
    """Markdown to the screen, CSV and pictures beside ``options.table``."""
    from matplotlib import rc_context

    from fedquilt.results.plots import COLOURS, STYLE, subplots

    every = {name: rows_of(options.out / name) for name in options.data if (options.out / name).is_dir()}
    options.table.parent.mkdir(parents=True, exist_ok=True)
    with options.table.with_suffix(".csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["data", *next(iter(every.values()))[0]])
        writer.writeheader()
        writer.writerows({"data": name, **row} for name, rows in every.items() for row in rows)
    for name, rows in every.items():
        print(f"\n### {name}\n\n| method | accuracy, % | to FedAvg, points (95 %) | p | MB up | times fewer |")
        print("|---|---|---|---|---|---|")
        for r in rows:
            gap = (
                "" if r["method"] == "FedAvg" else f"{100 * r['difference']:+.1f} ± {100 * r['difference_half_95']:.1f}"
            )
            p = "" if r["method"] == "FedAvg" else f"{r['p']:.3f}"
            print(
                f"| {r['method']} | {100 * r['accuracy']:.1f} ± {100 * r['std']:.1f} | {gap} | {p} | "
                f"{r['megabytes_up']:.2f} | {r['times_fewer']:.1f} |"
            )
    groups = {
        "without feedback": lambda m: m.startswith("K") and "feedback" not in m and "accuracy" not in m,
        "with feedback": lambda m: m.endswith("feedback"),
        "with feedback, signs": lambda m: m.endswith("sign"),
    }
    with rc_context(STYLE):
        figure, axes = subplots(1, len(every), figsize=(4.2 * len(every), 3.8), squeeze=False)
        for axis, (name, rows) in zip(axes[0], every.items(), strict=True):
            base = next(r for r in rows if r["method"] == "FedAvg")
            for colour, (label, belongs) in zip(COLOURS, groups.items(), strict=False):
                points = sorted(
                    (r["megabytes_up"], r["accuracy"], r["std"], r["method"]) for r in rows if belongs(r["method"])
                )
                x, y, e, names = zip(*points, strict=True)
                axis.errorbar(x, y, yerr=e, marker="o", markersize=4, capsize=2, color=colour, label=label)
                for a, b, text in zip(x, y, names, strict=True):
                    axis.annotate(text.split(",")[0][2:], (a, b), textcoords="offset points", xytext=(4, 4), fontsize=7)
            axis.axhline(base["accuracy"], color="#777777", linestyle=":", linewidth=1, label="FedAvg")
            axis.axvline(
                base["megabytes_up"] / 20, color="#bbbbbb", linestyle="--", linewidth=1, label="20 times fewer"
            )
            axis.set(xscale="log", xlabel="megabytes sent up", title=name)
        axes[0][0].set_ylabel("test accuracy after the last round")
        axes[0][0].legend(fontsize=7)
        for kind in (".png", ".svg"):
            figure.savefig(options.table.with_suffix(kind), metadata={"Date": None} if kind == ".svg" else None)


def main() -> None:
    """Run what is missing; or, with --table, only make the table and the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=["mnist", "fashion_mnist"])
    parser.add_argument("--out", type=Path, default=Path("out/stitch"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--images", type=int, default=6000)
    parser.add_argument("--test", type=int, default=10_000)
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    table(options) if options.table else study(options)


if __name__ == "__main__":
    main()
