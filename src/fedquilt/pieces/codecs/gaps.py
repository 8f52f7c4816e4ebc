"""Runs of bits, most of them alike: the gaps between the rarer ones in Rice's code (1979), all at once.

A *run* is a number of bits with a statistic of its own. Of each run travel how many of its bits are rare and which bit
is the rare one, then the gap before each of them, in 2**k and the rest; k follows from the two counts. Bits that do not
depend on one another are read together, so nothing is done bit by bit. Within a few per cent of an arithmetic coder.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from fedquilt.errors import FrameError
from fedquilt.pieces.codecs.bits import Bits, Ints, bytes_for

_WIDEST = 40  # bits of a number


@dataclass
class Out:
    """Bits that are written."""

    parts: list[Bits] = field(default_factory=list)

    def numbers(self, numbers: Ints, widths: Ints) -> None:
        """Each number in bits of its own width, the highest first."""
        whose, place = _spread(widths)
        self.parts.append((numbers[whose] >> (widths[whose] - 1 - place) & 1).astype(np.uint8))

    def unary(self, numbers: Ints) -> None:
        """Each number as so many zeros and a one."""
        ends = np.cumsum(numbers + 1) - 1
        bits = np.zeros(int(ends[-1]) + 1 if len(ends) else 0, dtype=np.uint8)
        bits[ends] = 1
        self.parts.append(bits)

    def runs(self, bits: Bits, lengths: Ints) -> None:
        """Bits of several runs, one after the other."""
        starts = np.cumsum(lengths) - lengths
        ones = np.zeros(len(lengths), dtype=np.int64)
        if len(bits):
            ones[lengths > 0] = np.add.reduceat(bits, starts[lengths > 0], dtype=np.int64)
        rare = (2 * ones <= lengths).astype(np.uint8)
        counts = np.where(rare, ones, lengths - ones)
        widths = _bit_length(counts)
        self.unary(widths)
        self.numbers(counts, np.maximum(widths - 1, 0))  # the highest bit is known
        self.parts.append(rare)
        places = np.flatnonzero(bits == np.repeat(rare, lengths))
        gaps, steps = _gaps(places, counts, starts), np.repeat(_steps(counts, lengths), counts)
        self.unary(gaps >> steps)
        self.numbers(gaps & (1 << steps) - 1, steps)

    def bytes(self) -> bytes:
        """All bits, filled with zeros."""
        return np.packbits(np.concatenate(self.parts)).tobytes()


@dataclass(frozen=True)
class Runs:
    """How many bits of each run are rare, which bit that is, and the place of each rare one in its run."""

    lengths: Ints
    counts: Ints
    rare: Bits
    places: Ints

    @property
    def bits(self) -> Bits:
        """The bits of all runs, one after the other."""
        found: Bits = np.repeat(self.rare ^ 1, self.lengths)
        starts = np.cumsum(self.lengths) - self.lengths
        found[np.repeat(starts, self.counts) + self.places] ^= 1
        return found


class In:
    """Bits that are read, of a message that may be damaged."""

    def __init__(self, raw: bytes) -> None:
        self._bits: Bits = np.unpackbits(np.frombuffer(raw, dtype=np.uint8))
        self._ones, self._at = np.flatnonzero(self._bits), 0

    def unary(self, count: int) -> Ints:
        """So many numbers that :meth:`Out.unary` wrote."""
        first = int(np.searchsorted(self._ones, self._at))
        ends = self._ones[first : first + count]
        if len(ends) < count:
            raise FrameError("the coded bits end too early. Truncated?")
        numbers = ends - 1
        numbers[1:] -= ends[:-1]
        if count:
            numbers[0] -= self._at - 1
            self._at = int(ends[-1]) + 1
        return numbers

    def fixed(self, count: int) -> Bits:
        """So many bits."""
        if self._at + count > len(self._bits):
            raise FrameError("the coded bits end too early. Truncated?")
        self._at += count
        return self._bits[self._at - count : self._at]

    def numbers(self, widths: Ints) -> Ints:
        """Numbers of these widths."""
        whose, place = _spread(widths)
        bits = self.fixed(len(whose)).astype(np.int64) << (widths[whose] - 1 - place)
        total, ends = np.concatenate([[0], np.cumsum(bits)]), np.cumsum(widths)
        numbers: Ints = total[ends] - total[ends - widths]
        return numbers

    def runs(self, count: int, lengths: Callable[[Ints, Bits], Ints]) -> Runs:
        """So many runs; their lengths may follow from how many bits are rare, and which."""
        widths = self.unary(count)
        if count and int(widths.max()) > _WIDEST:
            raise FrameError("a number of rare bits is too large. Damaged?")
        counts = self.numbers(np.maximum(widths - 1, 0)) + (1 << np.maximum(widths, 1) >> 1) * (widths > 0)
        rare = self.fixed(count)
        long = lengths(counts, rare)
        if bool((2 * counts > long).any()):
            raise FrameError("more rare bits than others. Damaged?")
        steps = np.repeat(_steps(counts, long), counts)
        high, most = self.unary(len(steps)), np.repeat(long, counts)
        gaps = (np.minimum(high, most) << steps) + self.numbers(steps)  # none so large that sums could overflow
        walked = np.cumsum(np.minimum(gaps, most) + 1)
        before = np.concatenate([[0], walked])[np.cumsum(counts) - counts]
        places = walked - np.repeat(before, counts) - 1
        if bool((places >= most).any()):
            raise FrameError("a gap is longer than its run. Damaged?")
        return Runs(long, counts, rare, places)

    def finish(self) -> None:
        """Refuse a message that is longer than its bits need."""
        if bytes_for(self._at) != len(self._bits) // 8 or self._bits[self._at :].any():
            raise FrameError("the coded bits do not end where they should. Truncated or damaged?")


def _spread(widths: Ints) -> tuple[Ints, Ints]:
    """Of each bit of numbers of these widths: whose it is, and its place there."""
    whose = np.repeat(np.arange(len(widths)), widths)
    return whose, np.arange(len(whose)) - (np.cumsum(widths) - widths)[whose]


def _gaps(places: Ints, counts: Ints, starts: Ints) -> Ints:
    gaps = places - 1
    gaps[1:] -= places[:-1]
    firsts = (np.cumsum(counts) - counts)[counts > 0]
    gaps[firsts] = places[firsts] - starts[counts > 0]
    return gaps


def _steps(counts: Ints, lengths: Ints) -> Ints:
    """k of each run, the best for bits that are rare with probability p = counts / lengths: one more as long as
    (1 - p)**(2**k) > 0.618 (Kiely 2004), with ln(1 - p) by its Pade approximant, in whole numbers."""
    return _bit_length(481 * (2 * lengths - counts) // np.maximum(2000 * counts, 1) * (counts > 0))


def _bit_length(numbers: Ints) -> Ints:
    return np.frexp(numbers.astype(np.float64))[1].astype(np.int64)


_TOP, _MASK = 1 << 24, (1 << 32) - 1


class Encoder:
    """Bits in, bytes out."""

    def __init__(self) -> None:
        self._low, self._range, self._out = 0, _MASK, bytearray()

    def bits(self, bits: Bits, contexts: Ints) -> None:
        """Write bits; ``contexts`` says of each to which context it belongs (small numbers)."""
        low, span, out = self._low, self._range, self._out
        seen = [(1, 2)] * (int(contexts.max(initial=-1)) + 1)  # of each context: 2 n1 + 1 and 2 n + 2
        for bit, context in zip(bits.tolist(), contexts.tolist(), strict=True):
            ones, all_ = seen[context]
            bound = span * ones // all_
            if bit:
                span = bound
                seen[context] = (ones + 2, all_ + 2)
            else:
                low += bound
                span -= bound
                seen[context] = (ones, all_ + 2)
            while span < _TOP:
                if low > _MASK:
                    _carry(out)
                    low &= _MASK
                out.append(low >> 24)
                low = low << 8 & _MASK
                span <<= 8
        self._low, self._range = low, span

    def finish(self) -> bytes:
        """All bytes; as few as tell the last bits apart."""
        last, count = _last(self._low, self._range)
        if last > _MASK:
            _carry(self._out)
        return bytes(self._out) + (last & _MASK).to_bytes(4, "big")[:count]


class Decoder:
    """The bits that an :class:`Encoder` wrote, asked for in the same order with the same contexts."""

    def __init__(self, raw: bytes) -> None:
        self._raw, self._at = raw + bytes(4), 4
        self._code = int.from_bytes(self._raw[:4], "big")  # how far above ``low`` the message lies
        self._low, self._range = 0, _MASK

    def bits(self, contexts: Ints) -> Bits:
        """The next bits, one for each context given."""
        low, span, code, at, raw = self._low, self._range, self._code, self._at, self._raw
        end = len(raw)
        seen = [(1, 2)] * (int(contexts.max(initial=-1)) + 1)
        out = bytearray(len(contexts))
        for place, context in enumerate(contexts.tolist()):
            ones, all_ = seen[context]
            bound = span * ones // all_
            if code < bound:
                span = bound
                out[place] = 1
                seen[context] = (ones + 2, all_ + 2)
            else:
                code -= bound
                low += bound
                span -= bound
                seen[context] = (ones, all_ + 2)
            while span < _TOP:
                if at >= end:
                    raise FrameError("the coded bits end too early. Truncated?")
                code = code << 8 | raw[at]
                low = low << 8 & _MASK
                span <<= 8
                at += 1
        self._low, self._range, self._code, self._at = low & _MASK, span, code, at
        return np.frombuffer(out, dtype=np.uint8)

    def finish(self) -> None:
        """Refuse a message that is longer or shorter than its bits need."""
        _, count = _last(self._low, self._range)
        if self._code >= self._range or self._at - 4 + count != len(self._raw) - 4:
            raise FrameError("the coded bits do not end where they should. Truncated or damaged?")


def _carry(out: bytearray) -> None:
    place = len(out) - 1
    while out[place] == 255:
        out[place] = 0
        place -= 1
    out[place] += 1


def _last(low: int, span: int) -> tuple[int, int]:
    """The number in [low, low + span) with the fewest leading bytes, and how many these are."""
    for count in range(1, 4):
        step = 1 << (32 - 8 * count)
        last = -(-low // step) * step
        if last < low + span:
            return last, count
    return low, 4
