"""Whitening by a linear-feedback shift register. This is not encryption."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from fedquilt.core.seed import Seed
from fedquilt.errors import InputError
from fedquilt.pieces.codecs.bits import Bits
from fedquilt.pieces.codecs.matrices import swap


@dataclass(frozen=True)
class lfsr:
    """Add a fixed stream of bits to all bytes that travel, for example behind ``chain(hgc(), ...)``.

    **Not encryption.** Everybody who has the settings, or a few bytes of the stream, has all of it; and it makes
    nothing smaller. What must stay secret needs TLS or secure summation. It breaks up long runs of equal bits, and
    that is all.

    A step of the register: f is the sum (mod 2) of its bits at ``taps``, the register becomes (register << 1 | f) mod
    2**width, and f is the next bit of the stream.

    Args:
        width: Bits of the register.
        taps: Places of bits, 0 being the lowest. (31, 21, 1, 0) with width 32 has the longest period, 2**32 - 1.
        start: The first register, not 0.
    """

    width: int = 32
    taps: tuple[int, ...] = (31, 21, 1, 0)
    start: int = 0x2545F491

    def __post_init__(self) -> None:
        object.__setattr__(self, "taps", tuple(self.taps))
        if not 1 <= self.width <= 64:
            raise InputError(f"width must be from 1 to 64, got {self.width}.")
        if not self.taps or len(set(self.taps)) < len(self.taps) or not all(0 <= t < self.width for t in self.taps):
            raise InputError(f"taps must be different places from 0 to {self.width - 1}, got {self.taps}.")
        if not 0 < self.start < 1 << self.width:
            raise InputError(f"start must be from 1 to {(1 << self.width) - 1}, got {self.start}.")

    def bits(self, count: int) -> Bits:
        """The first bits of the stream."""
        return _stream(self.width, self.taps, self.start, max(64, 1 << max(count - 1, 0).bit_length()))[:count]

    def encode(self, upload: object, sent: object, memory: object, seed: Seed) -> tuple[object, object]:
        """All bytes, whitened."""
        wire = swap(upload, _is_bytes, self._added)
        if upload and not _holds_bytes(upload):
            raise InputError("lfsr whitens bytes, but there are none. Put it behind a codec: chain(hgc(), lfsr()).")
        return wire, memory

    def decode(self, wire: object, sent: object) -> object:
        """All bytes as they were."""
        return swap(wire, _is_bytes, self._added)

    def _added(self, raw: bytes) -> bytes:
        stream = np.packbits(self.bits(8 * len(raw)))
        return (np.frombuffer(raw, dtype=np.uint8) ^ stream).tobytes()


def _is_bytes(value: object) -> bool:
    return isinstance(value, bytes)


def _holds_bytes(value: object) -> bool:
    found: list[bytes] = []
    swap(value, _is_bytes, found.append)
    return bool(found)


@lru_cache(maxsize=4)
def _stream(width: int, taps: tuple[int, ...], start: int, count: int) -> Bits:
    """f[n] = sum of f[n - 1 - t]; in characteristic 2 also sum of f[n - m (1 + t)] for m = 1, 2, 4, ..., so ever longer
    blocks follow at once."""
    bits = np.zeros(width + count, dtype=np.uint8)
    bits[:width] = [start >> place & 1 for place in range(width - 1, -1, -1)]
    done, times = width, 1
    while done < len(bits):
        while (times * 2) * (1 + max(taps)) <= done - width:
            times *= 2
        end = min(len(bits), done + times * (1 + min(taps)))
        for tap in taps:
            low = done - times * (1 + tap)
            bits[done:end] ^= bits[low : low + end - done]
        done = end
    found: Bits = bits[width:]
    found.flags.writeable = False
    return found
