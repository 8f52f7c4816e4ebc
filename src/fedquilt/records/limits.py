"""What a frame may hold at most, so that decoding one takes a bounded time and memory whoever made it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from math import inf

from fedquilt.errors import FrameError

DEPTH = 100  # records, lists and dicts inside one another
SIDES = 64  # of one tensor
HEADER_BYTES = 10**8  # of a safetensors frame, as safetensors itself allows
VARINT_BYTES = 10  # 70 bits: more than any length or 64-bit number needs
FLOOR = 2**26  # bytes that every upload may have: sketches and class statistics are not bounded by a model's size
_LOOK = 4096  # nodes between two looks at the clock


@dataclass(frozen=True)
class Limits:
    """Limits of one frame.

    Args:
        size: Bytes of the whole frame.
        nodes: Values, names and tensors of its tree, counted together.
        until: When it must be decoded, by ``time.monotonic()``.
        compact: Whether it must be a compact frame, which has a checksum and is counted and timed as it is read. The
            header of a safetensors frame is read as a whole, so only files of one's own are.
    """

    size: int = 2**40
    nodes: int = 2**23
    until: float = inf
    compact: bool = True

    def check_time(self) -> None:
        """Raise if the time is up."""
        if time.monotonic() > self.until:
            raise FrameError("late: the time of the exchange was up before its frame was decoded.")

    def check_size(self, size: int) -> None:
        """Raise if a frame is longer than it may be."""
        if size > self.size:
            raise FrameError(f"too large: a frame of {size:,} bytes where at most {self.size:,} are allowed.")


class Count:
    """Counts the nodes of one frame down, and looks at the clock now and then."""

    def __init__(self, limits: Limits) -> None:
        self.limits, self.left, self.depth = limits, limits.nodes, 0

    def node(self) -> None:
        """One node more."""
        self.left -= 1
        if self.left % _LOOK == 0 or self.left < 0:
            self._look()

    def _look(self) -> None:
        if self.left < 0:
            raise FrameError(f"too large: more than {self.limits.nodes:,} values, names and tensors.")
        self.limits.check_time()

    def into(self) -> None:
        """One level deeper; ``out`` goes back."""
        self.depth += 1
        if self.depth > DEPTH:
            raise FrameError(f"too deep: more than {DEPTH} records, lists and dicts inside one another.")

    def out(self) -> None:
        """One level up."""
        self.depth -= 1


NO_LIMITS = Limits(compact=False)


def upload_limits(known: int, most: int | None = None, seconds: float = inf) -> Limits:
    """What an upload may hold: ``most`` bytes, or else 64 MiB and 16 times what is ``known`` of the exchange (the bytes
    of its download, or of the server's state if that is larger); 131,072 nodes; to be decoded within so many seconds
    from now."""
    return Limits(FLOOR + 16 * known if most is None else most, 2**17, time.monotonic() + seconds)
