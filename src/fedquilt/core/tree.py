"""Trees of mappings and sequences with tensors for leaves: what an objective is given as ``fixed``.

And batches and such trees on their way to a device; on the CPU nothing happens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from fedquilt.core.table import Batch
from fedquilt.errors import InputError

_PLAIN = (type(None), bool, int, float, str, bytes, torch.dtype, torch.device)


def leaves(value: object) -> list[Tensor]:
    """The tensors of a tree, in order."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        return [t for v in value.values() for t in leaves(v)]
    if isinstance(value, tuple | list):
        return [t for v in value for t in leaves(v)]
    return []


def filled(value: object, tensors: Iterator[Tensor]) -> Any:
    """The same tree with these tensors in their place."""
    if isinstance(value, Tensor):
        return next(tensors)
    if isinstance(value, Mapping):
        return {k: filled(v, tensors) for k, v in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(filled(v, tensors) for v in value))
    if isinstance(value, tuple | list):
        return type(value)(filled(v, tensors) for v in value)
    return value


def shape(value: object) -> Any:
    """What two trees must have in common to be stacked."""
    if isinstance(value, Tensor):
        return tuple(value.shape), value.dtype
    if isinstance(value, Mapping):
        return tuple((k, shape(v)) for k, v in value.items())
    if isinstance(value, tuple | list):
        return type(value), tuple(shape(v) for v in value)
    return repr(value)


def form(tensor: Tensor) -> tuple[Any, ...]:
    """All that a kernel may choose by, but for the values."""
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.requires_grad


def forms(value: object) -> Any:
    """The same for a tree: equal for trees that differ in the values of tensors only. Raises TypeError for a tree with
    leaves whose values cannot be seen, which might hide a tensor."""
    if isinstance(value, Tensor):
        if value.device.type != "cpu" or (type(value) is not Tensor and type(value) is not torch.nn.Parameter):
            raise TypeError(f"not an ordinary tensor on the CPU: {type(value).__name__}")
        return form(value)
    if isinstance(value, Mapping):
        return tuple((k, forms(v)) for k, v in value.items())
    if isinstance(value, tuple | list):
        return type(value), tuple(forms(v) for v in value)
    if isinstance(value, _PLAIN):
        return type(value), value
    raise TypeError(f"cannot look into a {type(value).__name__}")


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
