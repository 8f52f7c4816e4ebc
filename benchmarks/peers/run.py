"""fedquilt beside a bare PyTorch loop, Flower's simulation and pfl-research: the same data, network, steps and start.

    python benchmarks/peers/run.py [--repeats 5] [--works V1 V2 V3] [--add] [--json benchmarks/results/peers.json]

V1: FedAvgCNN, batch 10, 20 clients x 500 rows, all in every round. V2: 100 clients x 100 rows, 10 per round.
V3: logistic regression, 1,000 clients x 60 rows, 10 per round; 100 rounds with the start of the engine and the score.
Every system is a process of its own, in turn with the others; V1 and V2 count rounds after the first. Peak memory is
that of the process and all it started, by PSS, in a run of its own that is not timed. Batches and cohorts are drawn by
each system in its own way, so accuracies agree but for that. ``--add`` keeps what was measured before.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from picture import draw
from venvs import python_of
from watch import Watch
from work import WORKS, write

HERE = Path(__file__).resolve().parent
OURS = {"V1": "fedquilt workers", "V2": "fedquilt workers", "V3": "fedquilt lanes"}
PEERS = ("Flower", "pfl-research", "pfl-research x 2")
LIMITS = {"V1": {"fastest": 1.5}, "V2": {"fastest": 2.0}, "V3": {"Flower": 10.0, "pfl-research": 3.0}}
AGREE = 0.03
Found = dict[str, dict[str, dict[str, Any]]]  # by workload and system: seconds, whole, accuracy, peak


def systems(work: str, venvs: Path) -> dict[str, list[str]]:
    """What takes part in a workload, as commands."""

    def script(name: str, *words: str, python: str = sys.executable) -> list[str]:
        return [python, str(HERE / f"{name}.py"), *words]

    flower, pfl = python_of("flower", venvs), python_of("pfl", venvs)
    found = {
        "fedquilt workers": script("ours", "workers"),
        "fedquilt local": script("ours", "local"),
        "bare loop": script("bare"),
        "Flower": script("flower", python=flower),
        "pfl-research": script("pfl_research", python=pfl),
        "pfl-research x 2": script("pfl_research", "2", python=pfl),
    }
    if work == "V3":
        found["fedquilt lanes"] = script("ours", "lanes")
    return found


def played(command: list[str], work: str, data: Path, rounds: int, watched: bool) -> dict[str, Any]:
    """One process of a system, to its end."""
    with tempfile.TemporaryDirectory() as folder:
        out, log = Path(folder) / "out.json", Path(folder) / "log.txt"
        told = {"PEERS_WORK": work, "PEERS_DATA": str(data), "PEERS_ROUNDS": str(rounds), "PEERS_OUT": str(out)}
        path = os.pathsep.join(p for p in (str(HERE), os.environ.get("PYTHONPATH", "")) if p)
        quiet = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_worker_niceness": "0", "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
        began = time.time()
        with log.open("wb") as output:
            process = subprocess.Popen(command, env={**os.environ, **told, **quiet}, stdout=output, stderr=output)
            watch = Watch(process.pid)
            if watched:
                watch.start()
            process.wait()
            peak = watch.stop() if watched else 0
        if not out.exists():
            raise SystemExit(f"{' '.join(command)} gave no result:\n{log.read_text()[-3000:]}")
        result = json.loads(out.read_text())
    ends = result["ends"]
    rounds_of = [after - before for before, after in pairwise(ends[1:])]
    whole, process = result["told"] - ends[0], result["told"] - began
    return {**result, "whole": whole, "process": process, "rounds": rounds_of, "peak": peak}


def measured(works: list[str], repeats: int, venvs: Path, found: Found) -> None:
    """Play all systems of these workloads in turn, again and again."""
    with tempfile.TemporaryDirectory() as folder:
        for name in works:
            work, data = WORKS[name], Path(folder) / f"{name}.npz"
            write(work, data)
            taking_part = systems(name, venvs)
            for repeat in range(repeats + 1):
                for system, command in taking_part.items():
                    row = found.setdefault(name, {}).setdefault(system, {"seconds": [], "accuracy": [], "peak": []})
                    if repeat == 0 and row["peak"]:
                        continue  # known from before
                    rounds = work.rounds if repeat or work.whole else min(work.rounds, 3)
                    one = played(command, name, data, rounds, watched=repeat == 0)
                    if "version" in one:
                        row["version"] = one["version"]
                    if repeat == 0:
                        row["peak"].append(one["peak"])
                    else:
                        row["accuracy"].append(one["accuracy"])
                        row["seconds"] += [one["whole"]] if work.whole else one["rounds"]
                        row.setdefault("process", []).append(one["process"])
                print(f"{name}: {'memory' if repeat == 0 else f'repeat {repeat}'} done", flush=True)


def judged(found: Found) -> list[str]:
    """Print a table for each workload; return what was missed."""
    missed = []
    for name, rows in found.items():
        medians = {s: statistics.median(r["seconds"]) for s, r in rows.items() if r["seconds"]}
        if not medians:
            continue
        mine, unit = OURS[name], "100 rounds" if WORKS[name].whole else "a round"
        print(f"\n{name}: {WORKS[name].about} (seconds for {unit}; median of {len(rows[mine]['seconds'])})")
        print(f"  {'':<20}{'seconds':>9}{'of ours':>9}{'accuracy':>10}{'peak MB':>9}")
        for system, seconds in sorted(medians.items(), key=lambda item: item[1]):
            accuracy, peak = statistics.median(rows[system]["accuracy"]), max(rows[system]["peak"], default=0) / 1e6
            print(f"  {system:<20}{seconds:>9.3f}{seconds / medians[mine]:>9.2f}{accuracy:>10.4f}{peak:>9.0f}")
        peers = {s: medians[s] for s in PEERS if s in medians}
        for against, limit in LIMITS[name].items():
            other = min(peers, key=peers.__getitem__) if against == "fastest" else against
            ratio = peers[other] / medians[mine]
            good = ratio >= limit
            print(f"  {other} / {mine} = {ratio:.2f} (at least {limit}) {'ok' if good else 'MISSED'}")
            missed += [] if good else [f"{name}: {other} / {mine}"]
        accuracies = [statistics.median(r["accuracy"]) for r in rows.values() if r["accuracy"]]
        if max(accuracies) - min(accuracies) > AGREE:
            missed.append(f"{name}: accuracies differ by {max(accuracies) - min(accuracies):.3f}")
        most, least = max(rows[mine]["peak"]), min(max(rows[s]["peak"]) for s in peers)
        good = most < least
        print(f"  peak {most / 1e6:.0f} MB (below the peers' {least / 1e6:.0f}) {'ok' if good else 'MISSED'}")
        missed += [] if good else [f"{name}: memory"]
    return missed


def main() -> int:
    """Measure, print, write, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--works", nargs="+", default=list(WORKS), choices=list(WORKS))
    parser.add_argument("--add", action="store_true", help="to what is in the JSON already")
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/peers.json"))
    parser.add_argument("--venvs", type=Path, default=HERE / ".venvs")
    chosen = parser.parse_args()
    found: Found = json.loads(chosen.json.read_text()) if chosen.add and chosen.json.exists() else {}
    try:
        measured(chosen.works, chosen.repeats, chosen.venvs, found)
    finally:
        chosen.json.parent.mkdir(parents=True, exist_ok=True)
        chosen.json.write_text(json.dumps(found, indent=1))
    missed = judged(found)
    draw(found, chosen.json.with_suffix(".png"))
    for what in missed:
        print(f"missed: {what}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
