"""Frames inside Flower's records: each frame is one array of bytes, which Flower cuts into pieces and moves."""

from __future__ import annotations

from collections.abc import Mapping

from flwr.app import Array, ArrayRecord, RecordDict

from fedquilt.core.errors import FrameError

_NAME, _KIND = "fedquilt", "fedquilt.frame"


def frame_array(frame: bytes) -> Array:
    """A frame as Flower's array."""
    return Array(dtype="uint8", shape=(len(frame),), stype=_KIND, data=bytes(frame))


def to_content(frames: Mapping[str, bytes]) -> RecordDict:
    """The frames as the content of a message."""
    return RecordDict({_NAME: ArrayRecord({name: frame_array(frame) for name, frame in frames.items()})})


def from_content(content: RecordDict) -> dict[str, bytes]:
    """The frames of a message; refused unless every part is a frame of the length it claims."""
    record = content.get(_NAME)
    if not isinstance(record, ArrayRecord):
        raise FrameError(f"malformed message: it has no record called {_NAME!r}.")
    for name, array in record.items():
        if array.stype != _KIND or array.dtype != "uint8" or tuple(array.shape) != (len(array.data),):
            raise FrameError(f"malformed message: {name!r} is no frame.")
    return {name: array.data for name, array in record.items()}
