"""Batches and values on their way to a device; on the CPU nothing happens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from fedquilt.core.table import Batch
from fedquilt.errors import InputError


def elsewhere(device: torch.device | None) -> bool:
    """Whether work goes on another device than the CPU."""
    return device is not None and device.type != "cpu"


def has_bfloat16(device: torch.device) -> bool:
    """Whether a device computes in bfloat16 itself; others imitate it, several times slower than float32."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type == "cpu":
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return False


def unused(remedy: str, what: str = "clients train") -> str:
    """That this machine has CUDA devices where work is about to go to the CPU, and what to do; empty if it has none."""
    count = torch.cuda.device_count()  # which, unlike is_available, leaves later forks alone
    if not count:
        return ""
    return f"This machine has {count} CUDA device{'s' * (count > 1)}, and {what} on the CPU. {remedy}"


@contextmanager
def in_bfloat16(device: torch.device) -> Iterator[None]:
    """Inside, matrix products and convolutions are computed in bfloat16, sums and losses in float32."""
    if not has_bfloat16(device):
        raise InputError(
            f"precision 'bfloat16' needs a device that computes in it, and {device.type!r} here does not. Leave it out."
        )
    with torch.autocast(device.type, dtype=torch.bfloat16):
        yield


def moved(value: object, device: torch.device) -> Any:
    """The same tree with its tensors on the device; from pinned memory to CUDA, so that the copy waits for nobody."""
    if isinstance(value, Tensor):
        if device.type == "cuda" and value.device.type == "cpu":
            value = value.pin_memory()
        return value.to(device, non_blocking=True)
    if isinstance(value, Mapping):
        return {k: moved(v, device) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(moved(v, device) for v in value)
    return value


def carried(batches: Iterable[Batch], device: torch.device | None) -> Iterator[Batch]:
    """The batches, on the device. On CUDA the next one travels on a stream of its own while this one is worked on."""
    if device is None or not elsewhere(device):
        yield from batches
    elif device.type != "cuda":
        for batch in batches:
            yield _on(batch, device)
    else:
        yield from _ahead(batches, device)


def _on(batch: Batch, device: torch.device) -> Batch:
    weight = None if batch.weight is None else moved(batch.weight, device)
    return Batch(moved(batch.columns, device), weight)


def _ahead(batches: Iterable[Batch], device: torch.device) -> Iterator[Batch]:
    copying, waiting = torch.cuda.Stream(device), None
    for batch in batches:
        with torch.cuda.stream(copying):
            coming = _on(batch, device)
        if waiting is not None:
            yield waiting
        torch.cuda.current_stream(device).wait_stream(copying)
        for part in (*coming.columns.values(), *(() if coming.weight is None else (coming.weight,))):
            part.record_stream(torch.cuda.current_stream(device))  # its memory is in use there too
        waiting = coming
    if waiting is not None:
        yield waiting
