"""Marks of values: equal as long as nothing changed in a value or in what hangs on it (lists, dicts, arrays, ...)."""

from __future__ import annotations

import enum
import functools
import hashlib
import itertools
import random
import re
import types
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Set
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

_SIMPLE = (
    type(None),
    bool,
    int,
    str,
    bytes,
    range,
    slice,
    type(...),
    type(NotImplemented),
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)


class _Pair(NamedTuple):
    first: object


_NAMED = (  # known by which they are: their code, if it is a user's, is read elsewhere
    type,
    types.ModuleType,
    types.FunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    type(_Pair.first),
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    staticmethod,
    classmethod,
    property,
    re.Pattern,
    enum.Enum,
    weakref.ref,
    np.dtype,
    np.ufunc,
    torch.jit.ScriptFunction,
    torch._ops.OpOverload,
    torch._ops.OpOverloadPacket,
)
_BOUND = (types.MethodType, types.BuiltinFunctionType, types.MethodWrapperType)
_GENERATORS = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)
Mark = object  # equal to that of another time as long as nothing has changed
_MOST = 20_000  # values that are looked at
_WHOLE = 2**20  # bytes of an array up to which all of them are digested; of larger ones a sample, and the sum of all
STANDARD = set(vars(nn.Module()))  # what every module has for itself


def generators() -> tuple[Mark, Mark]:
    """Where Python's own and numpy's global generator stand."""
    kind, keys, place, *gauss = np.random.get_state(legacy=True)
    return random.getstate(), (kind, keys.tobytes(), place, *gauss)  # type: ignore[union-attr]


class Marker:
    """Marks values.

    Args:
        known: Objects that are marked elsewhere, or not at all.

    Attributes:
        opaque: A value that it cannot look into.
        moves: One that changes whenever it is used.
        full: Whether there was more than it looks at.
    """

    def __init__(self, known: Mapping[int, str] | None = None) -> None:
        self.seen: dict[int, Mark] = dict(known or {})
        self.kept: list[object] = []  # so that no identity is given twice
        self.opaque: str | None = None
        self.moves: str | None = None
        self.full = False
        self.count = 0

    def mark(self, value: object) -> Mark:
        """The mark of a value."""
        self.count += 1
        if self.count > _MOST:
            self.full = True
            return None
        if isinstance(value, _SIMPLE):
            return type(value).__name__, value if not isinstance(value, slice) else repr(value)
        if isinstance(value, float | complex | np.generic | itertools.count):
            return type(value).__name__, repr(value)
        if isinstance(value, _NAMED):
            return id(value)
        if id(value) in self.seen:
            return self.seen[id(value)]
        self.seen[id(value)] = ("again", len(self.seen))
        self.kept.append(value)
        return self._whole(value)

    def _whole(self, value: object) -> Mark:
        if isinstance(value, Tensor):
            return _tensor(value)
        if isinstance(value, np.ndarray):
            return value.shape, str(value.dtype), _digest(value) if value.dtype != object else self.mark(value.tolist())
        if isinstance(value, _GENERATORS):
            return _stand(value)
        if isinstance(value, _BOUND):
            owner = value.__self__
            return id(value), None if isinstance(owner, types.ModuleType | type) else self.mark(owner)
        if isinstance(value, functools.partial):
            return self.mark(value.func), self.mark(value.args), self.mark(value.keywords), id(type(value))
        if isinstance(value, Mapping):
            return type(value).__name__, tuple((self.mark(k), self.mark(v)) for k, v in value.items()), self._own(value)
        if isinstance(value, list | tuple | deque):
            return type(value).__name__, tuple(self.mark(v) for v in value), self._own(value)
        if isinstance(value, Set):
            return type(value).__name__, tuple(sorted(repr(self.mark(v)) for v in value))
        if isinstance(value, Iterator):
            self.moves = f"a {type(value).__name__}, which moves on when it is asked"
            return id(value)
        return self._object(value)

    def _object(self, value: object) -> Mark:
        if belongs(type(value), "fedquilt"):  # nothing of this library's changes by being called, but for what it holds
            held = fields(value) if is_dataclass(value) and type(value).__name__ != "Net" else ()
            return id(value), tuple((f.name, self.mark(getattr(value, f.name, None))) for f in held)
        if not hasattr(value, "__dict__") and not _slots(value) and type(value) is not object:
            self.opaque = self.opaque or f"a {type(value).__name__}"
            return id(value)
        return id(value), self._own(value)

    def _own(self, value: object) -> Mark:
        """What an object has beside what it holds as a list or a dict: its attributes."""
        held = {**getattr(value, "__dict__", {}), **{n: getattr(value, n) for n in _slots(value) if hasattr(value, n)}}
        return tuple((n, self.mark(v)) for n, v in held.items())

    def module(self, module: nn.Module) -> Iterator[tuple[str, Mark]]:
        """The attributes of one module, each with its mark; not its parts and tensors, nor its hooks."""
        bound = ("_flat_weights", "_flat_weight_refs") if isinstance(module, nn.RNNBase) else ()
        for name, value in list(vars(module).items()):
            if name not in STANDARD and name not in bound:
                yield name, self.mark(value)


def belongs(thing: object, *packages: str) -> bool:
    """Whether a function or class is defined in one of these packages."""
    place = getattr(thing, "__module__", None)
    return isinstance(place, str) and place.split(".")[0] in packages


def _slots(value: object) -> list[str]:
    found = [n for kind in type(value).__mro__ for n in _listed(vars(kind).get("__slots__", ()))]
    return [n for n in found if n not in ("__dict__", "__weakref__")]


def _listed(names: Any) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _stand(generator: object) -> Mark:
    """Where a generator stands."""
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, torch.Generator):
        return generator.get_state().numpy().tobytes()
    bits = getattr(generator, "bit_generator", None) or getattr(generator, "_bit_generator", None)
    return repr(getattr(bits, "state", None))


def _tensor(value: Tensor) -> Mark:
    about = id(value), 0 if value.is_inference() else value._version, tuple(value.shape), str(value.dtype)
    try:
        return *about, _digest(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    except (RuntimeError, TypeError, NotImplementedError):  # of a kind that cannot be read: known by its version
        return about


def _digest(array: object) -> bytes:
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    step = max(1, flat.nbytes // _WHOLE)
    total = flat[: flat.nbytes // 8 * 8].view(np.uint64).sum() if step > 1 else 0
    seen = flat[::step].tobytes() + flat[-8:].tobytes() + int(total).to_bytes(8, "big")
    return hashlib.blake2b(seen, digest_size=16).digest()
