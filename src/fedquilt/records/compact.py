"""The header of a compact frame: the same typed tree as in a safetensors frame, in few bytes.

A compact frame is ``MAGIC``, the tree, zeros up to a multiple of 8 if any tensor has items of more than one byte, the
tensors' bytes, the widest items first, and the CRC-32 of all that in 4 bytes. Numbers are varints (7 bits to the byte,
low ones first, at most 10 bytes), a record is the mark of its type and its fields in order, and bytes stand in the tree
itself.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from fedquilt.errors import FrameError, InputError
from fedquilt.records.limits import NO_LIMITS, SIDES, VARINT_BYTES, Count, Limits
from fedquilt.records.registered import DTYPES, MARKS, RECORDS, SHORT, SIZES, names

MAGIC = b"\xf3\x52"  # no safetensors frame begins so: its header's length is a multiple of 8
_NONE, _TRUE, _FALSE, _INT, _NEGATIVE, _FLOAT, _TEXT, _BYTES, _TENSOR, _TUPLE, _LIST, _DICT, _PARAMS, _RECORD = range(
    14
)
_SMALL = 128  # a byte from here on is a number from 0 to 127
_CODES = tuple(DTYPES)
_DOUBLE = struct.Struct("<d")
_CONSTANTS = {_NONE: None, _TRUE: True, _FALSE: False}
Lift = Callable[[bytes | bytearray | memoryview], object]
Node = Any  # of the tree: a number, a text, None, or a dict of one or two entries that says what it is
Entries = dict[str, Any]  # of the tensors, by name: dtype, shape and place, as in a safetensors header
Header = tuple[Entries, Node, int]  # the tensors, the tree, and where the tensors begin
_PLACES = {DTYPES[code]: place << 4 for place, code in enumerate(_CODES)}


def escaped(name: str) -> str:
    """The name of a tensor as one step of a path: never empty, and without a slash."""
    return name.replace("%", "%25").replace("/", "%2F") or "%"


def _flat(view: memoryview) -> memoryview | bytes:
    """Its bytes, in order."""
    return view if view.format == "B" and view.ndim == 1 and view.contiguous else view.tobytes()


class CompactWriter:
    """Writes the header of a record; ``tensors`` are those that follow it, in order. ``lift``, if given, is shown all
    bytes, and what it gives is written in their place."""

    def __init__(self, lift: Lift | None = None) -> None:
        self.out = bytearray(MAGIC)
        self.tensors: list[Tensor] = []
        self._lift = lift

    def value(self, value: Any) -> None:
        """Write one value of the record. What no frame can hold raises LookupError."""
        out, kind = self.out, type(value)
        if kind is dict:
            self._dict(value)
        elif isinstance(value, Tensor):
            out.append(_TENSOR)
            self._tensor(value)
        elif value is None or isinstance(value, bool | int | float | str):
            self._scalar(value)
        elif isinstance(value, bytes | bytearray | memoryview):
            raw = _flat(value) if isinstance(value, memoryview) else value
            put = raw if self._lift is None else self._lift(raw)
            if put is raw:
                out.append(_BYTES)
                self._text(raw)
            else:
                self.value(put)
        elif isinstance(value, tuple | list):
            self._count(_TUPLE if isinstance(value, tuple) else _LIST, len(value))
            for item in value:
                self.value(item)
        elif isinstance(value, dict):
            self._dict(value)
        elif isinstance(value, np.generic):
            self.value(value.item())
        else:
            out.append(_RECORD)
            out += MARKS[kind]
            for name in names(kind):
                self.value(getattr(value, name))

    def _dict(self, value: dict[Any, Any]) -> None:
        if value and all(isinstance(v, Tensor) and isinstance(k, str) for k, v in value.items()):
            self._count(_PARAMS, len(value))
            for name, tensor in value.items():
                self._text(escaped(name).encode())
                self._tensor(tensor)
            return
        self._count(_DICT, len(value))
        for key, inner in value.items():
            self.value(key)
            self.value(inner)

    def _scalar(self, value: Any) -> None:
        out = self.out
        if value is None or isinstance(value, bool):
            out.append(_NONE if value is None else _TRUE if value else _FALSE)
        elif isinstance(value, int):
            if 0 <= value < 128:
                out.append(_SMALL + value)
            elif value.bit_length() > 64:
                raise InputError(f"An integer of {value.bit_length()} bits cannot travel; it may have 64 at most.")
            else:
                self._count(_NEGATIVE if value < 0 else _INT, -value - 1 if value < 0 else value)
        elif isinstance(value, float):
            out.append(_FLOAT)
            out += _DOUBLE.pack(value)
        else:
            out.append(_TEXT)
            self._text(value.encode("utf-8", "surrogatepass"))

    def _count(self, tag: int, value: int) -> None:
        self.out.append(tag)
        self._varint(value)

    def _varint(self, value: int) -> None:
        while value > 127:
            self.out.append(value & 127 | 128)
            value >>= 7
        self.out.append(value)

    def _text(self, raw: bytes | bytearray | memoryview) -> None:
        self._varint(len(raw))
        self.out += raw

    def _tensor(self, tensor: Tensor) -> None:
        shape = tensor.shape
        self.out.append(_PLACES[tensor.dtype] | min(len(shape), 15))
        if len(shape) >= 15:
            self._varint(len(shape))
        for side in shape:
            self._varint(side)
        self.tensors.append(tensor)

    def header(self) -> bytes:
        """The bytes before the tensors."""
        wide = any(t.element_size() > 1 for t in self.tensors)
        return bytes(self.out) + bytes(-len(self.out) % 8 if wide else 0)


class Parser:
    """Reads a compact header into the tree and the entries of a safetensors frame, so that one reader serves both."""

    def __init__(self, buffer: memoryview, limits: Limits = NO_LIMITS) -> None:
        self._raw, self._at = buffer, len(MAGIC)
        self._count = Count(limits)
        self.entries: Entries = {}

    def parse(self) -> Header:
        """(entries, tree, where the tensors begin)."""
        tree = self._node()
        start = self._at
        widths = {name: SIZES[entry["dtype"]] for name, entry in self.entries.items()}
        if any(width > 1 for width in widths.values()):
            start += -start % 8
            if any(self._raw[self._at : start]):
                raise FrameError("the filling after the tree is not zero.")
        end = 0
        for name in sorted(widths, key=lambda n: -widths[n]):
            entry = self.entries[name]
            length = widths[name]
            for side in entry["shape"]:
                length *= side
            entry["data_offsets"] = [end, end + length]
            end += length
        return self.entries, tree, start

    def _node(self) -> Node:
        self._count.node()
        tag = self._byte()
        if tag >= _SMALL:
            return tag - _SMALL
        if tag <= _FALSE:
            return _CONSTANTS[tag]
        if tag == _FLOAT:
            return _DOUBLE.unpack(self._take(8))[0]
        if tag == _TENSOR:
            return {"T": self._tensor()}
        if tag == _RECORD:
            return self._record(self._take(4))
        count = self._varint()
        if tag in (_INT, _NEGATIVE):
            if tag == _INT and count < 128:
                raise FrameError("a small number in a long form.")
            return count if tag == _INT else -count - 1
        if tag == _TEXT:
            return self._take(count).decode("utf-8", "surrogatepass")
        if tag == _BYTES:
            return {"B": self._take(count)}
        if tag in (_TUPLE, _LIST):
            self._count.into()
            items = [self._node() for _ in range(count)]
            self._count.out()
            return {"U" if tag == _TUPLE else "L": items}
        if tag == _DICT:
            self._count.into()
            pairs = [[self._node(), self._node()] for _ in range(count)]
            self._count.out()
            return {"D": pairs}
        if tag == _PARAMS:
            return {"N": [[self._name(), self._tensor()] for _ in range(count)]}
        raise FrameError(f"unknown tag {tag} in the tree.")

    def _name(self) -> str:
        self._count.node()
        return self._take(self._varint()).decode()

    def _record(self, short: bytes) -> Node:
        name = SHORT.get(short)
        if name is None:
            raise FrameError(
                f"unknown record type {short.hex()!r}. Import the module that defines it, marked with @record. Are "
                "both sides of the same version?"
            )
        self._count.into()
        values = {field: self._node() for field in names(RECORDS[name])}
        self._count.out()
        return {"R": name, "v": values}

    def _tensor(self) -> str:
        first = self._byte()
        code, sides = first >> 4, first & 15
        if code >= len(_CODES):
            raise FrameError(f"a tensor of unknown dtype {code}.")
        self._count.node()
        if sides == 15:
            if (sides := self._varint()) > SIDES:
                raise FrameError(f"a tensor of {sides} dimensions.")
            for _ in range(sides):
                self._count.node()
        name = str(len(self.entries))
        self.entries[name] = {"dtype": _CODES[code], "shape": [self._varint() for _ in range(sides)]}
        return name

    def _byte(self) -> int:
        at = self._at
        if at >= len(self._raw):
            raise FrameError(f"1 bytes are missing at {at}. Truncated?")
        self._at = at + 1
        return self._raw[at]

    def _take(self, count: int) -> bytes:
        end = self._at + count
        if end > len(self._raw):
            raise FrameError(f"{count} bytes are missing at {self._at}. Truncated?")
        taken = bytes(self._raw[self._at : end])
        self._at = end
        return taken

    def _varint(self) -> int:
        value, shift = 0, 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                if byte == 0 and shift:
                    raise FrameError("a number is longer than it need be.")
                return value
            shift += 7
            if shift == 7 * VARINT_BYTES:
                raise FrameError(f"a number of more than {VARINT_BYTES} bytes.")
