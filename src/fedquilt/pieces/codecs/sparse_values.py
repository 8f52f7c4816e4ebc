"""The chosen numbers themselves: whole, in half precision, or as signs with one size for each tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from fedquilt.errors import FrameError, InputError
from fedquilt.pieces.codecs.bits import Floats32, bytes_for, pack_bits, unpack_bits

Values = Literal["fp32", "fp16", "sign"]
KINDS = ("fp32", "fp16", "sign")


def size_of(kind: str, count: int) -> int:
    """How many bytes so many numbers take, scales apart."""
    return {"fp32": 4 * count, "fp16": 2 * count, "sign": bytes_for(count)}[kind]


def write(numbers: Floats32, kind: str, runs: Sequence[int]) -> tuple[bytes, bytes]:
    """(numbers, scales); ``runs`` says how many of the numbers belong to each tensor."""
    if kind == "fp32":
        return np.asarray(numbers, dtype="<f4").tobytes(), b""
    if kind == "fp16":
        shift = _exponent(numbers)
        return np.ldexp(numbers, -shift).astype("<f2").tobytes(), np.array([shift], dtype="<i2").tobytes()
    means = [float(np.abs(part).mean(dtype=np.float64)) if len(part) else 0.0 for part in _split(numbers, runs)]
    return pack_bits((numbers < 0).astype(np.uint8)), np.array(means, dtype="<f4").tobytes()


def read(raw: bytes, scales: bytes, kind: str, runs: Sequence[int]) -> Floats32:
    """The numbers that :func:`write` wrote, as float32."""
    count = sum(runs)
    if len(raw) != size_of(kind, count):
        raise FrameError(f"{count} numbers as {kind} take {size_of(kind, count)} bytes, got {len(raw)}. Truncated?")
    if kind == "fp32":
        _expect(scales, 0)
        return np.frombuffer(raw, dtype="<f4").astype(np.float32)
    if kind == "fp16":
        _expect(scales, 2)
        shift = int(np.frombuffer(scales, dtype="<i2")[0])
        with np.errstate(over="ignore"):
            return np.ldexp(np.frombuffer(raw, dtype="<f2").astype(np.float32), shift)
    _expect(scales, 4 * len(runs))
    sizes = np.repeat(np.frombuffer(scales, dtype="<f4"), runs)
    return np.where(unpack_bits(raw, count).astype(bool), -sizes, sizes).astype(np.float32)


def check(kind: str) -> None:
    """Complain about an unknown kind."""
    if kind not in KINDS:
        raise InputError(f"values must be one of {', '.join(KINDS)}, got {kind!r}.")


def _exponent(numbers: Floats32) -> int:
    """The power of two that brings the largest number just below 2^15, where half precision is at its best."""
    largest = float(np.abs(numbers).max()) if len(numbers) else 0.0
    return math.frexp(largest)[1] - 15 if largest > 0 and math.isfinite(largest) else 0


def _split(numbers: Floats32, runs: Sequence[int]) -> list[Floats32]:
    return np.split(numbers, np.cumsum(runs)[:-1]) if len(runs) else []


def _expect(scales: bytes, size: int) -> None:
    if len(scales) != size:
        raise FrameError(f"the scales take {size} bytes, got {len(scales)}.")
