"""Frames inside Flower's records.

Flower moves a message as a tree of objects, and each object is a request or more at every station. So small frames
travel together, in one record; a large one is an array of bytes, which Flower cuts into pieces, and stores once for all
messages that hold it. Every frame has a checksum.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedquilt.errors import FrameError

_NAME, _SMALL, _KIND, _SUM = "fedquilt", "fedquilt.small", "fedquilt.frame", "sum."
_SMALL_BYTES, _TOGETHER_BYTES = 2**16, 2**20


def frame_array(frame: bytes) -> Array:
    """A frame as Flower's array."""
    return Array(dtype="uint8", shape=(len(frame),), stype=_KIND, data=bytes(frame))


def to_content(frames: Mapping[str, bytes]) -> RecordDict:
    """The frames as the content of a message."""
    small: dict[str, bytes] = {}
    large: dict[str, Array] = {}
    room = _TOGETHER_BYTES
    for name, frame in frames.items():
        small[_SUM + name] = _sum(frame)
        if len(frame) <= min(_SMALL_BYTES, room):
            room -= len(frame)
            small[name] = bytes(frame)
        else:
            large[name] = frame_array(frame)
    content = RecordDict({_SMALL: ConfigRecord(small)})
    if large:
        content[_NAME] = ArrayRecord(large)
    return content


def from_content(content: RecordDict) -> dict[str, bytes]:
    """The frames of a message; refused unless every part is a frame with the length and the checksum it claims."""
    small, large = content.get(_SMALL), content.get(_NAME, ArrayRecord())
    if not isinstance(small, ConfigRecord) or not isinstance(large, ArrayRecord):
        raise FrameError(f"malformed message: it has no records called {_SMALL!r} and {_NAME!r}.")
    frames = {name: frame for name, frame in small.items() if not name.startswith(_SUM)}
    frames |= {name: _frame(name, array) for name, array in large.items()}
    for name, frame in frames.items():
        if not isinstance(frame, bytes):
            raise FrameError(f"malformed message: {name!r} is no frame.")
        if small.get(_SUM + name) != _sum(frame):
            raise FrameError(f"damaged message: {name!r} does not have the checksum it was sent with.")
    return frames


def _frame(name: str, array: Array) -> bytes:
    if array.stype != _KIND or array.dtype != "uint8" or tuple(array.shape) != (len(array.data),):
        raise FrameError(f"malformed message: {name!r} is no frame.")
    data: bytes = array.data
    return data


def _sum(frame: bytes) -> bytes:
    return hashlib.blake2b(frame, digest_size=8).digest()
