"""Does a round cost what its cohort costs, however many clients there are?

    python benchmarks/scale.py [--repeats 5] [--json benchmarks/results/scale.json]

100,000 clients of 10 rows against 1,000, cohorts of 1,000 and 100; FedAvg, and FedPer, whose clients keep their heads
in files of the run's folder, made when they are first asked. Each case is a process of its own, in turn with others.
Asserted: starting (dividing the rows, fingerprint, folder) takes less than 5 s; a round at most 1.2 times as long.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

START, RATIO = 5.0, 1.2


def case(method: str, clients: int, cohort: int, rounds: int) -> dict[str, Any]:
    """Play some rounds in this process; the first is left out of the times."""
    import numpy as np
    import torch

    from fedquilt.config.config import EvaluationSettings
    from fedquilt.core.exchange import at_random
    from fedquilt.core.net import Net
    from fedquilt.data import IID, Federation
    from fedquilt.engines.local import Local
    from fedquilt.methods.fedavg import FedAvg
    from fedquilt.methods.personalised.fedper import FedPer
    from fedquilt.models.registry import make
    from fedquilt.runs.runner import Run
    from fedquilt.storage.folder import RunFolder

    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(clients * 10, 32)).astype(np.float32), rng.integers(0, 10, clients * 10)
    bare = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        federation = Federation.from_arrays(x, y, IID(), clients=clients, test=0.2, valid=0.0, standardise=None)
        made = {"fedavg": lambda net, **rest: FedAvg(objective=net, **rest), "fedper": FedPer}[method]
        run = Run(
            made(Net(make("mlp", (32,), 10, hidden=[64])), batch_size=8, cohort=at_random(cohort)),
            federation,
            rounds=rounds,
            engine=Local(),
            folder=RunFolder(Path(folder) / "run"),
            evaluation=EvaluationSettings(every=10**6, clients=100),
        )
        rows = iter(run)
        times, start = [], 0.0
        for number in range(rounds - 1):  # the last round also scores and writes the result
            snapshot = next(rows)
            if number == 0:
                start = time.perf_counter() - began - snapshot.metrics["seconds"]
            else:
                times.append(snapshot.metrics["seconds"])
        rows.close()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"start": start, "rounds": times, "peak_mb": peak / 1024, "data_mb": bare / 1024}


def apart(*words: Any) -> dict[str, Any]:
    """A case in a process of its own."""
    command = [sys.executable, __file__, "--case", *map(str, words)]
    found: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


def main() -> int:
    """Measure, print, write, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/scale.json"))
    parser.add_argument("--case", nargs=4, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.case:
        method, *numbers = chosen.case
        print(json.dumps(case(method, *map(int, numbers))))
        return 0
    found, failed = {}, []
    for method in ("fedavg", "fedper"):
        for cohort in (1000, 100):
            few: list[dict[str, Any]] = []
            many: list[dict[str, Any]] = []
            rounds = 5 if cohort == 1000 else 20  # a process gives two fewer
            for _ in range(max(1, -(-chosen.repeats // (rounds - 2)))):
                few.append(apart(method, 1_000, cohort, rounds))
                many.append(apart(method, 100_000, cohort, rounds))
            times = [statistics.median(t for one in side for t in one["rounds"]) for side in (few, many)]
            start, ratio = statistics.median(one["start"] for one in many), times[1] / times[0]
            good = start < START and ratio <= RATIO
            name = f"{method}, {cohort} per round"
            print(
                f"{name}: start {start:.2f} s (below {START:.0f}); a round {times[1]:.3f} s out of 100,000, "
                f"{times[0]:.3f} s out of 1,000: {ratio:.2f} (at most {RATIO}); "
                f"peak {many[0]['peak_mb']:.0f} MB {'ok' if good else 'MISSED'}",
                flush=True,
            )
            found[name] = {"few": few, "many": many, "start": start, "ratio": ratio}
            failed += [] if good else [name]
    chosen.json.parent.mkdir(parents=True, exist_ok=True)
    chosen.json.write_text(json.dumps(found, indent=1))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
