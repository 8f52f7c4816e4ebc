"""The bits of a coded matrix, plain or after a lossless stage.

The stages 'gaps' and 'adaptive' expect a sign by its row, and by whether a row above it is negative in the same column:
the rows of a softmax's gradient sum to zero, so somebody must be.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedquilt.errors import FrameError
from fedquilt.pieces.codecs.adaptive import Decoder, Encoder
from fedquilt.pieces.codecs.bits import Bits, Ints, Whole, bytes_for, from_bits, pack_bits, to_bits, unpack_bits
from fedquilt.pieces.codecs.gaps import In, Out

Lossless = Literal["none", "deflate", "gaps", "adaptive", "smallest"]
ALL = ("none", "deflate", "gaps", "adaptive", "smallest")
MOST_ADAPTIVE = 2**20  # entries that are coded bit by bit
_PLAIN, _DEFLATED, _ADAPTIVE, _GAPS = range(4)


@dataclass(frozen=True)
class Sections:
    """What is told of a matrix: a number per row, which columns are live, a number per live column (or none), signs."""

    index: Whole
    live: Bits
    codes: Whole
    signs: Bits


def write(told: Sections, index_bits: int, code_bits: int, lossless: Lossless) -> tuple[int, bytes]:
    """(stage, bytes): the smallest of those that are allowed."""
    body = pack_bits(to_bits(told.index, index_bits), told.live, to_bits(told.codes, code_bits), told.signs)
    made = [(_PLAIN, body)]
    if lossless in ("deflate", "smallest"):
        made.append((_DEFLATED, _deflated(body)))
    if lossless in ("gaps", "smallest"):
        made.append((_GAPS, _gapped(told, index_bits, code_bits)))
    if lossless in ("adaptive", "smallest") and len(told.index) * len(told.live) <= MOST_ADAPTIVE:
        made.append((_ADAPTIVE, _adapted(told, index_bits, code_bits)))
    return min(made, key=lambda one: len(one[1]))


def read(stage: int, body: bytes, rows: int, columns: int, index_bits: int, code_bits: int) -> Sections:
    """What :func:`write` wrote; anything else is refused."""
    if stage == _ADAPTIVE:
        return _unadapted(body, rows, columns, index_bits, code_bits)
    if stage == _GAPS:
        return _ungapped(body, rows, columns, index_bits, code_bits)
    head = rows * index_bits
    if stage == _DEFLATED:
        body = _inflated(body, bytes_for(head + columns + (rows + code_bits) * columns))
    if len(body) < bytes_for(head + columns):
        raise FrameError(f"{rows} rows and {columns} columns need {bytes_for(head + columns)} bytes. Truncated?")
    start = np.unpackbits(np.frombuffer(body, dtype=np.uint8, count=bytes_for(head + columns)))
    live = start[head : head + columns]
    alive = int(live.sum())
    signs = head + columns + alive * code_bits
    bits = unpack_bits(body, signs + rows * alive)
    codes = from_bits(bits[head + columns : signs], code_bits)
    return Sections(from_bits(bits[:head], index_bits), live, codes, bits[signs:])


def _adapted(told: Sections, index_bits: int, code_bits: int) -> bytes:
    encoder, rows = Encoder(), len(told.index)
    _write_numbers(encoder, told.index, index_bits)
    encoder.bits(told.live, np.zeros(len(told.live), dtype=np.int64))
    _write_numbers(encoder, told.codes, code_bits)
    met = np.zeros(int(told.live.sum()), dtype=np.int64)
    for row in told.signs.reshape(rows, len(met)):
        encoder.bits(row, met)
        met |= row == 0
    return encoder.finish()


def _unadapted(body: bytes, rows: int, columns: int, index_bits: int, code_bits: int) -> Sections:
    if rows * columns > MOST_ADAPTIVE or rows > MOST_ADAPTIVE or columns > MOST_ADAPTIVE:
        raise FrameError(f"adaptive coding of {rows} x {columns} entries; {MOST_ADAPTIVE} are the most.")
    decoder = Decoder(body)
    index = _read_numbers(decoder, rows, index_bits)
    live = decoder.bits(np.zeros(columns, dtype=np.int64))
    alive = int(live.sum())
    codes = _read_numbers(decoder, alive if code_bits else 0, code_bits)
    signs, met = np.zeros((rows, alive), dtype=np.uint8), np.zeros(alive, dtype=np.int64)
    for row in signs:
        row[:] = decoder.bits(met)
        met |= row == 0
    decoder.finish()
    return Sections(index, live, codes, signs.reshape(-1))


def _gapped(told: Sections, index_bits: int, code_bits: int) -> bytes:
    """Row indices as they are; then runs: the columns' marks, the codes bit by bit, signs with no negative one above
    them, and the signs below, row by row."""
    out, rows = Out([to_bits(told.index, index_bits)]), len(told.index)
    out.runs(told.live, np.array([len(told.live)]))
    for place in range(code_bits - 1, -1, -1):
        order, lengths = _by_prefix(told.codes >> (place + 1), code_bits - 1 - place)
        out.runs((told.codes >> place & 1).astype(np.uint8)[order], lengths)
    signs = told.signs.reshape(rows, -1)
    first = _first_negative(signs)
    below = np.arange(rows, dtype=np.int32)[:, None] > first
    lengths = _lengths_below(first, rows)
    out.runs(signs[~below], len(first) - lengths)
    out.runs(signs[below], lengths)
    return out.bytes()


def _ungapped(body: bytes, rows: int, columns: int, index_bits: int, code_bits: int) -> Sections:
    found = In(body)
    index = from_bits(found.fixed(rows * index_bits), index_bits)
    live = found.runs(1, _known(np.array([columns]))).bits
    alive = int(live.sum())
    codes = np.zeros(alive if code_bits else 0, dtype=np.int64)
    for width in range(code_bits):
        order, lengths = _by_prefix(codes, width)
        plane = found.runs(len(lengths), _known(lengths)).bits
        codes = codes << 1
        codes[order] |= plane
    first, free = np.full(alive, rows, dtype=np.int32), np.arange(alive)
    top, at = found.runs(rows, lambda counts, rare: _left(alive, counts, rare)), 0
    for row, (count, bit) in enumerate(zip(top.counts.tolist(), top.rare.tolist(), strict=True)):
        if len(free) and (count or bit):  # some are negative
            negative = np.full(len(free), bool(bit))
            negative[top.places[at : at + count]] ^= True
            first[free[negative]] = row
            free, at = free[~negative], at + count
    below = np.arange(rows, dtype=np.int32)[:, None] > first
    lower = found.runs(rows, _known(_lengths_below(first, rows)))
    found.finish()
    signs = (np.arange(rows, dtype=np.int32)[:, None] != first).view(np.uint8)
    signs[below] = lower.bits
    return Sections(index, live, codes, signs.reshape(-1))


def _known(lengths: Ints) -> Callable[[Ints, Bits], Ints]:
    return lambda counts, rare: lengths


def _first_negative(signs: Bits) -> Whole:
    """Of each column the first row whose sign is 0, or how many rows there are."""
    rows, columns = signs.shape
    first = np.full(columns, rows, dtype=np.int32)
    negative = np.flatnonzero(signs.reshape(-1) == 0)[::-1]  # from the last row up: the first one has the last message
    first[negative % max(columns, 1)] = negative // max(columns, 1)
    return first


def _lengths_below(first: Whole, rows: int) -> Ints:
    """Of each row, how many columns have a negative sign above it."""
    return np.cumsum(np.bincount(first, minlength=rows + 1))[:rows] - np.bincount(first, minlength=rows + 1)[:rows]


def _left(alive: int, counts: Ints, rare: Bits) -> Ints:
    """Of each row, how many columns have no negative sign above it."""
    lengths = []
    for count, bit in zip(counts.tolist(), rare.tolist(), strict=True):
        lengths.append(alive)
        alive = alive - count if bit == 0 else count
    return np.array(lengths, dtype=np.int64)


def _by_prefix(prefixes: Ints, width: int) -> tuple[Ints, Ints]:
    """The order that puts equal prefixes together, and how many there are of each."""
    return np.argsort(prefixes, kind="stable"), np.bincount(prefixes, minlength=1 << width)


def _write_numbers(encoder: Encoder, numbers: Whole, width: int) -> None:
    """The high bits of all numbers first; they tell what to expect of the lower ones."""
    for place in range(width - 1, -1, -1):
        encoder.bits((numbers >> place & 1).astype(np.uint8), numbers >> (place + 1))


def _read_numbers(decoder: Decoder, count: int, width: int) -> Ints:
    numbers = np.zeros(count, dtype=np.int64)
    for _ in range(width):
        numbers = numbers << 1 | decoder.bits(numbers)
    return numbers


def _deflated(body: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(body) + packer.flush()


def _inflated(body: bytes, most: int) -> bytes:
    unpacker = zlib.decompressobj(-15)
    try:
        out = unpacker.decompress(body, most + 1)
    except zlib.error as error:
        raise FrameError(f"deflated bits are damaged: {error}.") from error
    if len(out) > most or not unpacker.eof or unpacker.unused_data:
        raise FrameError("deflated bits do not end where they should. Truncated or damaged?")
    return out
