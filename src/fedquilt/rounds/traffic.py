"""What the bytes of a message are made of: of each tensor or field, the bytes as it is and the bytes that travel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from torch import Tensor

from fedquilt.records.record import Frame, frame_bytes

FRAME = "(frame)"  # what is neither tensors nor bytes: names, shapes, numbers
Sizes = dict[str, tuple[int, int]]


@dataclass(frozen=True)
class Load:
    """One message. ``raw`` is the size of the frame without a codec, ``wire`` that of the real one; ``parts`` holds the
    same two numbers for each tensor or field."""

    raw: int
    wire: int
    parts: Sizes = field(default_factory=dict)


def load_of(
    plain: object, coded: object, frame: Frame, wrap: Callable[[Any], object] = lambda message: message
) -> Load:
    """The load of a message: what it means, what travelled, its frame, and the record around it."""
    raw = len(frame) if coded is plain else frame_bytes(wrap(plain), compact=True)
    parts: Sizes = {}
    found = ((n, size, size) for n, size in _sizes(plain, "")) if coded is plain else _compared(plain, coded, "")
    for name, before, after in found:
        old = parts.get(name, (0, 0))
        parts[name] = (old[0] + before, old[1] + after)
    rest = raw - sum(p[0] for p in parts.values()), len(frame) - sum(p[1] for p in parts.values())
    return Load(raw, len(frame), {**parts, FRAME: rest})


def _compared(plain: object, coded: object, path: str) -> Iterator[tuple[str, int, int]]:
    if isinstance(plain, Tensor | bytes):
        yield path or "tensor", _weight(plain), _weight(coded)
    elif isinstance(plain, dict):
        yield from _compared_dicts(plain, coded, path)
    elif _alike(plain, coded):
        for (name, before), (_, after) in zip(_parts(plain), _parts(coded), strict=True):
            yield from _compared(before, after, _below(path, name))
    elif _weight(plain) or _weight(coded):
        yield path or "record", _weight(plain), _weight(coded)


def _alike(plain: object, coded: object) -> bool:
    """Whether these are records of one type, or lists or tuples of the same length."""
    if isinstance(plain, tuple | list) and isinstance(coded, tuple | list):
        return len(plain) == len(coded)
    return is_dataclass(plain) and not isinstance(plain, type) and type(plain) is type(coded)


def _compared_dicts(plain: dict[object, object], coded: object, path: str) -> Iterator[tuple[str, int, int]]:
    """Name by name, if what travels has a part for each."""
    alike = isinstance(coded, dict) and plain.keys() == coded.keys()
    inside = list(coded.values()) if isinstance(coded, dict) and alike else list(getattr(coded, "parts", ()))
    if len(inside) != len(plain):
        yield path or "tensors", _weight(plain), _weight(coded)
        return
    for (name, before), after in zip(plain.items(), inside, strict=True):
        yield from _compared(before, after, _below(path, str(name)))


def _sizes(value: object, path: str) -> Iterator[tuple[str, int]]:
    """The same for a message that travels as it is."""
    if isinstance(value, Tensor | bytes | bytearray):
        yield path or "tensor", _weight(value)
    for name, part in _parts(value):
        yield from _sizes(part, _below(path, name))


def _parts(value: object) -> list[tuple[str, object]]:
    """What is in a record, a dict, a tuple or a list; items of the latter two have no names."""
    if isinstance(value, dict):
        return [(str(name), part) for name, part in value.items()]
    if isinstance(value, tuple | list):
        return [("", part) for part in value]
    if is_dataclass(value) and not isinstance(value, type):
        return [(one.name, getattr(value, one.name)) for one in fields(value)]
    return []


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path and name else path or name


def _weight(value: object) -> int:
    """The bytes of all tensors and bytes of a tree."""
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, bytes | bytearray):
        return len(value)
    return sum(_weight(part) for _, part in _parts(value))
