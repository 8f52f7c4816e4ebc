"""Records and their one wire form.

A record is a tree of frozen dataclasses marked with :func:`record`, tuples, lists, dicts, tensors, bytes and
plain scalars. ``pack`` writes it as a frame: a valid safetensors file whose tensors are the tree's tensors
and whose metadata holds the typed tree. ``unpack`` checks names, dtypes, shapes and sizes against the bytes that
are really there before it makes a single tensor. No code is ever executed by decoding.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, TypeVar, cast, dataclass_transform

import numpy as np
import torch
from torch import Tensor

from fedquilt.core.errors import FrameError, InputError

T = TypeVar("T")

_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8,
    "BOOL": torch.bool,
}  # fmt: skip
_CODES = {dtype: code for code, dtype in _DTYPES.items()}
_SIZES = {code: torch.empty((), dtype=dtype).element_size() for code, dtype in _DTYPES.items()}
_RECORDS: dict[str, type] = {}
_FIELDS: dict[type, tuple[str, ...]] = {}


def _type_name(cls: type) -> str:
    module = "__main__" if cls.__module__ == "__mp_main__" else cls.__module__
    return f"{module}:{cls.__qualname__}"


@dataclass_transform(frozen_default=True)
def record(cls: type[T]) -> type[T]:
    """Make a class a frozen dataclass that can be packed.

    Example:
        >>> @record
        ... class Note:
        ...     text: str
        >>> unpack(pack(Note("hello")))
        Note(text='hello')
    """
    frozen = dataclass(frozen=True)(cls)
    _RECORDS[_type_name(frozen)] = frozen
    return frozen


def pack(value: Any) -> bytes:
    """The frame of a record."""
    tensors: dict[str, Tensor] = {}
    tree = _write(value, "", tensors)
    header: dict[str, Any] = {"__metadata__": {"fedquilt": json.dumps(tree, separators=(",", ":"))}}
    widest_first = sorted(tensors.items(), key=lambda item: -item[1].element_size())
    chunks, spans, end = [], {}, 0
    for name, tensor in widest_first:
        chunk = _bytes_of(tensor)
        spans[name] = [end, end + len(chunk)]
        end += len(chunk)
        chunks.append(chunk)
    for name, tensor in tensors.items():
        header[name] = {"dtype": _CODES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": spans[name]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *chunks])


def _bytes_of(tensor: Tensor) -> memoryview | bytes:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    if flat.numel() == 0:
        return b""
    return memoryview(cast(Any, flat.view(torch.uint8).numpy()))


def _key(name: Any) -> str:
    """A dict key as one step of a path: never empty, and no two keys of a dict alike (1 and '1' are two)."""
    if not isinstance(name, str):
        return "%" + _key(repr(name))
    return name.replace("%", "%25").replace("/", "%2F") or "%"


def _name(key: str) -> str:
    return "" if key == "%" else key.replace("%2F", "/").replace("%25", "%")


def _names(cls: type) -> tuple[str, ...]:
    found = _FIELDS.get(cls)
    if found is None:
        found = _FIELDS[cls] = tuple(f.name for f in fields(cast(Any, cls)))
    return found


def _write(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return int(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"F": repr(float(value))}
    if isinstance(value, Tensor):
        return {"T": _put(value, path, tensors)}
    if isinstance(value, bytes | bytearray):
        raw = torch.frombuffer(bytearray(value), dtype=torch.uint8) if value else torch.zeros(0, dtype=torch.uint8)
        return {"B": _put(raw, path, tensors)}
    if is_dataclass(value) and not isinstance(value, type):
        name = _type_name(type(value))
        if _RECORDS.get(name) is None:
            raise InputError(f"{type(value).__name__} at '{path or 'top'}' is not a record. Mark it with @record.")
        inner = {n: _write(getattr(value, n), f"{path}/{n}", tensors) for n in _names(type(value))}
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
    if tensor.dtype not in _CODES:
        raise InputError(f"Tensor '{name}' has dtype {tensor.dtype}, which no frame can hold. Convert it first.")
    if name in tensors or name == "__metadata__":
        raise InputError(f"Two tensors of one record are both called '{name}'.")
    tensors[name] = tensor
    return name


def unpack(frame: bytes | bytearray) -> Any:
    """The record in a frame, sharing no memory with it. A bytearray is taken over instead of copied."""
    buffer = frame if isinstance(frame, bytearray) else bytearray(frame)
    try:
        entries, tree, start = _header(buffer)
        reader = _Reader(buffer, entries, start)
        value = reader.read(tree)
    except (LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError, ValueError) as error:
        if isinstance(error, FrameError):
            raise
        raise FrameError(f"malformed frame: {type(error).__name__}: {error}") from error
    reader.finish()
    return value


def _header(buffer: bytearray) -> tuple[dict[str, Any], Any, int]:
    if len(buffer) < 8:
        raise FrameError(f"a frame has at least 8 bytes, got {len(buffer)}.")
    length = int.from_bytes(buffer[:8], "little")
    if length > len(buffer) - 8:
        raise FrameError(f"the header claims {length} bytes, but only {len(buffer) - 8} follow. Truncated?")
    entries = json.loads(bytes(buffer[8 : 8 + length]).decode())
    tree = json.loads(entries.pop("__metadata__")["fedquilt"])
    start, end = 8 + length, 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1]["data_offsets"]):
        (low, high), shape, code = entry["data_offsets"], entry["shape"], entry["dtype"]
        if code not in _DTYPES:
            raise FrameError(f"tensor '{name}' has unknown dtype {code!r}.")
        if not all(type(s) is int and s >= 0 for s in shape):
            raise FrameError(f"tensor '{name}' has impossible shape {shape!r}.")
        if low != end or high - low != math.prod(shape) * _SIZES[code]:
            raise FrameError(f"tensor '{name}': shape {shape} {code} does not fit bytes {low} to {high}.")
        end = high
    if start + end != len(buffer):
        raise FrameError(f"the tensors take {end} bytes, but {len(buffer) - start} are there.")
    return entries, tree, start


class _Reader:
    def __init__(self, buffer: bytearray, entries: dict[str, Any], start: int) -> None:
        self.buffer, self.entries, self.start = buffer, entries, start
        self.unread = dict.fromkeys(entries)

    def tensor(self, name: str) -> Tensor:
        entry = self.entries[name]
        if name not in self.unread:
            raise FrameError(f"tensor '{name}' is used twice.")
        del self.unread[name]
        shape, dtype = entry["shape"], _DTYPES[entry["dtype"]]
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
            return self.tensor(node["B"]).numpy().tobytes()
        raise FrameError(f"unknown node {sorted(node)[:3]} in the tree.")

    def record(self, name: str, values: dict[str, Any]) -> Any:
        cls = _RECORDS.get(name)
        if cls is None:
            raise FrameError(f"unknown record type {name!r}. Import the module that defines it, marked with @record.")
        expected = list(_names(cls))
        if sorted(values) != sorted(expected):
            raise FrameError(f"{name} has fields {expected}, the frame has {sorted(values)}.")
        return cls(**{k: self.read(v) for k, v in values.items()})

    def finish(self) -> None:
        if self.unread:
            raise FrameError(f"tensors {list(self.unread)[:3]} belong to nothing in the tree.")


def same(a: Any, b: Any) -> bool:
    """Whether two records are made of the very same tensors and equal scalars, so that one frame serves both."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, Tensor):
        return False
    if is_dataclass(a):
        return all(same(getattr(a, n), getattr(b, n)) for n in _names(type(a)))
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(v, b[k]) for k, v in a.items())
    return bool(a == b)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Every tensor of a record."""
    if isinstance(value, Tensor):
        yield value
    elif is_dataclass(value) and not isinstance(value, type):
        for name in _names(type(value)):
            yield from tensors_in(getattr(value, name))
    elif isinstance(value, tuple | list):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)
