"""Trees of mappings and sequences with tensors for leaves: what an objective is given as ``fixed``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

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
