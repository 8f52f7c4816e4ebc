"""How long does merging take, in how much memory, and how many bytes does a sparse change take on the wire?

    python benchmarks/merge.py [--json FILE]

22,050,664 numbers, as in ViT-S/16. Asserted: the threshold of the largest 5 % in less than 0.5 s; five models merged
with K = 0.05 in less than 4 s and with less than three times one model's memory (a process of its own, measured above
what it holds before it begins); for every K of the table, the frames as long as the formulas say, within 1 %. Times
are of the processor, so that a busy machine does not change them; wall clock is told beside it.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

NUMBERS, MODELS, KEEP = 22_050_664, 5, 0.05
DENSITIES = (0.99, 31 / 32, 0.9657, 0.95, 0.5, 0.1, 0.05, 0.01)
LAYERS = 150


def resident(field: str) -> float:
    """This process's resident size now (VmRSS) or at its peak (VmHWM), in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def write_models(folder: Path) -> list[Path]:
    """A base and five models that differ from it, in tensors as large as those of the transformer."""
    from safetensors.torch import save_file

    draw = torch.Generator().manual_seed(0)
    size = NUMBERS // LAYERS
    shapes = [size] * (LAYERS - 1) + [NUMBERS - size * (LAYERS - 1)]
    base = {f"layer{i}": torch.randn(n, generator=draw) for i, n in enumerate(shapes)}
    paths = [folder / f"{name}.safetensors" for name in ("base", *range(MODELS))]
    save_file(base, paths[0])
    for path in paths[1:]:
        save_file({n: t + 1e-3 * torch.randn(t.shape, generator=draw) for n, t in base.items()}, path)
    return paths


def merge(folder: Path) -> dict[str, float]:
    """The merge, in this process."""
    from fedquilt.analysis.merging import Request, merge_files

    paths = [folder / f"{name}.safetensors" for name in ("base", *range(MODELS))]
    before, wall, began = resident("VmRSS"), time.perf_counter(), time.process_time()
    merge_files(Request(paths[1:], folder / "merged.safetensors", base=paths[0], options={"keep": KEEP}, force=True))
    spent = time.process_time() - began
    return {"seconds": spent, "wall": time.perf_counter() - wall, "megabytes": resident("VmHWM") - before}


def select() -> dict[str, float]:
    """The threshold over all numbers."""
    from fedquilt.core.select import how_many, kth_largest

    values = torch.randn(NUMBERS, generator=torch.Generator().manual_seed(0)).abs()
    times = []
    for _ in range(3):
        began = time.process_time()
        kth_largest(values, how_many(KEEP, NUMBERS))
        times.append(time.process_time() - began)
    return {"seconds": min(times)}


def wire() -> list[dict[str, Any]]:
    """Frames of every density, beside the formulas."""
    from fedquilt.core.seed import Seed
    from fedquilt.pieces.codecs.sparse_wire import sparse
    from fedquilt.records.record import pack

    rows, draw = [], np.random.default_rng(0)
    for keep in DENSITIES:
        flat = draw.normal(size=NUMBERS).astype(np.float32)
        kept = int(keep * NUMBERS)
        flat[draw.permutation(NUMBERS)[kept:]] = 0
        delta = {"w": torch.from_numpy(flat)}
        entropy = NUMBERS * -(keep * math.log2(keep) + (1 - keep) * math.log2(1 - keep))
        formulas = {
            ("fp32", "bitmap"): NUMBERS + 32 * kept,
            ("fp32", "coded"): entropy + 32 * kept,
            ("sign", "coded"): entropy + kept,
            ("fp32", "dense"): 32 * NUMBERS,
        }
        if keep <= 0.1:
            formulas["fp32", "index"] = kept * (math.ceil(math.log2(NUMBERS)) + 32)
        row: dict[str, Any] = {"keep": keep}
        for (values, form), bits in formulas.items():
            frame = pack(sparse(values, form).encode(delta, delta, None, Seed(0))[0])  # type: ignore[arg-type]
            assert abs(8 * len(frame) / bits - 1) < 0.01, (keep, values, form, 8 * len(frame) / bits)
            row[f"{values} {form}"] = round(32 * NUMBERS / (8 * len(frame)), 3)
        chosen = sparse().encode(delta, delta, None, Seed(0))[0]
        row["chosen"] = chosen.form
        rows.append(row)
        print(row, flush=True)
    return rows


def main() -> None:
    """Measure, assert, tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only-merge", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only_merge:
        print(json.dumps(merge(options.only_merge)))
        return
    found: dict[str, Any] = {"select": select()}
    print(f"threshold of {NUMBERS:,} numbers: {found['select']['seconds']:.3f} s")
    with tempfile.TemporaryDirectory() as folder:
        write_models(Path(folder))
        command = [sys.executable, __file__, "--only-merge", folder]
        runs = [
            json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout) for _ in range(2)
        ]
    found["merge"] = min(runs, key=lambda r: r["seconds"])
    one = 4 * NUMBERS / 1e6
    took = found["merge"]
    print(
        f"merge of {MODELS} models: {took['seconds']:.2f} s of processor, {took['wall']:.2f} s wall, "
        f"{took['megabytes']:.0f} MB above the start (one model: {one:.0f} MB)",
        flush=True,
    )
    found["wire"] = wire()
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    assert found["select"]["seconds"] < 0.5
    assert found["merge"]["seconds"] < 4.0
    assert found["merge"]["megabytes"] < 3 * one


if __name__ == "__main__":
    main()
