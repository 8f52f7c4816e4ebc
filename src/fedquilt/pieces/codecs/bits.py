"""Bits and small numbers in bytes, most significant bit first; readers that trust nothing."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fedquilt.errors import FrameError

Bits = NDArray[np.uint8]  # one 0 or 1 per entry
Ints = NDArray[np.int64]  # places, counts, widths
Whole = NDArray[np.integer]  # whole numbers of any width
Floats = NDArray[np.float64]
Floats32 = NDArray[np.float32]


def width_of(values: int) -> int:
    """How many bits tell one of so many values."""
    return max(values - 1, 0).bit_length()


def bytes_for(bits: int) -> int:
    """How many bytes hold so many bits."""
    return -(-bits // 8)


def to_bits(numbers: Whole, width: int) -> Bits:
    """Numbers of 0 or more as bits, each of the same width."""
    out = np.empty((len(numbers), width), dtype=np.uint8)
    for place in range(width):
        out[:, place] = (numbers >> (width - 1 - place)) & 1
    return out.reshape(-1)


def from_bits(bits: Bits, width: int) -> Whole:
    """The numbers (int32, or int64 if they are wide) that :func:`to_bits` wrote."""
    columns = bits.reshape(-1, width) if width else bits.reshape(0, 0)
    out: Whole = np.zeros(len(columns), dtype=np.int32 if width < 32 else np.int64)
    for place in range(width):
        out <<= 1
        out |= columns[:, place]
    return out


def pack_bits(*parts: Bits) -> bytes:
    """Bits one after the other; the last byte is filled with zeros."""
    return np.packbits(parts[0] if len(parts) == 1 else np.concatenate(parts)).tobytes()


def unpack_bits(raw: bytes, count: int) -> Bits:
    """Exactly ``count`` bits that fill ``raw``; anything else is refused."""
    if len(raw) != bytes_for(count):
        raise FrameError(f"{count} bits take {bytes_for(count)} bytes, got {len(raw)}. Truncated?")
    bits = np.unpackbits(np.frombuffer(raw, dtype=np.uint8))
    if bits[count:].any():
        raise FrameError(f"the filling after {count} bits is not zero.")
    return bits[:count]


_SIGNS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).astype(np.float32) * 2 - 1


def plus_minus(bits: Bits, rows: int, columns: int) -> Floats32:
    """1 and -1 (float32 [rows, columns]) for bits 1 and 0, eight at a time."""
    return _SIGNS.take(np.packbits(bits), axis=0).reshape(-1)[: rows * columns].reshape(rows, columns)


def to_float(value: float) -> bytes:
    """A number as 32 bits; what is too large for them becomes infinite."""
    with np.errstate(over="ignore"):
        return np.array(value, dtype=">f4").tobytes()


def from_float(raw: bytes, what: str) -> float:
    """The number in 4 bytes, which must be finite and not negative."""
    if len(raw) != 4:
        raise FrameError(f"{what} takes 4 bytes, got {len(raw)}. Truncated?")
    value = float(np.frombuffer(raw, dtype=">f4")[0])
    if not math.isfinite(value) or value < 0:
        raise FrameError(f"{what} is {value}; it must be finite and not negative. Did training diverge?")
    return value


def to_varint(value: int) -> bytes:
    """A number of 0 or more, 7 bits to the byte, the low ones first."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def from_varint(raw: bytes, at: int) -> tuple[int, int]:
    """The number that begins at a place, and the place after it."""
    value = 0
    for shift in range(0, 63, 7):
        if at >= len(raw):
            raise FrameError("a number ends too early. Truncated?")
        byte = raw[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            if byte == 0 and shift:
                raise FrameError("a number is longer than it need be.")
            return value, at
    raise FrameError("a number is too long.")
