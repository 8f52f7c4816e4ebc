"""What a matrix is in named tensors; codecs that code one matrix after the other, and one of them, by thin products."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
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
    if isinstance(tree, tuple | list):
        return type(tree)(swap(item, chosen, change) for item in tree)
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


@dataclass(frozen=True)
class power_sgd(Matrixwise):
    """PowerSGD: one step of power iteration from the last Q: P = orthonormal(M Q), Q = M^T P, and P Q^T comes back.

    Wire form: P [rows, k] and Q [columns, k] (float32, so that ``chain`` can make them smaller); a matrix for which
    that is not smaller travels as it is. Q is remembered at the client. Biased: use it with error feedback.

    Args:
        rank: k, at least 1.

    Reference: Vogels et al., PowerSGD, 2019.
    """

    rank: int = 2

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise InputError(f"rank must be at least 1, got {self.rank}.")

    def thin(self, rows: int, columns: int) -> bool:
        """Whether two factors are smaller than the matrix."""
        return self.rank * (rows + columns) < rows * columns

    def size(self, rows: int, columns: int) -> int:
        """Bytes of a matrix."""
        return 4 * (self.rank * (rows + columns) if self.thin(rows, columns) else rows * columns)

    def code(self, matrix: Tensor, seed: Seed, memory: object = None) -> tuple[object, object]:
        """The two factors; the second is also remembered."""
        matrix = matrix.detach()
        rows, columns = matrix.shape
        if not self.thin(rows, columns):
            return matrix, torch.zeros(0)
        if isinstance(memory, Tensor) and memory.shape == (columns, self.rank) and bool(memory.any()):
            start = memory
        else:
            start = torch.randn(columns, self.rank, generator=seed.torch())
        if not bool(matrix.isfinite().all()):  # it will be refused where it arrives
            return (torch.full((rows, self.rank), torch.nan), torch.full((columns, self.rank), torch.nan)), memory
        left = torch.linalg.qr(matrix @ start).Q
        right = matrix.t() @ left
        return (left, right), right

    def restore(self, part: object, rows: int, columns: int) -> Tensor:
        """The product."""
        if not self.thin(rows, columns):
            return _factor(part, rows, columns)
        if not isinstance(part, tuple) or len(part) != 2:
            raise FrameError("a matrix of low rank travels as two factors.")
        left, right = _factor(part[0], rows, self.rank), _factor(part[1], columns, self.rank)
        found: Tensor = left.contiguous() @ right.contiguous().t()  # the last bits may depend on the layout
        return found


def _factor(factor: object, rows: int, columns: int) -> Tensor:
    if not isinstance(factor, Tensor) or factor.dtype is not torch.float32 or factor.shape != (rows, columns):
        raise FrameError(f"a factor must be a float32 tensor of {rows} x {columns}.")
    if not bool(factor.isfinite().all()):
        raise FrameError("a factor is not finite. Did training diverge?")
    return factor
