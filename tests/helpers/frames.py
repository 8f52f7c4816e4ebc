"""Frames as somebody else might make them, with a checksum that is right."""

from __future__ import annotations

import zlib

from fedquilt.records.compact import MAGIC

SUM = b'"crc32":"'  # in the header of a safetensors frame, before 8 digits


def sealed(body: bytes) -> bytes:
    """A compact frame of these bytes and their checksum."""
    return body + zlib.crc32(body).to_bytes(4, "little")


def resealed(frame: bytes) -> bytes:
    """The frame with the checksum that its bytes have now; as it is, if it has no place for one."""
    if frame[:2] == MAGIC:
        return sealed(frame[:-4])
    at = frame.find(SUM) + len(SUM)
    if at < len(SUM):
        return frame
    return b"%s%08x%s" % (frame[:at], zlib.crc32(frame[at + 8 :], zlib.crc32(frame[:at])), frame[at + 8 :])
