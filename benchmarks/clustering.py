"""How long does it take to cluster many clients by sketches of their updates, and how much memory?

    python benchmarks/clustering.py [--clients 10000] [--length 60000] [--size 128] [--json FILE]

Updates of ``length`` numbers along planted directions with noise are made and sketched block by block, so that they are
never all in memory. The clustering itself runs in a process of its own, which is measured. Asserted: the planted groups
are found exactly, in less than 60 seconds and with a peak below 1 GB.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from fedquilt.core.seed import Seed
from fedquilt.pieces.clustering.agglomerative import agglomerate
from fedquilt.pieces.clustering.private import blocks

GROUPS, NOISE, AT_ONCE = 10, 0.5, 1000  # a client's update has cosine 1 / (1 + NOISE^2) = 0.8 with its like
MOST_SECONDS, MOST_MEGABYTES = 60.0, 1000.0


def resident(field: str) -> float:
    """This process's resident size now (VmRSS) or at its peak (VmHWM), in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def sketches(clients: int, length: int, size: int) -> torch.Tensor:
    """[clients, size]: sketches of planted updates; client i belongs to group i mod GROUPS."""
    seed, total = Seed(0), torch.zeros(clients, size)
    kinds = torch.arange(clients) % GROUPS
    for place, part in blocks(length, size, seed):
        draw = seed.fold("updates", place.start).torch()
        directions = torch.randn(GROUPS, len(part), generator=draw)
        for low in range(0, clients, AT_ONCE):
            rows = directions[kinds[low : low + AT_ONCE]]
            rows = rows + NOISE * torch.randn(rows.shape, generator=draw)
            total[low : low + AT_ONCE] += rows @ part
    return total


def measured(path: Path, max_exact: int) -> dict[str, object]:
    """Cluster the sketches in a file: the process that is measured."""
    torch.set_num_threads(1)
    vectors = dict(enumerate(torch.from_numpy(np.load(path))))
    before, began, worked = resident("VmRSS"), time.perf_counter(), time.process_time()
    found = agglomerate(vectors, silhouette=True, max_exact=max_exact, seed=Seed(0))
    seconds, busy = time.perf_counter() - began, time.process_time() - worked
    right = all(label == client % GROUPS for client, label in found.labels.items())
    return {
        "clients": len(vectors),
        "max_exact": max_exact,
        "clusters": found.k,
        "planted_groups_found": right,
        "seconds": round(seconds, 2),
        "seconds_of_cpu": round(busy, 2),
        "mb_before": round(before),
        "mb_peak": round(resident("VmHWM")),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--length", type=int, default=60_000)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--max-exact", type=int, default=5000)
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/clustering.json"))
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.measure is not None:
        print(json.dumps(measured(chosen.measure, chosen.max_exact)))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        path, began = Path(folder) / "sketches.npy", time.perf_counter()
        np.save(path, sketches(chosen.clients, chosen.length, chosen.size).numpy())
        making = round(time.perf_counter() - began, 2)
        command = [sys.executable, __file__, "--measure", str(path), "--max-exact", str(chosen.max_exact)]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    result = {"length": chosen.length, "sketch": chosen.size, "seconds_making_sketches": making, **json.loads(said)}
    print(json.dumps(result, indent=2))
    chosen.json.parent.mkdir(parents=True, exist_ok=True)
    chosen.json.write_text(json.dumps(result, indent=2))
    good = result["planted_groups_found"] and result["seconds"] < MOST_SECONDS and result["mb_peak"] < MOST_MEGABYTES
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
