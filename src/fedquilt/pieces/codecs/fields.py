"""A codec on one field of a record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch

from fedquilt.core.exchange import Codec
from fedquilt.core.seed import Seed
from fedquilt.errors import FrameError, InputError
from fedquilt.moved import field_name
from fedquilt.pieces.codecs.layout import Layout
from fedquilt.records.record import record

Shapes = Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class on:
    """A codec for one field of what travels; all else travels as it is.

    Args:
        field: The field's name; ``"a.b"`` is the field b of the field a.
        codec: How that field travels.
        like: The names and shapes of the field's float32 tensors, if both sides know them and the download does
            not hold them: ``{"head.weight": (10, 512), "head.bias": (10,)}``. Then they need not travel.

    Example:
        >>> from fedquilt.pieces.codecs.hgc import hgc
        >>> codec = on("delta", hgc())
    """

    field: str
    codec: Codec
    like: Layout | None

    def __init__(self, field: str, codec: Codec, like: Shapes | None = None) -> None:
        if not field or not all(part.isidentifier() for part in field.split(".")):
            raise InputError(f"on needs the name of a field, got {field!r}.")
        if not hasattr(codec, "encode") or not hasattr(codec, "decode"):
            raise InputError(f"on needs a codec such as hgc(), got {codec!r}.")
        known = (
            None
            if like is None
            else Layout(
                tuple(like), tuple(tuple(int(n) for n in s) for s in like.values()), (torch.float32,) * len(like)
            )
        )
        for name, value in (("field", field_name(field)), ("codec", codec), ("like", known)):
            object.__setattr__(self, name, value)

    @property
    def needs_memory(self) -> bool:
        """Whether the codec does."""
        return bool(getattr(self.codec, "needs_memory", False))

    def __describe__(self) -> tuple[tuple[object, ...], dict[str, object]]:
        if self.like is None:
            return (self.field, self.codec), {}
        names = (str(name) for name in self.like.names)
        return (self.field, self.codec, dict(zip(names, self.like.shapes, strict=True))), {}

    def encode(self, upload: object, sent: object, memory: object, seed: Seed) -> tuple[object, object]:
        """The upload with the field coded."""
        path = self.field.split(".")
        wire, memory = self.codec.encode(_get(upload, path, InputError), self._held(sent), memory, seed)
        return _put(upload, path, wire), memory

    def decode(self, wire: object, sent: object) -> object:
        """The upload with the field as it was, up to what the codec lost."""
        path = self.field.split(".")
        return _put(wire, path, self.codec.decode(_get(wire, path, FrameError), self._held(sent)))

    def _held(self, sent: object) -> object:
        return sent if self.like is None else (self.like, sent)


@dataclass(frozen=True)
class together:
    """Several codecs, each on a field of its own: ``together(on("delta", half()), on("gradient", hgc()))``."""

    codecs: tuple[on, ...]

    def __init__(self, *codecs: on) -> None:
        if not codecs or not all(isinstance(codec, on) for codec in codecs):
            raise InputError("together takes codecs that are each on('field', codec).")
        if len({codec.field for codec in codecs}) < len(codecs):
            raise InputError("together has two codecs on one field. Use chain for them.")
        object.__setattr__(self, "codecs", codecs)

    @property
    def needs_memory(self) -> bool:
        """Whether one of them does."""
        return any(codec.needs_memory for codec in self.codecs)

    def __describe__(self) -> tuple[tuple[object, ...], dict[str, object]]:
        return self.codecs, {}

    def encode(self, upload: object, sent: object, memory: Memories | None, seed: Seed) -> tuple[object, object]:
        """The upload with every field coded by its codec."""
        memories = list(memory.each) if memory is not None else [None] * len(self.codecs)
        for place, codec in enumerate(self.codecs):
            upload, memories[place] = codec.encode(upload, sent, memories[place], seed.fold(codec.field))
        return upload, Memories(tuple(memories)) if any(m is not None for m in memories) else None

    def decode(self, wire: object, sent: object) -> object:
        """The upload with every field as it was."""
        for codec in self.codecs:
            wire = codec.decode(wire, sent)
        return wire


@record
class Memories:
    """What several codecs keep, one after the other."""

    each: tuple[Any, ...]


def _names(value: object) -> list[str]:
    if is_dataclass(value) and not isinstance(value, type):
        return [f.name for f in fields(value)]
    return [str(key) for key in value] if isinstance(value, dict) else []


def _get(value: object, path: list[str], error: type[Exception]) -> object:
    for name in path:
        known = _names(value)
        if name not in known:
            there = f"it has {', '.join(known)}" if known else "it has no fields"
            raise error(f"There is no field {name!r} in {type(value).__name__}; {there}.")
        value = value[name] if isinstance(value, dict) else getattr(value, name)
    return value


def _put(value: Any, path: list[str], new: object) -> object:
    if not path:
        return new
    name, *rest = path
    if isinstance(value, dict):
        return {**value, name: _put(value[name], rest, new)}
    return replace(value, **{name: _put(getattr(value, name), rest, new)})
