"""An adaptive binary arithmetic coder: frequent bits cost little, and the model is learned on the way.

Each bit belongs to a context; a context that saw n1 ones in n bits expects a one with probability (n1 + 1/2) / (n + 1)
(Krichevsky and Trofimov, 1981). A range coder (Martin, 1979) turns these probabilities into bytes: within about two
bytes of the sum of -log2 p. The decoder learns the same model from what it has decoded, so nothing else travels.
"""

from __future__ import annotations

import numpy as np

from fedquilt.errors import FrameError
from fedquilt.pieces.codecs.bits import Bits, Ints

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
