"""What frames may hold: the record types known by name, and the dtypes of tensors."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar, cast, dataclass_transform, overload

import torch

from fedquilt.errors import InputError

T = TypeVar("T")

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
CODES = {dtype: code for code, dtype in DTYPES.items()}
SIZES = {code: torch.empty((), dtype=dtype).element_size() for code, dtype in DTYPES.items()}
RECORDS: dict[str, type] = {}
SHORT: dict[bytes, str] = {}  # the names of the record types by their marks in compact frames
MARKS: dict[type, bytes] = {}  # and their marks
_NAMED: dict[type, str] = {}  # the names of those that do not go by their module's
_FIELDS: dict[type, tuple[str, ...]] = {}
_WRITTEN: dict[type, dict[str, str]] = {}  # fields that have another name in frames


def type_name(cls: type) -> str:
    """The name of a record type in frames: its own one, or that of its module and class."""
    if cls in _NAMED:
        return _NAMED[cls]
    module = "__main__" if cls.__module__ == "__mp_main__" else cls.__module__
    return f"{module}:{cls.__qualname__}"


def names(cls: type) -> tuple[str, ...]:
    """The fields of a record type."""
    found = _FIELDS.get(cls)
    if found is None:
        found = _FIELDS[cls] = tuple(f.name for f in fields(cast(Any, cls)))
    return found


def written(cls: type) -> tuple[str, ...]:
    """The fields of a record type as frames name them."""
    found = _WRITTEN.get(cls)
    return names(cls) if found is None else tuple(found.get(name, name) for name in names(cls))


def read_as(cls: type, values: dict[str, object]) -> dict[str, object]:
    """The values of a frame under the names of the fields."""
    found = {old: new for new, old in _WRITTEN.get(cls, {}).items()}
    return {found.get(name, name): value for name, value in values.items()} if found else values


def needed(cls: type) -> set[str]:
    """The fields of a record type that have no default: a frame kept since before a field was added lacks the rest."""
    return {f.name for f in fields(cast(Any, cls)) if f.default is MISSING and f.default_factory is MISSING}


def mark(cls: type) -> bytes:
    """Four bytes that stand for a record type and its fields: a type that gained a field has another mark."""
    return hashlib.blake2b(repr((type_name(cls), written(cls))).encode(), digest_size=4).digest()


@overload
@dataclass_transform(frozen_default=True)
def record(cls: type[T]) -> type[T]: ...


@overload
@dataclass_transform(frozen_default=True)
def record(*, name: str, written: Mapping[str, str] = ...) -> Callable[[type[T]], type[T]]: ...


def record(
    cls: type[T] | None = None, *, name: str | None = None, written: Mapping[str, str] = MappingProxyType({})
) -> type[T] | Callable[[type[T]], type[T]]:
    """Make a class a frozen dataclass that can be packed.

    Args:
        cls: The class.
        name: Its name in frames, which stays when the class moves; without one, 'module:Class'.
        written: Fields that have another name in frames, which stays when the field is renamed.

    Example:
        >>> @record
        ... class Note:
        ...     text: str
        >>> from fedquilt.records.record import pack, unpack
        >>> unpack(pack(Note("hello")))
        Note(text='hello')
    """
    return partial(_registered, name=name, written=written) if cls is None else _registered(cls, name, written)


def _registered(cls: type[T], name: str | None, written: Mapping[str, str]) -> type[T]:
    frozen = dataclass(frozen=True)(cls)
    if written:
        _WRITTEN[frozen] = dict(written)
    if name is not None:
        if name in RECORDS and RECORDS[name].__qualname__ != frozen.__qualname__:
            raise InputError(f"{frozen.__qualname__} has the name {name}, which {RECORDS[name].__qualname__} has.")
        _NAMED[frozen] = name
    name, short = type_name(frozen), mark(frozen)
    if SHORT.setdefault(short, name) != name:
        raise InputError(f"The records {name} and {SHORT[short]} have the same mark. Rename one of them.")
    RECORDS[name], MARKS[frozen] = frozen, short
    return frozen
