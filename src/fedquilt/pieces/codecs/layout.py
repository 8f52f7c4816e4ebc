"""Names, shapes and dtypes of coded tensors: those that both sides hold need not travel."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import TypeGuard

import torch
from torch import Tensor

from fedquilt.core.params import Params
from fedquilt.errors import FrameError, InputError
from fedquilt.pieces.codecs.bits import from_varint, to_varint

MOST_TRAVELLING = 2**26  # entries of a layout that comes with a message: few bytes may ask for no more memory than this
_DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
)
_MOST_NAMES, _MOST_DIMENSIONS, _MOST_LETTERS = 10_000, 8, 1000


@dataclass(frozen=True)
class Layout:
    """Named tensors without their numbers; one tensor alone has the name None."""

    names: tuple[str | None, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[torch.dtype, ...]

    @property
    def entries(self) -> int:
        """How many numbers in all."""
        return sum(math.prod(shape) for shape in self.shapes)


def layout_of(value: Tensor | Params) -> Layout:
    """The layout of Params or of a tensor."""
    items = [(None, value)] if isinstance(value, Tensor) else list(value.items())
    return Layout(tuple(n for n, _ in items), tuple(tuple(t.shape) for _, t in items), tuple(t.dtype for _, t in items))


def is_params(value: object) -> TypeGuard[Params]:
    """Whether a value is a dict of named tensors, and not empty."""
    return (
        isinstance(value, dict)
        and bool(value)
        and all(isinstance(k, str) and isinstance(v, Tensor) for k, v in value.items())
    )


def held(sent: object) -> Iterator[Layout]:
    """The layouts in what both sides hold, in one order: of its Params, its tensors, and layouts given by hand."""
    if isinstance(sent, Layout):
        yield sent
    elif isinstance(sent, Tensor) or is_params(sent):
        yield layout_of(sent)
    else:
        for item in _inside(sent):
            yield from held(item)


def _inside(value: object) -> Iterable[object]:
    """What is in a record, a tuple, a list or a dict."""
    if is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name) for field in fields(value)]
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, tuple | list) else ()


def written(layout: Layout, sent: object) -> int | bytes:
    """How a layout travels: the place of an equal one in what both sides hold, or else itself."""
    for place, known in enumerate(held(sent)):
        if known == layout:
            return place
    if layout.entries > MOST_TRAVELLING:
        raise InputError(
            f"These tensors have {layout.entries} entries and nothing of that layout is in the download, so their "
            f"layout would have to travel; that is done up to {MOST_TRAVELLING}. Give it: on(field, codec, like=...)."
        )
    out = bytearray(to_varint(0 if layout.names == (None,) else len(layout.names)))
    for name, shape, dtype in zip(layout.names, layout.shapes, layout.dtypes, strict=True):
        if name is not None:
            letters = name.encode()
            out += to_varint(len(letters)) + letters
        if len(letters if name is not None else b"") > _MOST_LETTERS or len(shape) > _MOST_DIMENSIONS:
            raise InputError(f"The tensor {name!r} has too long a name or too many dimensions to be coded.")
        out += bytes([_DTYPES.index(dtype), len(shape)]) + b"".join(map(to_varint, shape))
    return bytes(out)


def read(wire: object, sent: object) -> Layout:
    """The layout that :func:`written` wrote."""
    if isinstance(wire, int) and not isinstance(wire, bool):
        known = list(held(sent))
        if not 0 <= wire < len(known):
            raise FrameError(f"layout number {wire} of {len(known)} that both sides hold.")
        return known[wire]
    if not isinstance(wire, bytes):
        raise FrameError(f"a layout is a number or bytes, got {type(wire).__name__}.")
    layout, at = _parsed(wire)
    if at != len(wire) or len(set(layout.names)) < len(layout.names):
        raise FrameError("a layout with bytes too many, or with a name twice.")
    if layout.entries > MOST_TRAVELLING:
        raise FrameError(f"a layout of {layout.entries} entries came with the message; {MOST_TRAVELLING} are the most.")
    return layout


def _parsed(wire: bytes) -> tuple[Layout, int]:
    """The layout in these bytes, and where it ends."""
    count, at = from_varint(wire, 0)
    if count > _MOST_NAMES:
        raise FrameError(f"a layout of {count} tensors.")
    names: list[str | None] = []
    shapes, dtypes = [], []
    for _ in range(count or 1):
        name: str | None = None
        if count:
            name, at = _name(wire, at)
        dtype, shape, at = _kind(wire, at)
        names.append(name)
        shapes.append(shape)
        dtypes.append(dtype)
    return Layout(tuple(names), tuple(shapes), tuple(dtypes)), at


def _name(wire: bytes, at: int) -> tuple[str, int]:
    length, at = from_varint(wire, at)
    if length > _MOST_LETTERS or at + length > len(wire):
        raise FrameError("a name in a layout ends too early. Truncated?")
    return _text(wire[at : at + length]), at + length


def _kind(wire: bytes, at: int) -> tuple[torch.dtype, tuple[int, ...], int]:
    """A tensor's dtype and shape, and the place after them."""
    if at + 2 > len(wire) or wire[at] >= len(_DTYPES) or wire[at + 1] > _MOST_DIMENSIONS:
        raise FrameError("a layout has an unknown dtype or too many dimensions. Truncated?")
    dtype, dimensions, at = _DTYPES[wire[at]], wire[at + 1], at + 2
    shape = []
    for _ in range(dimensions):
        side, at = from_varint(wire, at)
        shape.append(side)
    return dtype, tuple(shape), at


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise FrameError("a name in a layout is not text.") from error
