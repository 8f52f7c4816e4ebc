"""Codecs around codecs: what was lost is made up for later, or what is left is coded again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from torch import Tensor

from fedquilt.core.exchange import Codec
from fedquilt.core.seed import Seed
from fedquilt.errors import FrameError, InputError
from fedquilt.pieces.codecs.fields import Memories, on, together
from fedquilt.pieces.codecs.matrices import Coded, swap
from fedquilt.records.record import record


def _is_codec(value: object, where: str) -> None:
    if not hasattr(value, "encode") or not hasattr(value, "decode"):
        raise InputError(f"{where} needs a codec such as top_k(0.01), got {value!r}.")


@record
class Residual:
    """What a client still owes: the part of its uploads that was lost, and the memory of the codec inside."""

    owed: Any
    inner: Any


@dataclass(frozen=True)
class error_feedback:
    """Add to each upload what the codec lost of the ones before: x' = x + e, send C(x'), e <- x' - C(x').

    The residual e is kept with the client's state, so it survives crashes and travels nowhere. It only counts if the
    server accepted the upload. For uploads only: a server keeps no memory for each client.

    Args:
        codec: Any codec that makes nothing larger, such as top_k, sign, hgc or power_sgd.

    Reference: Seide et al., 1-Bit Stochastic Gradient Descent, 2014; Karimireddy et al. 2019.
    """

    codec: Codec

    def __post_init__(self) -> None:
        _is_codec(self.codec, "error_feedback")

    @property
    def needs_memory(self) -> bool:
        """It cannot do without: so not for downloads."""
        return True

    def encode(self, upload: object, sent: object, memory: object, seed: Seed) -> tuple[object, object]:
        """Code the upload and what is owed."""
        kept = memory if isinstance(memory, Residual) else Residual(None, None)
        whole = upload if kept.owed is None else _zipped(Tensor.__add__, upload, kept.owed)
        wire, inner = self.codec.encode(whole, sent, kept.inner, seed)
        try:
            owed = _zipped(Tensor.__sub__, whole, self.codec.decode(wire, sent))
        except FrameError:  # it will be refused where it arrives too, and this memory with it
            return wire, memory
        return wire, Residual(owed, inner)

    def decode(self, wire: object, sent: object) -> object:
        """As the codec inside."""
        return self.codec.decode(wire, sent)


@dataclass(frozen=True)
class chain:
    """Codecs one after the other: each codes what the one before it left to send.

    ``chain(top_k(0.01), half())`` sends the values that top_k chose in 16 bits; ``chain(hgc(), lfsr())`` whitens bytes.

    Args:
        codecs: Two or more.
    """

    codecs: tuple[Codec, ...]

    def __init__(self, *codecs: Codec) -> None:
        if len(codecs) < 2:
            raise InputError(f"chain takes two codecs or more, got {len(codecs)}.")
        for codec in codecs:
            _is_codec(codec, "chain")
        if any(isinstance(codec, on | together) for codec in codecs[1:]):
            raise InputError(
                "Only the first codec of a chain may be on(...): the others code what it left. For fields: together."
            )
        object.__setattr__(self, "codecs", codecs)

    @property
    def needs_memory(self) -> bool:
        """Whether one of them does."""
        return any(getattr(codec, "needs_memory", False) for codec in self.codecs)

    def __describe__(self) -> tuple[tuple[object, ...], dict[str, object]]:
        return self.codecs, {}

    def encode(self, upload: object, sent: object, memory: object, seed: Seed) -> tuple[object, object]:
        """Code by the first, then the parts that it made by the second, and so on."""
        memories = list(memory.each) if isinstance(memory, Memories) else [None] * len(self.codecs)
        wire, memories[0] = self.codecs[0].encode(upload, sent, memories[0], seed)
        for place, codec in enumerate(self.codecs[1:], 1):
            parts = _parts(wire, place)
            coded, memories[place] = codec.encode(parts, None, memories[place], seed.fold("chain", place))
            wire = _with_parts(wire, place, coded)
        return wire, Memories(tuple(memories)) if any(m is not None for m in memories) else None

    def decode(self, wire: object, sent: object) -> object:
        """Undo the last first."""
        for place in range(len(self.codecs) - 1, 0, -1):
            wire = _with_parts(wire, place, self.codecs[place].decode(_parts(wire, place), None))
        return self.codecs[0].decode(wire, sent)


def _parts(wire: object, depth: int) -> list[object]:
    """What coded things hold that lie ``depth`` deep, in order."""
    found: list[object] = []

    def look(parts: object) -> object:
        found.append(parts)
        return parts

    swap(wire, _is_coded, lambda coded: _client_update(coded, depth, look))
    return found


def _with_parts(wire: object, depth: int, new: list[object]) -> object:
    """The same with other things in them."""
    given = iter(new)
    return swap(wire, _is_coded, lambda coded: _client_update(coded, depth, lambda parts: next(given)))


def _client_update(coded: Coded, depth: int, change: Callable[[Any], Any]) -> Coded:
    if depth == 1:
        return replace(coded, parts=change(coded.parts))
    return replace(
        coded,
        parts=tuple(
            swap(part, _is_coded, lambda inner: _client_update(inner, depth - 1, change)) for part in coded.parts
        ),
    )


def _is_coded(value: object) -> bool:
    return isinstance(value, Coded)


def _zipped(function: Callable[[Tensor, Tensor], Tensor], a: object, b: Any) -> object:
    """A tree like a, with the float tensors of both put together."""
    if isinstance(a, Tensor):
        if not isinstance(b, Tensor) or a.shape != b.shape:
            raise InputError("error_feedback: the upload has other shapes than the one before it.")
        return function(a, b) if a.is_floating_point() else a
    if is_dataclass(a) and not isinstance(a, type):
        return replace(a, **{f.name: _zipped(function, getattr(a, f.name), getattr(b, f.name)) for f in fields(a)})
    if isinstance(a, tuple | list):
        return type(a)(_zipped(function, x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict):
        return {key: _zipped(function, value, b[key]) for key, value in a.items()}
    return a
