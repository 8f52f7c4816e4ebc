"""How much memory a process needed, and which tensors it still holds."""

from __future__ import annotations

import gc
import resource
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

BLOCK = 512  # allocators hand out memory in blocks of this size


def memory() -> dict[str, Any]:
    """The largest resident memory of this process so far, that of each accelerator, and the tensors alive now."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else range(0)
    return {
        "peak_resident_bytes": peak,
        "peak_accelerator_bytes": {f"cuda:{d}": torch.cuda.max_memory_allocated(d) for d in devices},
        "live_tensors": live_tensors(),
    }


def available() -> int:
    """How many bytes a new process may use without hurting others: what the system has left, and what a container may
    still take; where neither is told, none."""
    left = [_first(line) * 1024 for line in _lines("/proc/meminfo") if line.startswith("MemAvailable:")]
    for most, now in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
        for place in (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/memory")):
            limit, used = _lines(place / most), _lines(place / now)
            if limit and used and limit[0].isdecimal() and used[0].isdecimal():
                left.append(max(int(limit[0]) - int(used[0]), 0))
    return min(left, default=0)


def _lines(file: str | Path) -> list[str]:
    try:
        return Path(file).read_text().splitlines()
    except OSError:
        return []


def _first(line: str) -> int:
    return int(line.split()[1])


def live_tensors() -> dict[str, dict[str, int]]:
    """Of each device: how many tensors this process holds, and the bytes behind them.

    Memory that several tensors share counts once, gradients count too, and sizes are rounded up to 512 bytes. It looks
    at every object of the process, which takes a while: for reports, not for loops.
    """
    storages: dict[str, dict[int, int]] = {}
    counts: dict[str, int] = {}
    for value in gc.get_objects():
        if not issubclass(type(value), Tensor) or value.layout is not torch.strided:  # isinstance would wake proxies
            continue
        for tensor in (value, value.grad if value.is_leaf else None):
            if tensor is None:
                continue
            try:
                device, storage = str(tensor.device), tensor.untyped_storage()
            except NotImplementedError:  # a view that torch.func made, without memory of its own
                continue
            counts[device] = counts.get(device, 0) + 1
            storages.setdefault(device, {})[storage.data_ptr()] = -(-storage.nbytes() // BLOCK) * BLOCK
    return {device: {"tensors": counts[device], "bytes": sum(storages[device].values())} for device in sorted(counts)}
