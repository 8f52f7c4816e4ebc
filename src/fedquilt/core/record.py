"""Records and their frames.

A record is a tree of frozen dataclasses marked with :func:`record`, tuples, lists, dicts, tensors, bytes and
plain scalars. ``pack`` writes it as a frame: a valid safetensors file whose tensors are the tree's tensors
and whose metadata holds the typed tree; or, for messages, the same in fewer bytes (``core/compact.py``).
``unpack`` takes both, and checks names, dtypes, shapes and sizes against the bytes that are really there before
it makes a single tensor. No code is ever executed by decoding.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import is_dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from fedquilt.core.compact import MAGIC, Lift, Parser, Writer, escaped
from fedquilt.core.errors import FrameError, InputError
from fedquilt.core.registered import CODES, DTYPES, MARKS, RECORDS, SIZES, names, needed, type_name
from fedquilt.core.registered import record as record

Frame = bytes | bytearray | memoryview


def pack(value: Any, compact: bool = False, lift: Lift | None = None) -> bytes:
    """The frame of a record: a safetensors file for what is kept, or a compact frame for what travels; in the latter,
    what ``lift`` gives for bytes stands in their place."""
    if compact:
        first, follow = _pieces(value, lift)
        return b"".join([first, *map(_bytes_of, follow)])
    tensors: dict[str, Tensor] = {}
    tree = _write(value, "", tensors)
    header: dict[str, Any] = {"__metadata__": {"fedquilt": json.dumps(tree, separators=(",", ":"))}}
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
    return b"".join([len(text).to_bytes(8, "little"), text, *chunks])


def pack_into(value: Any, room: Callable[[int], bytearray | memoryview] | None = None) -> bytearray | memoryview:
    """A compact frame that :func:`unpack` takes over instead of copying it, in the memory that ``room`` has for it."""
    header, tensors = _pieces(value)
    size = len(header) + sum(t.numel() * t.element_size() for t in tensors)
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
    return frame


def _pieces(value: Any, lift: Lift | None = None) -> tuple[bytes, list[Tensor]]:
    """The header of a compact frame, and the tensors that follow it."""
    writer = _written(value, lift)
    return writer.header(), sorted(writer.tensors, key=lambda tensor: -tensor.element_size())


def frame_bytes(value: Any, compact: bool = False) -> int:
    """How long the frame of a record is; compact frames are not made for it."""
    if not compact:
        return len(pack(value))
    writer = _written(value)
    return len(writer.header()) + sum(t.numel() * t.element_size() for t in writer.tensors)


def _written(value: Any, lift: Lift | None = None) -> Writer:
    """The header of a compact frame, and the tensors that follow it."""
    writer = Writer(lift)
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


def _key(name: Any) -> str:
    """A dict key as one step of a path: never empty, and no two keys of a dict alike (1 and '1' are two)."""
    return escaped(name) if isinstance(name, str) else "%" + escaped(repr(name))


def _name(key: str) -> str:
    return "" if key == "%" else key.replace("%2F", "/").replace("%25", "%")


def _write(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return int(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"F": repr(float(value))}
    if isinstance(value, Tensor):
        return {"T": _put(value, path, tensors)}
    if isinstance(value, bytes | bytearray | memoryview):
        held = bytearray(value.tobytes() if isinstance(value, memoryview) else value)
        raw = torch.frombuffer(held, dtype=torch.uint8) if held else torch.zeros(0, dtype=torch.uint8)
        return {"B": _put(raw, path, tensors)}
    if is_dataclass(value) and not isinstance(value, type):
        name = type_name(type(value))
        if RECORDS.get(name) is None:
            raise InputError(f"{type(value).__name__} at '{path or 'top'}' is not a record. Mark it with @record.")
        inner = {n: _write(getattr(value, n), f"{path}/{n}", tensors) for n in names(type(value))}
        return {"R": name, "v": inner}
    if isinstance(value, tuple | list):
        items = [_write(v, f"{path}/{i}", tensors) for i, v in enumerate(value)]
        return {"U" if isinstance(value, tuple) else "L": items}
    if isinstance(value, dict):
        if value and all(isinstance(k, str) and isinstance(v, Tensor) for k, v in value.items()):
            prefix = path.lstrip("/")
            for name, tensor in value.items():
                _put(tensor, f"{path}/{_key(name)}", tensors)
            return {"P": prefix}
        return {"D": [[_write(k, "", {}), _write(v, f"{path}/{_key(k)}", tensors)] for k, v in value.items()]}
    if isinstance(value, np.generic):
        return _write(value.item(), path, tensors)
    if isinstance(value, np.ndarray):
        raise InputError(f"A numpy array at '{path or 'top'}' cannot be packed. Use torch.from_numpy(array).")
    raise InputError(
        f"{type(value).__name__} at '{path or 'top'}' cannot be packed. Records hold tensors, numbers, strings, "
        "bytes, tuples, lists, dicts and classes marked with @record."
    )


def _put(tensor: Tensor, path: str, tensors: dict[str, Tensor]) -> str:
    name = path.lstrip("/") or "tensor"
    if tensor.dtype not in CODES:
        raise InputError(f"Tensor '{name}' has dtype {tensor.dtype}, which no frame can hold. Convert it first.")
    if name in tensors or name == "__metadata__":
        raise InputError(f"Two tensors of one record are both called '{name}'.")
    tensors[name] = tensor
    return name


Instead = tuple[type, Callable[[Any], Any]]  # a type of record, and what is made of each


def unpack(frame: Frame, instead: Instead | None = None) -> Any:
    """The record in a frame, sharing no memory with it, if that is bytes; memory that may be written into is taken over
    instead of copied."""
    buffer = memoryview(frame)
    plain = buffer.format == "B" and buffer.ndim == 1 and buffer.contiguous
    if not plain or buffer.readonly:
        buffer = memoryview(bytearray(buffer if plain else buffer.tobytes()))
    try:
        entries, tree, start = _header(buffer)
        reader = _Reader(buffer, entries, start, instead)
        value = reader.read(tree)
    except (LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError, ValueError) as error:
        if isinstance(error, FrameError):
            raise
        raise FrameError(f"malformed frame: {type(error).__name__}: {error}") from error
    reader.finish()
    return value


_last: list[tuple[bytes, int, tuple[dict[str, Any], Any, int]]] = []  # the last compact header with tensors after it


def _header(buffer: memoryview) -> tuple[dict[str, Any], Any, int]:
    """Tensors, tree, and where the tensors' bytes begin. Replies of one exchange have the same header: it is read, and
    checked, once. Nobody writes into what was read."""
    if _last and len(buffer) == _last[0][1] and buffer[: len(_last[0][0])] == _last[0][0]:
        return _last[0][2]
    found = _checked_header(buffer)
    if found[0] and buffer[:2] == MAGIC:
        _last[:] = [(bytes(buffer[: found[2]]), len(buffer), found)]
    return found


def _checked_header(buffer: memoryview) -> tuple[dict[str, Any], Any, int]:
    if buffer[:2] == MAGIC:
        entries, tree, start = Parser(buffer).parse()
    else:
        if len(buffer) < 8:
            raise FrameError(f"a frame has at least 8 bytes, got {len(buffer)}.")
        length = int.from_bytes(buffer[:8], "little")
        if length > len(buffer) - 8:
            raise FrameError(f"the header claims {length} bytes, but only {len(buffer) - 8} follow. Truncated?")
        entries = json.loads(bytes(buffer[8 : 8 + length]).decode())
        tree, start = json.loads(entries.pop("__metadata__")["fedquilt"]), 8 + length
    end = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1]["data_offsets"]):
        (low, high), shape, code = entry["data_offsets"], entry["shape"], entry["dtype"]
        if code not in DTYPES:
            raise FrameError(f"tensor '{name}' has unknown dtype {code!r}.")
        if not all(type(s) is int and s >= 0 for s in shape):
            raise FrameError(f"tensor '{name}' has impossible shape {shape!r}.")
        if low != end or high - low != math.prod(shape) * SIZES[code]:
            raise FrameError(f"tensor '{name}': shape {shape} {code} does not fit bytes {low} to {high}.")
        end = high
    if start + end != len(buffer):
        raise FrameError(f"the tensors take {end} bytes, but {len(buffer) - start} are there.")
    return entries, tree, start


class _Reader:
    def __init__(self, buffer: memoryview, entries: dict[str, Any], start: int, instead: Instead | None) -> None:
        self.buffer, self.entries, self.start, self.instead = buffer, entries, start, instead
        self.unread = dict.fromkeys(entries)

    def tensor(self, name: str) -> Tensor:
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
        lead = prefix + "/" if prefix else ""
        for name in [n for n in self.unread if n.startswith(lead)]:
            rest = name[len(lead) :]
            if "/" not in rest:
                yield _name(rest), self.tensor(name)

    def read(self, node: Any) -> Any:
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
        if "R" in node:
            return self.record(node["R"], node["v"])
        if "U" in node:
            return tuple(self.read(v) for v in node["U"])
        if "L" in node:
            return [self.read(v) for v in node["L"]]
        if "D" in node:
            return {self.read(k): self.read(v) for k, v in node["D"]}
        if "F" in node:
            return float(node["F"])
        if "B" in node:
            raw = node["B"]
            return raw if isinstance(raw, bytes) else self.tensor(raw).numpy().tobytes()
        raise FrameError(f"unknown node {sorted(node)[:3]} in the tree.")

    def record(self, name: str, values: dict[str, Any]) -> Any:
        cls = RECORDS.get(name)
        if cls is None:
            raise FrameError(f"unknown record type {name!r}. Import the module that defines it, marked with @record.")
        expected = names(cls)
        if tuple(values) != expected and not needed(cls) <= values.keys() <= set(expected):
            raise FrameError(f"{name} has fields {list(expected)}, the frame has {sorted(values)}.")
        made = cls(**{k: self.read(v) if isinstance(v, dict | list) else v for k, v in values.items()})
        return self.instead[1](made) if self.instead is not None and cls is self.instead[0] else made

    def finish(self) -> None:
        if self.unread:
            raise FrameError(f"tensors {list(self.unread)[:3]} belong to nothing in the tree.")


def same(a: Any, b: Any) -> bool:
    """Whether two records are made of the very same tensors and equal scalars, so that one frame serves both."""
    return _alike(a, b, lambda one, other: False)


def equal(a: Any, b: Any) -> bool:
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


def finite_scalars(value: Any) -> bool:
    """Whether every float of a record, tensors apart, is finite."""
    if isinstance(value, Tensor):
        return True
    if isinstance(value, float):
        return math.isfinite(value)
    return all(map(finite_scalars, _inside(value)))


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Every tensor of a record."""
    if isinstance(value, Tensor):
        yield value
    else:
        for part in _inside(value):
            if isinstance(part, Tensor):
                yield part
            else:
                yield from tensors_in(part)


def _inside(value: Any) -> Iterable[Any]:
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
