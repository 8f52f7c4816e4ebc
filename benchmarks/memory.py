"""How much memory does a large federation take, and does it grow?

    python benchmarks/memory.py [--rounds 1000] [--clients 10000] [--json benchmarks/results/memory.json]

10,000 clients (scikit-learn's digits, resampled), an MLP of about 200 KB that is private to each client, 100 clients
per round, snapshots on. Asserted: peak resident size below 1.2 GB; growth of at most 1 MB per 100 rounds.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from fedquilt.config.config import EvaluationSettings, Snapshots
from fedquilt.core.exchange import at_random
from fedquilt.core.net import Net
from fedquilt.core.params import nbytes
from fedquilt.core.seed import Seed
from fedquilt.data import Federation, read
from fedquilt.engines.local import Local
from fedquilt.methods.averaging.local_only import LocalOnly
from fedquilt.models.registry import make
from fedquilt.runs.runner import Run
from fedquilt.storage.folder import RunFolder

MEGABYTE = 2**20


def resident(field: str = "VmRSS") -> float:
    """This process's resident size now (VmRSS) or at its peak (VmHWM), in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def federation(clients: int) -> Federation:
    """Digits drawn anew for every client: 12 training samples and 3 test samples per client."""
    digits = read("digits")
    rng = np.random.default_rng(0)
    rows = [rng.choice(len(digits.y), 15, replace=False) for _ in range(clients)]
    columns = {"x": torch.as_tensor(digits.x), "y": torch.as_tensor(digits.y)}
    return Federation.from_rows(columns, {c: {"train": r[:12], "test": r[12:]} for c, r in enumerate(rows)})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/memory.json"))
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    data = federation(chosen.clients)
    net = Net(make("mlp", tuple(data.columns["x"].shape[1:]), 10, hidden=[667]))
    method = LocalOnly(net, batch_size=12, cohort=at_random(100))
    state = nbytes(net.init(Seed(0)))
    samples: dict[int, float] = {}
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        run = Run(
            method,
            data,
            rounds=chosen.rounds,
            engine=Local(),
            folder=RunFolder(Path(folder) / "run"),
            evaluation=EvaluationSettings(every=250, clients=200),
            snapshots=Snapshots(every=1, seconds=2.0),
        )
        for snapshot in run:
            if snapshot.round % 50 == 0:
                samples[snapshot.round] = resident()
                print(f"round {snapshot.round}: {samples[snapshot.round]:.0f} MB", flush=True)
    first, last = min(samples), max(samples)
    growth = (samples[last] - samples[first]) / max(last - first, 1) * 100
    peak = resident("VmHWM")
    print(f"{chosen.clients} clients, {state / 1000:.0f} KB private each, {time.perf_counter() - began:.0f} s")
    print(f"peak {peak:.0f} MB (below {1200} MB), growth {growth:.2f} MB per 100 rounds (at most 1)")
    found = {
        "clients": chosen.clients,
        "rounds": chosen.rounds,
        "private_bytes": state,
        "peak_mb": peak,
        "growth_mb_per_100_rounds": growth,
        "samples": samples,
    }
    chosen.json.parent.mkdir(parents=True, exist_ok=True)
    chosen.json.write_text(json.dumps(found, indent=1))
    return 0 if peak < 1200 and growth <= 1.0 else 1


if __name__ == "__main__":
    sys.exit(main())
