"""What a matrix is in named tensors, and codecs that code one matrix after the other."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeGuard

import torch
from torch import Tensor

from fedquilt.core.params import Params
from fedquilt.core.seed import Seed
from fedquilt.errors import FrameError, InputError
from fedquilt.pieces.codecs.layout import MOST_TRAVELLING, Layout, held, is_params, layout_of, read, written
from fedquilt.records.record import record

_TIMES = 16  # how many times the entries of the download an upload may have


@record
class Coded:
    """Coded tensors on the wire: their layout (a number if both sides hold an equal one), and a part per matrix."""

    layout: Any
    parts: tuple[Any, ...]


class Matrixwise(ABC):
    """A codec for every float32 tensor of what it is given: Params, tensors, and records of them.

    Params that are one layer (``X.weight`` and ``X.bias``, nothing else) are one matrix: a row per output, the
    bias as the last column. In all other Params every tensor is a matrix of its own: its first dimension counts
    the rows, and a vector is one row. Tensors of other dtypes (BatchNorm's counters) travel as they are.
    """

    @abstractmethod
    def code(self, matrix: Tensor, seed: Seed, memory: object = None) -> tuple[object, object]:
        """(the part that travels, what to remember for next time) of a float32 matrix."""

    @abstractmethod
    def restore(self, part: object, rows: int, columns: int) -> Tensor:
        """The matrix of a part; refuses what :meth:`code` cannot have made."""

    def encode(self, upload: object, sent: object, memory: list[object] | None, seed: Seed) -> tuple[object, object]:
        """Everything in ``upload`` that is made of tensors, coded."""
        kept: list[object] = []
        before = iter(memory if memory is not None else ())

        def one(value: Tensor | Params) -> Coded:
            parts: list[object] = []
            layout = layout_of(value)
            for matrix in _matrices(layout, _flat(value)):
                if matrix.dtype is not torch.float32:
                    parts.append(matrix)
                    continue
                part, new = self.code(matrix, seed.fold(len(kept)), next(before, None))
                kept.append(new)
                parts.append(part)
            return Coded(written(layout, sent), tuple(parts))

        wire = swap(upload, _is_tensors, one)
        if not kept and not _may_hold(upload):
            raise InputError(
                f"{type(self).__name__} codes matrices, but there is no float32 tensor in {_described(upload)}. "
                "Name the field that holds tensors: on('field', codec)."
            )
        return wire, kept if any(new is not None for new in kept) else memory

    def decode(self, wire: object, sent: object) -> object:
        """Everything coded in ``wire``, as tensors again: so many entries as both sides hold, a few times over."""
        left = MOST_TRAVELLING + _TIMES * sum(layout.entries for layout in held(sent))

        def one(coded: Coded) -> object:
            nonlocal left
            layout = read(coded.layout, sent)
            left -= layout.entries
            if left < 0:  # few bytes could ask for much memory again and again
                raise FrameError("too large: the coded tensors have more entries in all than an upload may have.")
            plan = _plan(layout)
            if not isinstance(coded.parts, tuple) or len(coded.parts) != len(plan):
                raise FrameError(f"{len(plan)} matrices need as many parts.")
            found = []
            for (rows, columns, dtype), part in zip(plan, coded.parts, strict=True):
                if dtype is torch.float32:
                    found.append(self.restore(part, rows, columns))
                elif isinstance(part, Tensor) and part.dtype is dtype and part.shape == (rows, columns):
                    found.append(part)
                else:
                    raise FrameError(f"an uncoded part must be a tensor {dtype} of {rows} x {columns}.")
            return _named(layout, found)

        return swap(wire, lambda value: isinstance(value, Coded), one)


def swap(tree: object, chosen: Callable[[object], bool], change: Callable[[Any], object]) -> object:
    """The same tree with every chosen part changed."""
    if chosen(tree):
        return change(tree)
    if is_dataclass(tree) and not isinstance(tree, type):
        return replace(tree, **{f.name: swap(getattr(tree, f.name), chosen, change) for f in fields(tree)})
    if isinstance(tree, tuple):
        return tuple(swap(item, chosen, change) for item in tree)
    if isinstance(tree, list):
        return [swap(item, chosen, change) for item in tree]
    if isinstance(tree, dict):
        return {key: swap(item, chosen, change) for key, item in tree.items()}
    return tree


def _is_tensors(value: object) -> TypeGuard[Tensor | Params]:
    return isinstance(value, Tensor) or is_params(value)


def _flat(value: Tensor | Params) -> list[Tensor]:
    return [value] if isinstance(value, Tensor) else list(value.values())


def _one_layer(layout: Layout) -> bool:
    """Whether these are X.weight and X.bias and nothing else."""
    if len(layout.names) != 2 or set(layout.dtypes) != {torch.float32}:
        return False
    (weight, bias), (wide, long) = layout.names, layout.shapes
    same = str(weight).removesuffix("weight") == str(bias).removesuffix("bias")
    return same and weight != bias and len(wide) >= 2 and long == wide[:1]


def _sides(shape: tuple[int, ...]) -> tuple[int, int]:
    if len(shape) < 2:
        return 1, math.prod(shape)
    return shape[0], math.prod(shape[1:])


def _plan(layout: Layout) -> list[tuple[int, int, torch.dtype]]:
    """Rows, columns and dtype of each matrix."""
    if _one_layer(layout):
        rows, columns = _sides(layout.shapes[0])
        return [(rows, columns + 1, torch.float32)]
    return [(*_sides(s), d) for s, d in zip(layout.shapes, layout.dtypes, strict=True)]


def _matrices(layout: Layout, tensors: list[Tensor]) -> list[Tensor]:
    if _one_layer(layout):
        weight, bias = tensors
        return [torch.cat([weight.reshape(len(weight), -1), bias[:, None]], dim=1)]
    return [t.reshape(_sides(tuple(t.shape))) for t in tensors]


def _named(layout: Layout, matrices: list[Tensor]) -> object:
    """The tensors of these matrices, under their names."""
    parts = [matrices[0][:, :-1], matrices[0][:, -1]] if _one_layer(layout) else matrices
    shaped = [part.reshape(shape).contiguous() for part, shape in zip(parts, layout.shapes, strict=True)]
    return shaped[0] if layout.names == (None,) else dict(zip(layout.names, shaped, strict=True))


def _may_hold(value: object) -> bool:
    """Whether tensors may be here at another time: there is an empty dict, list or tuple."""
    if is_dataclass(value) and not isinstance(value, type):
        return any(_may_hold(getattr(value, f.name)) for f in fields(value))
    if isinstance(value, dict | list | tuple):
        return not value or any(map(_may_hold, value.values() if isinstance(value, dict) else value))
    return False


def _described(value: object) -> str:
    if is_dataclass(value):
        return f"{type(value).__name__}({', '.join(f.name for f in fields(value))})"
    return f"a value of type {type(value).__name__}"
