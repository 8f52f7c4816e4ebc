"""A comparison that was never run: folders with the metric files of the real format, of any size, in a moment."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from fedquilt.config.config import dump, parse
from fedquilt.results.views import CELLS

METHODS = {"fedavg": 0.72, "fedprox": 0.71, "local_only": 0.62, "ditto": 0.8, "fedrep": 0.78, "centralised": 0.9}
PARTS = {"shared.0.weight": [4000, 4000], "shared.0.bias": [40, 40], "(frame)": [60, 60]}


def made_comparison(
    top: Path,
    clients: int = 50,
    rounds: int = 100,
    seeds: int = 3,
    unfinished: Iterable[str] = (),
    name: str = "made",
    names: Iterable[Any] | None = None,
) -> Path:
    """Runs of six methods. ``unfinished`` methods stopped half-way in the last seed; ``names`` are the clients' ids."""
    ids = list(range(clients)) if names is None else list(names)
    draw = np.random.default_rng(0)
    talent = draw.normal(0, 0.06, len(ids))
    cells = []
    for seed in range(seeds):
        for label, level in METHODS.items():
            folder = top / f"{label}-seed{seed}"
            cells.append({"label": label, "seed": seed, "folder": folder.name})
            stop = rounds // 2 if label in unfinished and seed == seeds - 1 else rounds
            _run(folder, label, level, seed, ids, talent, rounds, stop, draw)
    _json(top / CELLS, {"name": name, "target": 0.6, "rounds": rounds, "cells": cells})
    counts = [draw.multinomial(100, draw.dirichlet([0.3] * 10)).tolist() for _ in ids]
    _json(
        top / "federation.json",
        {
            "classes": 10,
            "clients": ids,
            "groups": [[c, i % 3] for i, c in enumerate(ids)],
            "majority": [[c, 0.3 + float(t)] for c, t in zip(ids, talent, strict=True)],
            "majority_common": None,
            "table": None,
            "tasks": [
                {
                    "clients": ids,
                    "rows": [100] * len(ids),
                    "labels": counts,
                    "measures": {"label_distance": 0.5, "size_gini": 0.0, "imbalance_factor": 0.4, "label_entropy": {}},
                }
            ],
        },
    )
    return top


def _run(
    folder: Path, label: str, level: float, seed: int, ids: list[Any], talent: Any, planned: int, stop: int, draw: Any
) -> None:
    (folder / "metrics").mkdir(parents=True)
    options = {"mu": 0.1} if label == "fedprox" else {}
    config = parse({"name": "made", "rounds": planned, "seed": seed, "method": {"kind": label, **options}})
    (folder / "config.toml").write_text(dump(config))
    rows, scored, updates, traffic = [], [], [], []
    for round in range(1, stop + 1):
        rise = level * (1 - np.exp(-round / (0.2 * planned)))
        accuracy = np.clip(rise + talent + draw.normal(0, 0.015, len(ids)) + 0.004 * seed, 0, 1)
        numbers = {f"{split}_{k}": v for split in ("valid", "test") for k, v in _numbers(accuracy).items()}
        rows.append(
            {
                "round": round,
                "clients": len(ids),
                "updates": len(ids),
                "train_loss": float(1 - rise),
                "bytes_down": 4100 * len(ids),
                "bytes_up": 4100 * len(ids),
                "raw_down": 4100 * len(ids),
                "raw_up": 8200 * len(ids),
                "quarantined": 0,
                "peak_bytes": 1,
                **numbers,
                "train_seconds": 0.4,
                "seconds": 0.5,
            }
        )
        for model in ("deployed", "global"):
            for split in ("valid", "test"):
                scored += [
                    {
                        "round": round,
                        "client": c,
                        "model": model,
                        "split": split,
                        "rows": 20.0,
                        "accuracy": float(a),
                        "balanced_accuracy": float(a) / 2,
                        "macro_f1": float(a) / 3,
                        "loss": 1 - float(a),
                    }
                    for c, a in zip(ids, accuracy, strict=True)
                ]
        updates += [
            {
                "round": round,
                "exchange": "train",
                "client": c,
                "seconds": 0.01,
                "samples": 100,
                "steps": 5,
                "loss": 0.5,
                "bytes_down": 4100,
                "bytes_up": 4100,
                "raw_down": 4100,
                "raw_up": 8200,
            }
            for c in ids
        ]
        for way in ("down", "up"):
            raw = 4100 if way == "down" else 8200
            traffic.append(
                {
                    "round": round,
                    "exchange": "train",
                    "direction": way,
                    "raw": raw,
                    "wire": 4100,
                    "parts": PARTS,
                    "clients": ids,
                }
            )
    dropped = (
        [{"round": 2, "exchange": "train", "client": ids[0], "reason": "not finite", "bytes_down": 1, "bytes_up": 1}]
        if label == "ditto"
        else []
    )
    for name, found in (
        ("metrics/rounds", rows),
        ("metrics/clients", scored),
        ("metrics/client_updates", updates),
        ("metrics/traffic", traffic),
        ("dropped", dropped),
    ):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in found))
    if stop == planned:
        best = max(rows, key=lambda row: row["valid_accuracy"])
        _json(
            folder / "result.json",
            {
                "digest": f"{label}{seed}".encode().hex(),
                "rounds": stop,
                "stopped_early": False,
                "best_round": best["round"],
                "best": best,
                "last": rows[-1],
                "updates": stop * len(ids),
                "bytes_down": 4100 * len(ids) * stop,
                "bytes_up": 4100 * len(ids) * stop,
                "raw_down": 4100 * len(ids) * stop,
                "raw_up": 8200 * len(ids) * stop,
                "model_bytes": 4100,
                "memory": {},
                "seconds": 0.5 * stop,
                "quarantined": len(dropped),
                "peak_bytes": 1,
                "data": "d" * 64,
                "majority_class": 0.3,
                "majority_half_95": 0.05,
                "common_class": 0.3,
                "common_half_95": 0.05,
                "test_rows": 100,
                "majority_common": None,
                "majority_common_half_95": None,
                "majority_common_rows": None,
                "virtual_seconds": None,
                "energy": {"source": "none", "note": ""},
                "engine": {"engine": "local"},
                "logs": {},
                "environment": {"python": "3.11", "torch": "2"},
            },
        )


def _numbers(accuracy: Any) -> dict[str, float]:
    lowest = np.sort(accuracy)[: max(1, -(-len(accuracy) // 10))]
    return {
        "accuracy": float(accuracy.mean()),
        "accuracy_pooled": float(accuracy.mean()),
        "accuracy_std": float(accuracy.std()),
        "accuracy_worst10": float(lowest.mean()),
        "balanced_accuracy": float(accuracy.mean()) / 2,
        "macro_f1": float(accuracy.mean()) / 3,
        "loss": float(1 - accuracy.mean()),
    }


def _json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content))
