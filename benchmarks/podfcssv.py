"""What PODFCSSV costs: a local step against the same autoencoder alone, k-means, the loop of following, and bytes.

    python benchmarks/podfcssv.py [--repeats 15] [--threads 1] [--json FILE]

A step is timed with a ViT of width 96 on 32 x 32 images, batches of 64, a bank of 100 rows, alternating with the step
without anchoring; the median of the ratios of processor time is told. Bytes are the lengths of the frames for the sizes
of ViT-MAE-base (zeros in place of the adapters; no weights are needed).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from fedquilt.core.seed import Seed
from fedquilt.core.table import Batch
from fedquilt.methods.self_supervised.podfcssv_records import NOVEL, OWN, TOLD, AdapterUpload, Anchored, Anchoring
from fedquilt.models.registry import net as net_called
from fedquilt.pieces.optimizers import AdamW
from fedquilt.pieces.prototypes.memory import FollowingPrototypes
from fedquilt.pieces.prototypes.spherical import spherical_kmeans
from fedquilt.records.record import frame_bytes

WIDTH, DEPTH, BOTTLENECK, BACKBONE = 768, 12, 64, 111_907_840  # ViT-MAE-base: numbers of encoder and decoder


def steps(repeats: int) -> dict[str, float]:
    """Seconds of a local step with and without anchoring, and the ratio."""
    net = net_called("mae", (3, 32, 32), 10, width=96, depth=4, decoder_width=64, bottleneck=16)
    draw = Seed(0).torch()
    batch = Batch({"x": torch.randn(64, 3, 32, 32, generator=draw)})
    own, bank = torch.randn(5, 96, generator=draw), torch.randn(100, 96, generator=draw)
    own, bank = (torch.nn.functional.normalize(t, dim=1) for t in (own, bank))
    rule = AdamW(1e-4)

    def timed(loss: Anchoring, own: torch.Tensor, bank: torch.Tensor) -> float:
        params = net.own({**net.init(Seed(0)), OWN: own, NOVEL: own[:0], TOLD: torch.zeros(4)})
        weights = [params[n].requires_grad_() for n in net.trainable]
        bare, fixed = [w.detach() for w in weights], {"bank": bank, "centre": torch.zeros(96)}
        memory, times = rule.init(bare), []
        for count in range(1, 8):
            began = time.process_time()
            grads = list(torch.autograd.grad(loss(params, fixed, batch), weights, materialize_grads=True))
            rule.step(bare, grads, memory, 1e-4, count)
            times.append(time.process_time() - began)
        return statistics.median(times)

    pairs = [
        (timed(Anchoring(net), own, bank), timed(Anchoring(net, lambda_proto=0.0), own[:0], bank[:0]))
        for _ in range(repeats)
    ]
    return {
        "anchored": statistics.median(a for a, _ in pairs),
        "alone": statistics.median(b for _, b in pairs),
        "ratio": statistics.median(a / b for a, b in pairs),
    }


def kmeans(groups: int, rows: int = 10_000, width: int = 768, k: int = 50) -> dict[str, float]:
    """Seconds of clustering so many features: of overlapping groups, or of none (the most iterations)."""
    draw = Seed(1).torch()
    x = torch.randn(rows, width, generator=draw)
    if groups:
        x = 2 * x + torch.randn(groups, width, generator=draw)[torch.randint(groups, (rows,), generator=draw)]
    began, worked = time.perf_counter(), time.process_time()
    found = spherical_kmeans(x, k, Seed(0))
    spent, used = time.perf_counter() - began, time.process_time() - worked
    return {"seconds": spent, "of all cores": used, "iterations": found.iterations, "threads": torch.get_num_threads()}


def following() -> dict[str, float]:
    """Milliseconds of the sequential loop for a batch of 64, at two widths."""
    found = {}
    for width in (96, 768):
        z, own = torch.randn(64, width), torch.nn.functional.normalize(torch.randn(5, width), dim=1)
        follow, times = (
            FollowingPrototypes(threshold=-1.0),
            [],
        )  # every row moves a prototype: the most work there can be
        for _ in range(50):
            began = time.process_time()
            follow(own, z)
            times.append(time.process_time() - began)
        found[f"width {width}"] = 1000 * statistics.median(times)
    return found


def traffic(rows: int = 100, k: int = 5) -> dict[str, float]:
    """Bytes of the messages for ViT-MAE-base, and how many times less than the whole model."""
    adapters = {}
    for block in range(DEPTH):
        name = f"adapters.vit-layers-{block}"
        adapters |= {
            f"{name}.down.weight": torch.zeros(BOTTLENECK, WIDTH),
            f"{name}.down.bias": torch.zeros(BOTTLENECK),
            f"{name}.up.weight": torch.zeros(WIDTH, BOTTLENECK),
            f"{name}.up.bias": torch.zeros(WIDTH),
        }
    numbers = sum(t.numel() for t in adapters.values())
    up = frame_bytes(AdapterUpload(adapters, torch.zeros(k, WIDTH), torch.zeros(k, dtype=torch.int64), 1), compact=True)
    down = frame_bytes(Anchored(adapters, torch.zeros(rows, WIDTH), torch.zeros(WIDTH)), compact=True)
    whole = 4 * BACKBONE
    return {
        "adapters": 4 * numbers,
        "up": up,
        "down": down,
        "model": whole,
        "times less, adapters": whole / (4 * numbers),
        "times less, up": whole / up,
    }


def main() -> None:
    """Print a table, and write it as JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    found: dict[str, Any] = {
        "step": steps(chosen.repeats),
        "k-means, 50 groups": kmeans(50),
        "k-means, no groups": kmeans(0),
        "following, ms": following(),
        "bytes": traffic(),
    }
    for name, numbers in found.items():
        print(f"{name}: " + ", ".join(f"{n} {v:.4g}" if v < 1e4 else f"{n} {v:,.0f}" for n, v in numbers.items()))
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
