"""How long does it take to divide data over clients, and how much memory beside the data themselves?

    FEDQUILT_DATA=/path/to/data python benchmarks/data.py [--repeats 5] [--json benchmarks/results/data.json]

Writers: MNIST with one client for each of its 539 writers (needs mnist with writers, see docs/datasets.md). Asserted:
below 2 s, and at most 300 MB above what the process held with the arrays in memory.
Dirichlet: 50,000 rows of 100 classes over 500 clients, alpha 0.3. Asserted: below 1 s.
Each is measured in a process of its own: the median time, and the highest peak.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

LIMITS = {"writers": {"seconds": 2.0, "extra_mb": 300.0}, "dirichlet": {"seconds": 1.0}}
STATUS = Path("/proc/self/status")


def resident(field: str) -> float:
    """This process's resident size now (VmRSS) or at its peak (VmHWM), in MB; nan where the system does not tell."""
    lines = STATUS.read_text().splitlines() if STATUS.exists() else []
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith(field)), float("nan"))


def forget_peak() -> None:
    """Let the peak begin at the size now."""
    if STATUS.exists():
        STATUS.with_name("clear_refs").write_text("5")


def writers(repeats: int) -> dict[str, Any]:
    """One client per writer of MNIST."""
    from fedquilt.data import Federation, read
    from fedquilt.errors import InputError

    try:
        arrays = read("mnist")
    except InputError as error:
        return {"skipped": str(error).splitlines()[0]}
    if arrays.user is None:
        return {"skipped": "mnist is here, but without its writers (qmnist-train-labels-idx2-int.gz)."}
    held = [a for a in (arrays.x, arrays.y, arrays.x_test, arrays.y_test, arrays.user) if a is not None]
    for array in held:
        array.sum()  # mapped arrays come into memory when they are used
    forget_peak()
    before, times = resident("VmRSS"), []
    for _ in range(repeats):
        began = time.perf_counter()
        federation = Federation.from_source(arrays, natural=True)
        times.append(time.perf_counter() - began)
    return {
        "clients": len(federation.ids),
        "rows": len(arrays.y),
        "seconds": statistics.median(times),
        "slowest": max(times),
        "data_mb": sum(a.nbytes for a in held) / 2**20,
        "extra_mb": resident("VmHWM") - before,
    }


def dirichlet(repeats: int) -> dict[str, Any]:
    """500 clients, 100 classes, alpha 0.3."""
    import numpy as np

    from fedquilt.core.seed import Seed
    from fedquilt.data import Dirichlet

    labels, times = np.arange(50_000) % 100, []
    for repeat in range(repeats):
        began = time.perf_counter()
        parts = Dirichlet(0.3)(labels, 500, Seed(repeat))
        times.append(time.perf_counter() - began)
    return {"clients": len(parts), "rows": len(labels), "seconds": statistics.median(times), "slowest": max(times)}


def measured(name: str, repeats: int) -> dict[str, Any]:
    """One of these, in a process of its own."""
    words = [sys.executable, __file__, "--inside", name, "--repeats", str(repeats)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/data.json"))
    parser.add_argument("--inside", choices=list(LIMITS), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.inside:
        print(json.dumps({"writers": writers, "dirichlet": dirichlet}[chosen.inside](chosen.repeats)))
        return 0
    results = {name: measured(name, chosen.repeats) for name in LIMITS}
    failed = []
    for name, limits in LIMITS.items():
        found = results[name]
        if "skipped" in found:
            print(f"{name}: skipped. {found['skipped']}")
            continue
        print(f"{name}: {found['clients']} clients, {found['rows']} rows")
        for field, limit in limits.items():
            print(f"  {field:10} {found[field]:8.3f}  (below {limit:g})")
            failed += [] if not found[field] >= limit else [f"{name} {field}"]
    chosen.json.parent.mkdir(parents=True, exist_ok=True)
    chosen.json.write_text(json.dumps(results, indent=1))
    print("over the limit: " + ", ".join(failed) if failed else "all within their limits")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
