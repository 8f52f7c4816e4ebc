"""A few bits per entry.

Sixteen bits per entry.

One bit per entry and one scale.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedquilt.core.params import finite
from fedquilt.core.seed import Seed
from fedquilt.errors import FrameError, InputError
from fedquilt.pieces.codecs.bits import (
    Bits,
    bytes_for,
    from_bits,
    from_float,
    pack_bits,
    plus_minus,
    to_bits,
    to_float,
    unpack_bits,
)
from fedquilt.pieces.codecs.matrices import Matrixwise


@dataclass(frozen=True)
class sign(Matrixwise):
    """+-s with s = mean |g|, which of all scales has the least squared error. A zero counts as negative.

    Wire form: s (float32), then a bit per entry, row by row (1: positive). Biased: use it with error feedback.

    Reference: Karimireddy et al., Error Feedback Fixes SignSGD, 2019.
    """

    def size(self, rows: int, columns: int) -> int:
        """Bytes of a matrix."""
        return bytes_for(32 + rows * columns)

    def code(self, matrix: Tensor, seed: Seed, memory: object = None) -> tuple[object, object]:
        """The bytes of a matrix."""
        scale = float(matrix.abs().mean()) if matrix.numel() else 0.0
        bits: Bits = (matrix.detach() > 0).numpy().view(np.uint8).reshape(-1)
        return to_float(scale) + pack_bits(bits), None

    def restore(self, part: object, rows: int, columns: int) -> Tensor:
        """The matrix of these bytes."""
        if not isinstance(part, bytes) or len(part) != self.size(rows, columns):
            raise FrameError(f"{rows} x {columns} signs take {self.size(rows, columns)} bytes. Truncated?")
        scale = np.float32(from_float(part[:4], "the scale"))
        values = plus_minus(unpack_bits(part[4:], rows * columns), rows, columns)
        values *= scale
        return torch.from_numpy(values)


@dataclass(frozen=True)
class half(Matrixwise):
    """The nearest number of 16 bits.

    Args:
        kind: ``"float16"`` (11 digits of precision, up to 65504) or ``"bfloat16"`` (8 digits, float32's range).
    """

    kind: Literal["float16", "bfloat16"] = "float16"

    def __post_init__(self) -> None:
        if self.kind not in ("float16", "bfloat16"):
            raise InputError(f"half is float16 or bfloat16, got {self.kind!r}.")

    def size(self, rows: int, columns: int) -> int:
        """Bytes of a matrix."""
        return 2 * rows * columns

    def code(self, matrix: Tensor, seed: Seed, memory: object = None) -> tuple[object, object]:
        """The matrix in 16 bits."""
        return matrix.detach().to(getattr(torch, self.kind)), None

    def restore(self, part: object, rows: int, columns: int) -> Tensor:
        """The matrix in 32 bits."""
        if not isinstance(part, Tensor) or part.dtype is not getattr(torch, self.kind) or part.shape != (rows, columns):
            raise FrameError(f"{rows} x {columns} entries of {self.kind} are needed.")
        whole = part.float()
        if not finite([whole]):
            raise FrameError(
                f"a number is not finite as {self.kind}. Did training diverge? bfloat16 has a wider range."
            )
        return whole


@dataclass(frozen=True)
class uniform(Matrixwise):
    """Each entry as the nearest of 2**bits evenly spaced numbers from the smallest to the largest entry.

    Wire form: the smallest and the largest (float32), then ``bits`` bits per entry.

    Args:
        bits: Per entry, from 1 to 16.
        stochastic: Round up or down at random such that the mean is right, instead of to the nearest.
    """

    bits: int = 8
    stochastic: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= 16:
            raise InputError(f"bits must be from 1 to 16, got {self.bits}.")

    def size(self, rows: int, columns: int) -> int:
        """Bytes of a matrix."""
        return 8 + bytes_for(self.bits * rows * columns)

    def code(self, matrix: Tensor, seed: Seed, memory: object = None) -> tuple[object, object]:
        """The bytes of a matrix."""
        flat = matrix.detach().flatten()
        low, high = (float(flat.min()), float(flat.max())) if len(flat) else (0.0, 0.0)
        span = high - low
        steps = torch.zeros_like(flat)
        if 0 < span < math.inf:
            steps = (flat - low) * (((1 << self.bits) - 1) / span)
            steps = _rounded(steps, seed if self.stochastic else None)
        return np.array([low, high], dtype=">f4").tobytes() + _packed(steps, self.bits), None

    def restore(self, part: object, rows: int, columns: int) -> Tensor:
        """The matrix of these bytes."""
        part = _fitting(part, self.size(rows, columns), rows, columns)
        low, high = (float(v) for v in np.frombuffer(part, dtype=">f4", count=2))
        if not (math.isfinite(low) and math.isfinite(high) and low <= high):
            raise FrameError(f"the range {low} to {high} must be finite. Did training diverge?")
        step = (high - low) / ((1 << self.bits) - 1)
        return _unpacked(part[8:], self.bits, rows * columns).mul_(step).add_(low).view(rows, columns)


@dataclass(frozen=True)
class qsgd(Matrixwise):
    """QSGD: signs, and sizes in s = 2**(bits - 1) - 1 steps of their block's norm, rounded at random; unbiased.

    In each block of ``block`` entries (row by row) with the Euclidean norm R, g travels as its sign and
    l in {floor, ceil} of s |g| / R such that the mean is right, and comes back as sign R l / s.

    Wire form: R of each block (float32), then ``bits`` bits per entry: the sign (1: positive) and l.

    Args:
        bits: Per entry, from 2 to 16.
        block: How many entries share a norm.

    Reference: Alistarh et al., QSGD, 2017.
    """

    bits: int = 4
    block: int = 512

    def __post_init__(self) -> None:
        if not 2 <= self.bits <= 16:
            raise InputError(f"bits must be from 2 to 16, got {self.bits}.")
        if self.block < 1:
            raise InputError(f"block must be at least 1, got {self.block}.")

    def size(self, rows: int, columns: int) -> int:
        """Bytes of a matrix."""
        return 4 * -(-rows * columns // self.block) + bytes_for(self.bits * rows * columns)

    def code(self, matrix: Tensor, seed: Seed, memory: object = None) -> tuple[object, object]:
        """The bytes of a matrix."""
        flat = matrix.detach().flatten()
        blocks = torch.nn.functional.pad(flat, (0, -len(flat) % self.block)).view(-1, self.block)
        norms = torch.linalg.vector_norm(blocks, dim=1)
        most = (1 << (self.bits - 1)) - 1
        if bool(norms.isfinite().all()):
            factors = torch.where(norms > 0, most / norms, 0.0).clamp_(max=3e38)
            sizes = blocks.abs().mul_(factors[:, None]).flatten()[: len(flat)]
            levels = _rounded(sizes, seed).clamp_(max=most)
        else:  # it will be refused where it arrives
            levels = torch.zeros_like(flat)
        signed = levels.add_((flat > 0).float(), alpha=most + 1)
        return norms.numpy().astype(">f4").tobytes() + _packed(signed, self.bits), None

    def restore(self, part: object, rows: int, columns: int) -> Tensor:
        """The matrix of these bytes."""
        part = _fitting(part, self.size(rows, columns), rows, columns)
        entries = rows * columns
        count = -(-entries // self.block)
        norms = torch.from_numpy(np.frombuffer(part, dtype=">f4", count=count).astype(np.float32))
        if not bool((norms.isfinite() & (norms >= 0)).all()):
            raise FrameError("the norm of a block is not finite or negative. Did training diverge?")
        most = (1 << (self.bits - 1)) - 1
        codes = _unpacked(part[4 * count :], self.bits, entries)
        signs = (codes > most).float()
        levels = codes.sub_(signs, alpha=most + 1).mul_(signs.mul_(2).sub_(1))
        blocks = torch.nn.functional.pad(levels, (0, -entries % self.block)).view(-1, self.block)
        return blocks.mul_((norms / most)[:, None]).flatten()[:entries].view(rows, columns)


def _rounded(steps: Tensor, seed: Seed | None) -> Tensor:
    """To the nearest, or with a seed up or down at random."""
    if seed is None:
        return steps.round_()
    return steps.add_(torch.rand(steps.shape, generator=seed.torch())).floor_()


def _packed(steps: Tensor, bits: int) -> bytes:
    codes = steps.numpy().astype(np.uint16)
    np.minimum(codes, (1 << bits) - 1, out=codes)
    if bits in (8, 16):
        return codes.astype(">u2" if bits == 16 else np.uint8).tobytes()
    return pack_bits(to_bits(codes, bits))


def _unpacked(raw: bytes, bits: int, entries: int) -> Tensor:
    if bits in (8, 16):
        codes = np.frombuffer(raw, dtype=">u2" if bits == 16 else np.uint8)
    else:
        codes = from_bits(unpack_bits(raw, entries * bits), bits)
    return torch.from_numpy(codes.astype(np.float32))


def _fitting(part: object, size: int, rows: int, columns: int) -> bytes:
    if not isinstance(part, bytes) or len(part) != size:
        raise FrameError(f"{rows} x {columns} entries take {size} bytes. Truncated?")
    return part
