"""How much memory a process needed, and which tensors it still holds."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedquilt.core.memory import peak_bytes

BLOCK = 512  # allocators hand out memory in blocks of this size


def memory() -> dict[str, Any]:
    """The largest resident memory of this process so far, that of each accelerator, and the tensors alive now."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else range(0)
    return {
        "peak_resident_bytes": peak_bytes(),
        "peak_accelerator_bytes": {f"cuda:{d}": torch.cuda.max_memory_allocated(d) for d in devices},
        "live_tensors": live_tensors(),
    }


def available() -> int:
    """How many bytes a new process may use without hurting others: what the system has left, and what the control
    groups of this process may still take; 0 where nothing is told."""
    left = [int(line.split()[1]) * 1024 for line in _lines(Path("/proc/meminfo")) if line.startswith("MemAvailable:")]
    for line in _lines(Path("/proc/self/cgroup")):
        _, kinds, own = line.split(":", 2)
        if kinds == "":
            left += _rooms(_CGROUPS, own, "memory.max", "memory.current", "inactive_file")
        elif "memory" in kinds.split(","):
            left += _rooms(
                _CGROUPS / "memory", own, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
            )
    return min(left, default=0)


_CGROUPS = Path("/sys/fs/cgroup")


def _rooms(top: Path, own: str, limit: str, used: str, cached: str) -> list[int]:
    """What a control group and those above it may still take; files in the cache make room when it is needed."""
    found, place = [], top / own.strip("/")
    for group in (place, *place.parents):
        most, now = _lines(group / limit), _lines(group / used)
        if most and now and most[0].isdecimal():
            free = sum(int(line.split()[1]) for line in _lines(group / "memory.stat") if line.split()[0] == cached)
            found.append(max(int(most[0]) - int(now[0]) + free, 0))
        if group == top:
            break
    return found


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def live_tensors() -> dict[str, dict[str, int]]:
    """Of each device: how many tensors this process holds, and the bytes behind them.

    Memory that several tensors share counts once, gradients count too, and sizes are rounded up to 512 bytes. It looks
    at every object of the process, which takes a while: for reports, not for loops.
    """
    storages: dict[str, dict[int, int]] = {}
    counts: dict[str, int] = {}
    for value in _objects():
        if not issubclass(type(value), Tensor) or value.layout is not torch.strided:  # isinstance would wake proxies
            continue
        for tensor in (value, value.grad if value.is_leaf else None):
            if tensor is None:
                continue
            try:
                device, storage = str(tensor.device), tensor.untyped_storage()
                place, size = storage.data_ptr(), storage.nbytes()
            except (NotImplementedError, RuntimeError):  # without memory of its own: views of torch.func, wrappers
                continue
            counts[device] = counts.get(device, 0) + 1
            storages.setdefault(device, {})[place] = -(-size // BLOCK) * BLOCK
    return {device: {"tensors": counts[device], "bytes": sum(storages[device].values())} for device in sorted(counts)}


def _objects() -> list[Any]:
    """All that the garbage collector knows, also what was set aside before a fork."""
    frozen = gc.get_freeze_count() > 0
    if frozen:
        gc.unfreeze()
    found = gc.get_objects()
    if frozen:
        gc.freeze()
    return found
