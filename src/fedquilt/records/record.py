"""Records and their frames.

A record is a tree of frozen dataclasses marked with :func:`record`, tuples, lists, dicts, tensors, bytes and
plain scalars. ``pack`` writes it as a frame: a valid safetensors file whose tensors are the tree's tensors
and whose metadata holds the typed tree; or, for messages, the same in fewer bytes (``records/compact.py``).
``unpack`` takes both, and checks a checksum, limits, and names, dtypes, shapes and sizes against the bytes that are
really there before it makes a single tensor. No code is ever executed by decoding.
"""

from __future__ import annotations

import json
import math
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import is_dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from fedquilt.errors import FrameError, InputError
from fedquilt.records.compact import MAGIC, CompactWriter, Entries, Header, Lift, Node, Parser, escaped
from fedquilt.records.limits import HEADER_BYTES, NO_LIMITS, SIDES, Count, Limits
from fedquilt.records.registered import CODES, DTYPES, MARKS, RECORDS, SIZES, names, needed, read_as, type_name, written
from fedquilt.records.registered import record as record

Frame = bytes | bytearray | memoryview
_COLLIDING = 64  # keys of one dict with the same hash
_SUM_BYTES = 4  # at the end of a compact frame
_SUMMED, _UNSUMMED = b'{"__metadata__":{"crc32":"', b'{"__metadata__":{"fedquilt":'  # how a header begins
_DIGITS = slice(8 + len(_SUMMED), 16 + len(_SUMMED))  # where the checksum of a safetensors frame stands


def pack(value: object, compact: bool = False, lift: Lift | None = None, checksum: bool = True) -> bytes:
    """The frame of a record: a safetensors file for what is kept, or a compact frame for what travels; in the latter,
    what ``lift`` gives for bytes stands in their place. Without ``checksum``: a safetensors frame for hashing, or for
    storing under its hash."""
    if compact:
        first, follow = _pieces(value, lift)
        pieces = [first, *map(_bytes_of, follow)]
        return b"".join([*pieces, _crc(pieces).to_bytes(_SUM_BYTES, "little")])
    tensors: dict[str, Tensor] = {}
    tree = json.dumps(_write(value, "", tensors), separators=(",", ":"))
    told = {"crc32": "0" * 8, "fedquilt": tree} if checksum else {"fedquilt": tree}
    header: dict[str, object] = {"__metadata__": told}
    spans, end = {}, 0
    by_width = dict(sorted(tensors.items(), key=lambda item: -item[1].element_size()))
    chunks = [_bytes_of(tensor) for tensor in by_width.values()]
    for name, chunk in zip(by_width, chunks, strict=True):
        spans[name] = [end, end + len(chunk)]
        end += len(chunk)
    for name, tensor in tensors.items():
        header[name] = {"dtype": CODES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": spans[name]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    text = len(text).to_bytes(8, "little") + text
    if checksum:
        before, after = text[: _DIGITS.start], text[_DIGITS.stop :]
        text = b"%s%08x%s" % (before, _crc([before, after, *chunks]), after)
    return b"".join([text, *chunks])


def _crc(pieces: Iterable[Frame]) -> int:
    """The CRC-32 of these bytes, one piece after another."""
    total = 0
    for piece in pieces:
        total = zlib.crc32(piece, total)
    return total


def pack_into(value: object, room: Callable[[int], bytearray | memoryview] | None = None) -> bytearray | memoryview:
    """A compact frame that :func:`unpack` takes over instead of copying it, in the memory that ``room`` has for it."""
    header, tensors = _pieces(value)
    size = len(header) + sum(t.numel() * t.element_size() for t in tensors) + _SUM_BYTES
    frame = memoryview(cast(Any, np.empty(size, np.uint8))) if room is None else room(size)
    view, at = memoryview(frame), len(header)
    view[:at] = header
    for tensor in tensors:
        if tensor.is_contiguous() or not tensor.numel():
            raw = _bytes_of(tensor)
            view[at : at + len(raw)] = raw
        else:  # put into order on the way
            place = torch.frombuffer(frame, dtype=tensor.dtype, count=tensor.numel(), offset=at)
            place.view(tensor.shape).copy_(tensor.detach())
        at += tensor.numel() * tensor.element_size()
    view[at:] = zlib.crc32(view[:at]).to_bytes(_SUM_BYTES, "little")
    return frame


def _pieces(value: object, lift: Lift | None = None) -> tuple[bytes, list[Tensor]]:
    """The header of a compact frame, and the tensors that follow it."""
    writer = _written(value, lift)
    return writer.header(), sorted(writer.tensors, key=lambda tensor: -tensor.element_size())


def frame_bytes(value: object, compact: bool = False) -> int:
    """How long the frame of a record is; compact frames are not made for it."""
    if not compact:
        return len(pack(value))
    writer = _written(value)
    return len(writer.header()) + sum(t.numel() * t.element_size() for t in writer.tensors) + _SUM_BYTES


def _written(value: object, lift: Lift | None = None) -> CompactWriter:
    """The header of a compact frame, and the tensors that follow it."""
    writer = CompactWriter(lift)
    try:
        writer.value(value)
    except LookupError as error:
        _write(value, "", {})  # says where in the record it is
        raise InputError(f"{error} cannot be packed.") from error
    return writer


def _bytes_of(tensor: Tensor) -> memoryview | bytes:
    if tensor.numel() == 0:
        return b""
    if tensor.dtype == torch.float32 and tensor.is_cpu and not tensor.requires_grad and tensor.is_contiguous():
        return memoryview(cast(Any, tensor.numpy())).cast("B")  # the usual case in one call
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return memoryview(cast(Any, flat.view(torch.uint8).numpy()))


def _key(name: object) -> str:
    """A dict key as one step of a path: never empty, and no two keys of a dict alike (1 and '1' are two)."""
    return escaped(name) if isinstance(name, str) else "%" + escaped(repr(name))


def _name(key: str) -> str:
    return "" if key == "%" else key.replace("%2F", "/").replace("%25", "%")


def _write(value: object, path: str, tensors: dict[str, Tensor]) -> Node:
    if value is None or isinstance(value, bool | int | str):
        return int(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"F": repr(float(value))}
    if isinstance(value, Tensor):
        return {"T": _put(value, path, tensors)}
    if isinstance(value, bytes | bytearray | memoryview):
        return {"B": _put(_as_tensor(value), path, tensors)}
    if is_dataclass(value) and not isinstance(value, type):
        return _write_record(value, path, tensors)
    if isinstance(value, tuple | list):
        items = [_write(v, f"{path}/{i}", tensors) for i, v in enumerate(value)]
        return {"U" if isinstance(value, tuple) else "L": items}
    if isinstance(value, dict):
        return _write_dict(value, path, tensors)
    if isinstance(value, np.generic):
        return _write(value.item(), path, tensors)
    if isinstance(value, np.ndarray):
        raise InputError(f"A numpy array at '{path or 'top'}' cannot be packed. Use torch.from_numpy(array).")
    raise InputError(
        f"{type(value).__name__} at '{path or 'top'}' cannot be packed. Records hold tensors, numbers, strings, "
        "bytes, tuples, lists, dicts and classes marked with @record."
    )


def _write_record(value: object, path: str, tensors: dict[str, Tensor]) -> Node:
    name = type_name(type(value))
    if RECORDS.get(name) is None:
        raise InputError(f"{type(value).__name__} at '{path or 'top'}' is not a record. Mark it with @record.")
    fields = zip(names(type(value)), written(type(value)), strict=True)
    return {"R": name, "v": {w: _write(getattr(value, n), f"{path}/{w}", tensors) for n, w in fields}}


def _write_dict(value: dict[object, object], path: str, tensors: dict[str, Tensor]) -> Node:
    if not value or not all(isinstance(k, str) and isinstance(v, Tensor) for k, v in value.items()):
        return {"D": [[_write(k, "", {}), _write(v, f"{path}/{_key(k)}", tensors)] for k, v in value.items()]}
    for name, tensor in value.items():
        _put(cast(Tensor, tensor), f"{path}/{_key(name)}", tensors)
    return {"P": path.lstrip("/")}


def _as_tensor(value: Frame) -> Tensor:
    held = bytearray(value.tobytes() if isinstance(value, memoryview) else value)
    return torch.frombuffer(held, dtype=torch.uint8) if held else torch.zeros(0, dtype=torch.uint8)


def _put(tensor: Tensor, path: str, tensors: dict[str, Tensor]) -> str:
    name = path.lstrip("/") or "tensor"
    if tensor.dtype not in CODES:
        raise InputError(f"Tensor '{name}' has dtype {tensor.dtype}, which no frame can hold. Convert it first.")
    if name in tensors or name == "__metadata__":
        raise InputError(f"Two tensors of one record are both called '{name}'.")
    tensors[name] = tensor
    return name


Instead = tuple[type, Callable[[Any], object]]  # a type of record, and what is made of each


def unpack(frame: Frame, instead: Instead | None = None, limits: Limits = NO_LIMITS) -> Any:
    """The record in a frame, sharing no memory with it, if that is bytes; memory that may be written into is taken over
    instead of copied."""
    buffer = memoryview(frame)
    plain = buffer.format == "B" and buffer.ndim == 1 and buffer.contiguous
    limits.check_size(buffer.nbytes)
    if limits.compact and bytes(buffer[: len(MAGIC)]) != MAGIC:
        raise FrameError("not a compact frame, and only those are taken from elsewhere. Are both of the same version?")
    if not plain or buffer.readonly:
        buffer = memoryview(bytearray(buffer if plain else buffer.tobytes()))
    try:
        buffer = _intact(buffer)
        entries, tree, start = _header(buffer, limits)
        reader = _Reader(buffer, entries, start, instead, limits)
        value = reader.read(tree)
    except (LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError, ValueError) as error:
        if isinstance(error, FrameError):
            raise
        raise FrameError(f"malformed frame: {type(error).__name__}: {error}") from error
    reader.finish()
    return value


def _intact(buffer: memoryview) -> memoryview:
    """The frame without a checksum at its end, once that is right. Safetensors frames may have none: those that are
    stored under their hash, and those of earlier versions."""
    if buffer[:2] == MAGIC:
        whole, told = buffer[:-_SUM_BYTES], int.from_bytes(buffer[-_SUM_BYTES:], "little")
        found = zlib.crc32(whole)
    elif buffer[8 : _DIGITS.start] == _SUMMED:
        whole, told = buffer, int(bytes(buffer[_DIGITS]), 16)
        found = _crc([buffer[: _DIGITS.start], buffer[_DIGITS.stop :]])
        told = told if bytes(buffer[_DIGITS]) == b"%08x" % told else -1
    elif buffer[8 : 8 + len(_UNSUMMED)] == _UNSUMMED:
        return buffer
    else:
        raise FrameError("these bytes begin no frame of this version. Truncated or damaged?")
    if found != told:
        raise FrameError("damaged: its checksum is not that of its bytes.")
    return whole


_last: list[tuple[bytes, int, int, Header]] = []  # the last compact header before tensors


def _header(buffer: memoryview, limits: Limits) -> Header:
    """Tensors, tree, and where the tensors' bytes begin. Replies of one exchange have the same header: it is read, and
    checked, once. Nobody writes into what was read."""
    if _last:
        known, length, nodes, found = _last[0]
        if len(buffer) == length and nodes <= limits.nodes and buffer[: len(known)] == known:
            return found
    found = _checked_header(buffer, limits)
    if found[0] and buffer[:2] == MAGIC:
        _last[:] = [(bytes(buffer[: found[2]]), len(buffer), limits.nodes, found)]
    return found


def _checked_header(buffer: memoryview, limits: Limits) -> Header:
    if buffer[:2] == MAGIC:
        entries, tree, start = Parser(buffer, limits).parse()
    else:
        length = int.from_bytes(buffer[:8], "little")
        if length > len(buffer) - 8:
            raise FrameError(f"the header claims {length} bytes, but only {len(buffer) - 8} follow. Truncated?")
        if length > HEADER_BYTES:
            raise FrameError(f"too large: a header of {length:,} bytes.")
        entries = json.loads(bytes(buffer[8 : 8 + length]).decode())
        told = entries.pop("__metadata__")
        if told.keys() - {"crc32"} != {"fedquilt"}:
            raise FrameError(f"unknown metadata {sorted(told)[:3]}.")
        tree, start = json.loads(told["fedquilt"]), 8 + length
    end = _checked_entries(entries)
    if start + end != len(buffer):
        raise FrameError(f"the tensors take {end} bytes, but {len(buffer) - start} are there.")
    return entries, tree, start


def _checked_entries(entries: Entries) -> int:
    """How many bytes the tensors take, one after another, once each is of a dtype and a shape that fits its own."""
    end = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1]["data_offsets"]):
        (low, high), shape, code = entry["data_offsets"], entry["shape"], entry["dtype"]
        if code not in DTYPES:
            raise FrameError(f"tensor '{name}' has unknown dtype {code!r}.")
        if len(shape) > SIDES or not all(type(s) is int and 0 <= s < 2**63 for s in shape):
            raise FrameError(f"tensor '{name}' has impossible shape {shape[:SIDES]!r}.")
        if low != end or high - low != math.prod(shape) * SIZES[code]:
            raise FrameError(f"tensor '{name}': shape {shape} {code} does not fit bytes {low} to {high}.")
        end = high
    return end


class _Reader:
    def __init__(
        self, buffer: memoryview, entries: Entries, start: int, instead: Instead | None, limits: Limits
    ) -> None:
        self.buffer, self.entries, self.start, self.instead = buffer, entries, start, instead
        self.count = Count(limits)
        self.unread = dict.fromkeys(entries)
        self.below: dict[str, list[str]] | None = None  # the tensors of each place of the tree

    def tensor(self, name: str) -> Tensor:
        self.count.node()
        entry = self.entries[name]
        if name not in self.unread:
            raise FrameError(f"tensor '{name}' is used twice.")
        del self.unread[name]
        shape, dtype = entry["shape"], DTYPES[entry["dtype"]]
        count = math.prod(shape)
        if count == 0:
            return torch.empty(shape, dtype=dtype)
        offset = self.start + entry["data_offsets"][0]
        return torch.frombuffer(self.buffer, dtype=dtype, count=count, offset=offset).view(shape)

    def params(self, prefix: str) -> Iterator[tuple[str, Tensor]]:
        if not isinstance(prefix, str):
            raise FrameError(f"a {type(prefix).__name__} instead of a place of the tree.")
        if self.below is None:
            self.below = {}
            for name in self.entries:
                self.below.setdefault(name.rpartition("/")[0], []).append(name)
        for name in self.below.pop(prefix, ()):
            if name in self.unread:
                self.count.node()
                yield _name(name.rpartition("/")[2]), self.tensor(name)

    def read(self, node: object) -> Any:
        self.count.node()
        if not isinstance(node, dict):
            if isinstance(node, list):
                raise FrameError("a bare list in the tree.")
            return node
        if "P" in node:
            return dict(self.params(node["P"]))
        if "N" in node:
            found = {_name(name): self.tensor(tensor) for name, tensor in node["N"]}
            if len(found) < len(node["N"]):
                raise FrameError("a name twice.")
            return found
        if "T" in node:
            return self.tensor(node["T"])
        if "F" in node:
            return float(node["F"])
        if "B" in node:
            raw = node["B"]
            return raw if isinstance(raw, bytes) else self.tensor(raw).numpy().tobytes()
        self.count.into()
        inner = self.inside(node)
        self.count.out()
        return inner

    def inside(self, node: dict[str, Any]) -> Any:
        if "R" in node:
            return self.record(node["R"], node["v"])
        if "U" in node:
            return tuple(self.read(v) for v in node["U"])
        if "L" in node:
            return [self.read(v) for v in node["L"]]
        if "D" in node:
            keys = [self.read(k) for k, _ in node["D"]]
            if len(keys) > _COLLIDING and max(Counter(map(hash, keys)).values()) > _COLLIDING:
                raise FrameError("keys that were chosen to collide.")  # a dict of them would take a quadratic time
            return {k: self.read(v) for k, (_, v) in zip(keys, node["D"], strict=True)}
        raise FrameError(f"unknown node {sorted(node)[:3]} in the tree.")

    def record(self, name: str, values: dict[str, object]) -> object:
        cls = RECORDS.get(name)
        if cls is None:
            raise FrameError(f"unknown record type {name!r}. Import the module that defines it, marked with @record.")
        expected, values = names(cls), read_as(cls, values)
        if tuple(values) != expected and not needed(cls) <= values.keys() <= set(expected):
            raise FrameError(f"{name} has fields {list(expected)}, the frame has {sorted(values)}.")
        made = cls(**{k: self.read(v) if isinstance(v, dict | list) else v for k, v in values.items()})
        return self.instead[1](made) if self.instead is not None and cls is self.instead[0] else made

    def finish(self) -> None:
        if self.unread:
            raise FrameError(f"tensors {list(self.unread)[:3]} belong to nothing in the tree.")


def same(a: object, b: object) -> bool:
    """Whether two records are made of the very same tensors and equal scalars, so that one frame serves both."""
    return _alike(a, b, lambda one, other: False)


def equal(a: object, b: object) -> bool:
    """Whether two records are equal, so that their frames are."""
    return _alike(a, b, _equal_tensors)


def _equal_tensors(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)


def _alike(a: Any, b: Any, tensors: Callable[[Tensor, Tensor], bool]) -> bool:
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, Tensor):
        return tensors(a, b)
    if is_dataclass(a):
        return all(_alike(getattr(a, n), getattr(b, n), tensors) for n in names(type(a)))
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(_alike(x, y, tensors) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_alike(v, b[k], tensors) for k, v in a.items())
    return bool(a == b)


def finite_scalars(value: object) -> bool:
    """Whether every float of a record, tensors apart, is finite."""
    if isinstance(value, Tensor):
        return True
    if isinstance(value, float):
        return math.isfinite(value)
    return all(map(finite_scalars, _inside(value)))


def tensors_in(value: object) -> Iterator[Tensor]:
    """Every tensor of a record."""
    if isinstance(value, Tensor):
        yield value
    else:
        for part in _inside(value):
            if isinstance(part, Tensor):
                yield part
            else:
                yield from tensors_in(part)


def parts_of(value: object) -> Iterator[tuple[object, object]]:
    """The parts of a record, or of what is in it, with their names, keys or places."""
    if isinstance(value, dict):
        yield from value.items()
    elif isinstance(value, tuple | list):
        yield from enumerate(value)
    elif is_dataclass(value) and not isinstance(value, type):
        yield from ((name, getattr(value, name)) for name in names(type(value)))


def _inside(value: object) -> Iterable[object]:
    """The parts of a record or of what is in it."""
    kind = type(value)
    if kind in MARKS:
        return [getattr(value, name) for name in names(kind)]
    if isinstance(value, dict):
        return value.values()
    if isinstance(value, tuple | list):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, name) for name in names(kind)]
    return ()
