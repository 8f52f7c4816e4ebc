"""What the fields of a record may hold: their annotations, checked.

A record says in its annotations what it holds, and whoever receives one from elsewhere asks :func:`check_declared`:

    @record
    class Tally:
        candidates: Count                                     # a whole number, not negative
        counts: Annotated[Tensor, torch.int64, Between(0)]    # a tensor of this dtype, of no number below 0

Whatever is declared, whole numbers have at most 64 bits and floats are finite. Shapes depend on the state of a run:
they are the business of ``Exchange.check``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from fedquilt.errors import InputError
from fedquilt.records.registered import MARKS, names

Check = Callable[[object, str], None]
LARGEST = 2**63


@dataclass(frozen=True)
class Between:
    """The smallest and the largest number of a field, or of a tensor in it."""

    low: float
    high: float = math.inf

    def __call__(self, value: Any) -> bool:
        """Whether a number, or all numbers of a tensor, are in between."""
        if isinstance(value, Tensor):
            return not value.numel() or bool(((value >= self.low) & (value <= self.high)).all())
        return bool(self.low <= value <= self.high)

    def __str__(self) -> str:
        return f"at least {self.low:g}" + ("" if math.isinf(self.high) else f" and at most {self.high:g}")


Count = Annotated[int, Between(0, 10**12)]


def check_declared(value: object, kind: object = Any, what: str = "upload") -> None:
    """Raise unless a value is what an annotation declares; records inside it are what their own fields declare."""
    _check_of(kind)(value, what)


def shown(value: object) -> str:
    """A value in an error's few words; its text may come from anybody."""
    if isinstance(value, Tensor):
        return f"a tensor {tuple(value.shape)} {value.dtype}"
    if isinstance(value, int) and abs(value) >= LARGEST:
        return f"a whole number of {value.bit_length()} bits"
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    if isinstance(value, str):
        return repr(value if len(value) <= 40 else value[:40] + "...")
    return f"a {type(value).__name__}"


def _check_of(kind: object) -> Check:
    try:
        return _made(kind)
    except TypeError:  # an annotation that cannot be hashed
        return _anything


@cache
def _made(kind: object) -> Check:
    """The check of an annotation; one that is no type of what records hold allows everything."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _narrowed(_check_of(args[0]), args[1:])
    if origin in (Union, UnionType):
        return _either([_check_of(arg) for arg in args], kind)
    if origin is Literal:
        return _only(lambda value: any(type(value) is type(a) and value == a for a in args), f"one of {args}")
    if kind in _SINGLE:
        return _SINGLE[kind]
    whole = origin or kind
    if whole in (dict, Mapping):
        return _mapping(*(map(_check_of, args) if len(args) == 2 else (_anything, _anything)))
    if whole in (tuple, list, Sequence):
        return _row(whole, args)
    if isinstance(kind, type) and kind in MARKS:
        return _of_type(kind)
    return _anything


def _only(fits: Callable[[object], bool], words: str) -> Check:
    def check(value: object, what: str) -> None:
        if not fits(value):
            raise InputError(f"{what} should be {words}, got {shown(value)}.")

    return check


def _whole(value: object) -> bool:
    return type(value) is int and abs(value) < LARGEST


def _finite(value: object) -> bool:
    return (type(value) is float and math.isfinite(value)) or _whole(value)


_NOTHING = _only(lambda value: value is None, "None")
_SINGLE: dict[object, Check] = {
    None: _NOTHING,
    NoneType: _NOTHING,
    bool: _only(lambda value: type(value) is bool, "True or False"),
    int: _only(_whole, "a whole number of at most 64 bits"),
    float: _only(_finite, "a finite number"),
    str: _only(lambda value: type(value) is str, "a text"),
    bytes: _only(lambda value: isinstance(value, bytes), "bytes"),
    Tensor: _only(lambda value: isinstance(value, Tensor), "a tensor"),
}


def _narrowed(check: Check, rules: Sequence[object]) -> Check:
    def narrowed(value: Any, what: str) -> None:
        check(value, what)
        for rule in rules:
            if isinstance(rule, torch.dtype) and value.dtype != rule:
                raise InputError(f"{what} should be {rule}, got {shown(value)}.")
            if isinstance(rule, Between) and not rule(value):
                raise InputError(f"{what} should be {rule}, got {shown(value)}.")

    return narrowed


def _either(checks: Sequence[Check], kind: object) -> Check:
    def either(value: object, what: str) -> None:
        problems = []
        for check in checks:
            try:
                return check(value, what)
            except InputError as error:
                problems.append(str(error))
        raise InputError(problems[0] if value is not None else f"{what} should not be None.")

    return either


def _mapping(keys: Check, values: Check) -> Check:
    def check(value: object, what: str) -> None:
        if not isinstance(value, dict):
            raise InputError(f"{what} should be a dict, got {shown(value)}.")
        for key, inner in value.items():
            keys(key, f"a key of {what}")
            values(inner, f"{what}[{shown(key)}]")

    return check


def _row(kind: Any, args: tuple[Any, ...]) -> Check:
    fixed = kind is tuple and bool(args) and not (len(args) == 2 and args[1] is Ellipsis)
    checks = [_check_of(arg) for arg in args if arg is not Ellipsis] or [_anything]

    def check(value: Any, what: str) -> None:
        if not isinstance(value, tuple | list if kind is Sequence else kind):
            raise InputError(f"{what} should be a {kind.__name__}, got {shown(value)}.")
        if fixed and len(value) != len(checks):
            raise InputError(f"{what} should have {len(checks)} parts, got {len(value)}.")
        for place, inner in enumerate(value):
            checks[place if fixed else 0](inner, f"{what}[{place}]")

    return check


def _of_type(kind: type) -> Check:
    def check(value: object, what: str) -> None:
        if not isinstance(value, kind):
            raise InputError(f"{what} should be a {kind.__name__}, got {shown(value)}.")
        _record(value, what)

    return check


def _record(value: object, what: str) -> None:
    kind: type = type(value)
    for name, check in _fields(kind):
        check(getattr(value, name), f"{what}.{name}")


@cache
def _fields(kind: type) -> tuple[tuple[str, Check], ...]:
    try:
        hints = get_type_hints(kind, include_extras=True)
    except Exception:  # annotations of names that are nowhere to be found, of a class inside a function
        hints = {}
    return tuple((name, _check_of(hints.get(name, Any))) for name in names(kind))


def _anything(value: object, what: str) -> None:
    """Of what nothing is declared: numbers are numbers, and records are what they declare."""
    if isinstance(value, Tensor):
        return
    if isinstance(value, float | int) and not isinstance(value, bool):
        _SINGLE[float](value, what)
    elif type(value) in MARKS or (is_dataclass(value) and not isinstance(value, type)):
        _record(value, what)
    elif isinstance(value, dict):
        _UNDECLARED(value, what)
    elif isinstance(value, tuple | list):
        for place, inner in enumerate(value):
            _anything(inner, f"{what}[{place}]")


_UNDECLARED = _mapping(_anything, _anything)
