"""Where the chosen ones of P numbers are: as a bitmap, as a list, or as gaps in a Golomb code."""

from __future__ import annotations

import math

import numpy as np

from fedquilt.errors import FrameError
from fedquilt.pieces.codecs.bits import Ints, bytes_for, from_bits, to_bits, unpack_bits, width_of

_BLOCK = 1 << 16  # numbers that are turned into bits at a time; a multiple of 8, so that blocks end at whole bytes


def write_bitmap(places: Ints, total: int) -> bytes:
    """One bit for each number."""
    bits = np.zeros(total, dtype=np.uint8)
    bits[places] = 1
    return np.packbits(bits).tobytes()


def read_bitmap(raw: bytes, total: int) -> Ints:
    """The places that :func:`write_bitmap` wrote."""
    if len(raw) != bytes_for(total):
        raise FrameError(f"a bitmap of {total} numbers takes {bytes_for(total)} bytes, got {len(raw)}. Truncated?")
    found = np.flatnonzero(np.unpackbits(np.frombuffer(raw, dtype=np.uint8)))
    if len(found) and found[-1] >= total:
        raise FrameError("the filling of a bitmap is not zero.")
    return found


def write_numbers(numbers: Ints, width: int) -> bytes:
    """Numbers of equal width, one after the other."""
    blocks = (numbers[low : low + _BLOCK] for low in range(0, len(numbers), _BLOCK))
    return b"".join(np.packbits(to_bits(block, width)).tobytes() for block in blocks) if width else b""


def read_numbers(raw: bytes, count: int, width: int) -> Ints:
    """The numbers that :func:`write_numbers` wrote."""
    if len(raw) != bytes_for(count * width):
        raise FrameError(f"{count} numbers of {width} bits take {bytes_for(count * width)} bytes, got {len(raw)}.")
    if not width:
        return np.zeros(count, dtype=np.int64)
    found, step = [np.zeros(0, dtype=np.int64)], bytes_for(_BLOCK * width)
    for low in range(0, count, _BLOCK):
        piece = np.frombuffer(raw, dtype=np.uint8)[low // _BLOCK * step :][:step]
        found.append(from_bits(np.unpackbits(piece)[: min(_BLOCK, count - low) * width], width).astype(np.int64))
    return np.concatenate(found)


def write_list(places: Ints, total: int) -> bytes:
    """Each place in ceil(log2 P) bits."""
    return write_numbers(places, width_of(total))


def read_list(raw: bytes, count: int, total: int) -> Ints:
    """The places that :func:`write_list` wrote."""
    found = read_numbers(raw, count, width_of(total))
    if count and (found[-1] >= total or bool((np.diff(found) <= 0).any())):
        raise FrameError("places must rise and be inside the tensors.")
    return found


def golomb_step(places: Ints, total: int) -> tuple[int, int]:
    """The step with which the gaps between places take the fewest bits, and how many bytes those are."""
    gaps = _gaps(places)
    if not len(gaps):
        return 1, 0
    share = len(gaps) / total
    best = math.ceil(math.log(2 - share) / -math.log1p(-share)) if share < 1 else 1  # Gallager and van Voorhis 1975
    sizes = {step: _size(gaps, step) for step in {max(best - 1, 1), best, best + 1}}
    step = min(sizes, key=lambda m: (sizes[m], m))
    return step, sizes[step]


def write_gaps(places: Ints, step: int) -> bytes:
    """Golomb code of the gaps: quotients in unary, all of them first; then the remainders in truncated binary, all
    leading bits before all last bits, so that each part has entries of one width."""
    gaps = _gaps(places)
    ends = np.cumsum(gaps // step + 1) - 1
    unary = np.zeros(int(ends[-1]) + 1 if len(ends) else 0, dtype=np.uint8)
    unary[ends] = 1
    rest, (width, short) = gaps % step, _truncated(step)
    long = rest >= short
    lead = np.where(long, (rest + short) >> 1, rest)
    last = ((rest + short) & 1)[long].astype(np.uint8) if width else np.zeros(0, dtype=np.uint8)
    return np.packbits(unary).tobytes() + write_numbers(lead, max(width - 1, 0)) + np.packbits(last).tobytes()


def read_gaps(raw: bytes, count: int, step: int, total: int) -> Ints:
    """The places that :func:`write_gaps` wrote."""
    if not 1 <= step <= max(total, 1) + 1:
        raise FrameError(f"gaps in steps of {step} among {total} numbers.")
    bits = np.unpackbits(np.frombuffer(raw, dtype=np.uint8))
    ends = np.flatnonzero(bits)[:count]
    if len(ends) < count:
        raise FrameError(f"{count} gaps were announced, {len(ends)} came.")
    high = np.diff(ends, prepend=-1) - 1
    (width, short), at = _truncated(step), bytes_for(int(ends[-1]) + 1) if count else 0
    middle = at + bytes_for(count * max(width - 1, 0))
    lead = read_numbers(raw[at:middle], count, max(width - 1, 0))
    long = np.flatnonzero(lead >= short) if width else np.zeros(0, dtype=np.int64)
    last = unpack_bits(raw[middle:], len(long))
    lead[long] = (lead[long] << 1) + last - short
    if count and (int(high.max()) * step > total or int(lead.max()) >= step):
        raise FrameError("a gap is longer than the tensors.")
    places = np.cumsum(high * step + lead + 1) - 1
    if count and int(places[-1]) >= total:
        raise FrameError("a place is outside the tensors.")
    return places


def _gaps(places: Ints) -> Ints:
    return np.diff(places, prepend=-1) - 1


def _truncated(step: int) -> tuple[int, int]:
    """Bits of the longer remainders, and how many remainders are one bit shorter."""
    width = width_of(step)
    return width, (1 << width) - step


def _size(gaps: Ints, step: int) -> int:
    quotients = gaps // step
    width, short = _truncated(step)
    long = int((gaps - quotients * step >= short).sum()) if width else 0
    lead = bytes_for(len(gaps) * max(width - 1, 0))
    return bytes_for(int(quotients.sum()) + len(gaps)) + lead + bytes_for(long)
