"""Time and memory against clients, parameters and worker processes: the curves of docs/speed.md.

    python benchmarks/curves.py [--to docs/speed]

Clients: FedPer with an MLP of 2,762 parameters on ``local``, 100 of 100 to 100,000 clients per round, states in the
run's folder. Parameters: FedAvg with an MLP of 10^4 to 10^7 parameters, 20 clients x 50 images, batches of 10, on one
and on two worker processes. Each point is a process of its own; memory is the peak of its tree by PSS.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "peers"))
from scale import case
from watch import Watch

ROUNDS = 7
CLIENTS, WIDTHS = (100, 1_000, 10_000, 100_000), (13, 126, 1258, 12_579)


def of_parameters(width: int, processes: int) -> dict[str, Any]:
    """Rounds of an MLP with one hidden layer of this width."""
    import numpy as np

    from fedquilt.core.net import Net
    from fedquilt.core.params import numel
    from fedquilt.core.seed import Seed
    from fedquilt.data import IID, Federation
    from fedquilt.engines.workers import Workers
    from fedquilt.methods.fedavg import FedAvg
    from fedquilt.models.registry import make
    from fedquilt.pieces.optimizers import SGD
    from fedquilt.rounds.rounds import Rounds

    x = np.random.default_rng(0).random((1000, 1, 28, 28), dtype=np.float32)
    data = Federation.from_arrays(x, np.arange(1000) % 10, IID(), 20, test=0.0, valid=0.0, standardise=None)
    net = Net(make("mlp", (1, 28, 28), 10, hidden=[width]))
    began, times = time.perf_counter(), []
    with Workers(processes) as engine:
        rounds = Rounds(FedAvg(objective=net, optimizer=SGD(0.01), batch_size=10), data, engine, Seed(0))
        start = time.perf_counter() - began
        for _ in range(ROUNDS):
            times.append(rounds.play().seconds)
        return {"parameters": numel(rounds.state.shared), "start": start, "rounds": times[1:]}


def apart(*words: Any) -> dict[str, Any]:
    """A point in a process of its own, watched."""
    process = subprocess.Popen(
        [sys.executable, __file__, "--case", *map(str, words)], stdout=subprocess.PIPE, text=True
    )
    watch = Watch(process.pid, every=0.05)
    watch.start()
    said, _ = process.communicate()
    found = json.loads(said)
    seconds = statistics.median(found["rounds"])
    return {**found, "seconds": seconds, "peak_mb": watch.stop() / 1e6}


def measured() -> list[dict[str, Any]]:
    """All points, as rows of one table."""
    rows = []
    for clients in CLIENTS:
        found = apart("clients", clients)
        rows.append({"against": "clients", "clients": clients, "parameters": 2762, "workers": 0, **_short(found)})
        print(rows[-1], flush=True)
    for width in WIDTHS:
        for processes in (1, 2):
            found = apart("parameters", width, processes)
            rows.append(
                {
                    "against": "parameters",
                    "clients": 20,
                    "parameters": found["parameters"],
                    "workers": processes,
                    **_short(found),
                }
            )
            print(rows[-1], flush=True)
    return rows


def _short(found: dict[str, Any]) -> dict[str, Any]:
    return {
        "start_s": round(found["start"], 3),
        "round_s": round(found["seconds"], 4),
        "peak_mb": round(found["peak_mb"]),
    }


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Time above, memory below."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.4, 5.6), layout="constrained")
    axes = figure.subplots(2, 2, sharex="col")
    for place, (what, label) in enumerate((("round_s", "seconds for a round"), ("peak_mb", "peak memory, MB"))):
        for column, against in enumerate(("clients", "parameters")):
            axis = axes[place, column]
            chosen = [row for row in rows if row["against"] == against]
            for workers in sorted({row["workers"] for row in chosen}):
                line = [row for row in chosen if row["workers"] == workers]
                name = f"{workers} worker{'s' if workers > 1 else ''}" if workers else "local, 100 per round"
                axis.plot([r[against] for r in line], [r[what] for r in line], marker="o", label=name)
            axis.set_xscale("log")
            if against == "parameters" and what == "round_s":
                axis.set_yscale("log")
            else:
                axis.set_ylim(bottom=0, top=1.1 * max(row[what] for row in chosen))
            axis.set_ylabel(label)
            axis.set_xlabel(against if place else "")
            axis.legend()
            axis.grid(alpha=0.3)
    figure.savefig(path, dpi=110)


def main() -> None:
    """Measure, write, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", type=Path, default=Path("docs/speed"), help="without .csv and .png")
    parser.add_argument("--case", nargs="+", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.case:
        kind, *numbers = chosen.case[0], *map(int, chosen.case[1:])
        done = case("fedper", numbers[0], 100, ROUNDS + 1) if kind == "clients" else of_parameters(*numbers)
        print(json.dumps(done))
        return
    rows = measured()
    with chosen.to.with_suffix(".csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
    draw(rows, chosen.to.with_suffix(".png"))


if __name__ == "__main__":
    main()
