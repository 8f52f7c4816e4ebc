"""What a sweep may try of each setting: values, or a range."""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from fedquilt.core.plain import JSON

_NUMBER = r"[-+]?[0-9][0-9_]*(?:\.[0-9_]+)?(?:[eE][-+]?[0-9]+)?"
_RANGE = re.compile(rf"^(log:)?({_NUMBER})\.\.({_NUMBER})$")
_KEYS = {"low", "high", "log"}


@dataclass(frozen=True)
class Range:
    """All numbers from ``low`` to ``high``, both included; whole ones if both are. With ``log``, powers are even."""

    low: int | float
    high: int | float
    log: bool = False

    @property
    def whole(self) -> bool:
        """Only integers."""
        return isinstance(self.low, int) and isinstance(self.high, int)


Choices = list[JSON]
Space = dict[str, Range | Choices]


def space_of(given: JSON) -> JSON:
    """The space of ``[sweep.space]``: names, each with a list or a range; nested sections become dotted names."""
    if not isinstance(given, Mapping):
        raise ValueError("should be a section of settings, each with a list of values or a range { low, high }")
    found: Space = {}
    for name, value in given.items():
        if isinstance(value, Range):
            found[name] = value
        elif isinstance(value, Mapping) and not set(value) & _KEYS:
            found |= {f"{name}.{inner}": kept for inner, kept in space_of(value).items()}
        else:
            found[name] = _checked(name, value)
    return found


def _checked(name: str, value: object) -> Range | Choices:
    if isinstance(value, list):
        if not value:
            raise ValueError(f"{name}: an empty list has nothing to try")
        told = [json.dumps(item, sort_keys=True) for item in value]
        if len(set(told)) < len(told):
            raise ValueError(f"{name}: the values must differ, got {value}")
        return value
    if not isinstance(value, Mapping):
        raise ValueError(f"{name}: give a list of values, or a range {{ low = 0.1, high = 1.0 }}, got {value!r}")
    return _range(name, value)


def _range(name: str, value: Mapping[str, JSON]) -> Range:
    odd = sorted(set(value) - _KEYS)
    if odd or not {"low", "high"} <= set(value):
        raise ValueError(f"{name}: a range has low, high and log, got {', '.join(sorted(value))}")
    low, high, log = value["low"], value["high"], value.get("log", False)
    if not (_is_finite(low) and _is_finite(high)):
        raise ValueError(f"{name}: low and high must be numbers, got {low!r} and {high!r}")
    if not isinstance(log, bool):
        raise ValueError(f"{name}: log is true or false, got {log!r}")
    if low >= high:
        raise ValueError(f"{name}: low must be below high, got {low!r} and {high!r}")
    if log and low <= 0:
        raise ValueError(f"{name}: a range by powers begins above 0, got {low!r}")
    return Range(low, high, log)


def _is_finite(value: JSON) -> bool:
    """Whether this is a number, and no infinite one."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def read_set(text: str) -> tuple[str, JSON]:
    """A setting and what to try, from the command line: ``NAME=1,2,3``, ``NAME=0.1..1.0`` or ``NAME=log:0.001..1``."""
    name, equals, tried = (part.strip() for part in text.partition("="))
    if not equals or not name or not tried:
        raise ValueError(
            f"--set {text!r} is not of the form NAME=VALUE,VALUE,... or NAME=LOW..HIGH or NAME=log:LOW..HIGH"
        )
    span = _RANGE.match(tried)
    if span is not None:
        low, high = (tomllib.loads(f"v = {span[i].lstrip('+')}")["v"] for i in (2, 3))
        return name, {"low": low, "high": high, **({"log": True} if span[1] else {})}
    try:
        return name, tomllib.loads(f"v = [{tried}]")["v"]
    except tomllib.TOMLDecodeError:
        return name, [_value(part.strip()) for part in tried.split(",")]


def _value(text: str) -> JSON:
    try:
        return tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        return text


def different(values: list[int]) -> list[int]:
    """The numbers, if none comes twice."""
    if len(set(values)) < len(values):
        raise ValueError(f"the numbers must differ, got {values}")
    return values


class Sweep(BaseModel):
    """What ``fedquilt sweep`` tries: ``space`` gives names of settings and what to try of each.

    ``search`` is 'grid' (all of them), 'random' or 'optuna'; ``points`` how many of the last two, drawn by ``seed``.
    Every point is run with all ``seeds``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)
    search: Literal["grid", "random", "optuna"] = "grid"
    points: Annotated[int, Field(ge=1)] = 20
    seeds: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1), AfterValidator(different)] = [0]
    seed: Annotated[int, Field(ge=0)] = 0
    space: Annotated[Space, BeforeValidator(space_of)] = {}
