"""One field of a message spoilt: what is done to it, where, and an engine that does it to one client's uploads."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from types import NoneType
from typing import Any, get_args, get_type_hints

import torch
from torch import Tensor

from fedquilt.core.table import ClientId
from fedquilt.engines.local import Local
from fedquilt.records.record import pack, unpack
from fedquilt.rounds.client import Outcome, Task
from fedquilt.rounds.engine import Lost
from fedquilt.testing.faults import STRAY, Updates

Path = tuple[Any, ...]


def _double(value: object) -> object:
    if isinstance(value, Tensor):
        return value.double() if value.dtype not in (torch.float64,) else value.float()
    if isinstance(value, dict):
        return {n: _double(v) for n, v in value.items()} or {STRAY: torch.zeros(1, dtype=torch.float64)}
    if isinstance(value, bool):
        return 2
    if isinstance(value, int):
        return value + 0.5
    return torch.tensor(0.5)


def _shape(value: object) -> object:
    if isinstance(value, Tensor):
        return value[None].repeat(2, *[1] * value.dim())
    if isinstance(value, dict):
        return {**value, STRAY: torch.zeros(1)}
    return (value, value)


_MOST = 2**64 - 1  # more cannot travel


def _number(at: float) -> Callable[[object], object]:
    """All numbers are this one, as far as their type can hold it."""

    def fill(value: object) -> object:
        if isinstance(value, Tensor):
            if value.is_floating_point():
                top = torch.finfo(value.dtype).max
                return torch.full_like(value, at if at != at else max(-top, min(top, at)))
            if value.dtype == torch.bool:
                return value if at != at else torch.full_like(value, at < 0)
            if at != at:
                return value  # whole numbers cannot
            low, top = torch.iinfo(value.dtype).min, torch.iinfo(value.dtype).max
            return torch.full_like(value, max(low, min(top, int(at))))
        if isinstance(value, dict):
            return {n: fill(v) for n, v in value.items()} or {STRAY: torch.full((1,), min(at, 1e38))}
        if isinstance(value, tuple | list):
            return type(value)(fill(v) for v in value) if value else (at,)
        if is_dataclass(value) and not isinstance(value, type):
            return replace(value, **{f.name: fill(getattr(value, f.name)) for f in fields(value)})
        if isinstance(value, int) and not isinstance(value, bool):
            return at if at != at else max(-_MOST, min(int(at), _MOST))
        return at

    return fill


ALWAYS = ("none", "string", "dtype", "shape", "nan")  # what no field may be, unless it is declared so
KINDS: dict[str, Callable[[object], object]] = {
    "none": lambda value: None,
    "string": lambda value: "spoilt",
    "dtype": _double,
    "shape": _shape,
    "nan": _number(float("nan")),
    "1e30": _number(1e30),
    "negative": _number(-1.0),
    "huge": _number(1.7e308),
}


def paths(value: object, here: Path = (), end: bool = True) -> Iterator[tuple[Path, bool]]:
    """Every field of an upload, also those inside fields; and whether it is at an end: not, of a dict or list, between
    the first and the last."""
    inside: list[tuple[object, object]] = []
    if is_dataclass(value):
        inside = [(field.name, getattr(value, field.name)) for field in fields(value)]
    elif isinstance(value, dict | tuple | list):
        inside = list(value.items() if isinstance(value, dict) else enumerate(value))
    for place, (step, inner) in enumerate(inside):
        outer = end and (is_dataclass(value) or place in (0, len(inside) - 1))
        yield (*here, step), outer
        yield from paths(inner, (*here, step), outer)


def spoilt(value: object, path: Path, change: Callable[[object], object]) -> object:
    """The upload with another value at one place; the same if it has no such place."""
    if not path:
        return change(value)
    step, *rest = path
    if is_dataclass(value) and not isinstance(value, type) and isinstance(step, str) and hasattr(value, step):
        return replace(value, **{step: spoilt(getattr(value, step), tuple(rest), change)})
    if isinstance(value, dict) and step in value:
        return {**value, step: spoilt(value[step], tuple(rest), change)}
    if isinstance(value, tuple | list) and isinstance(step, int) and step < len(value):
        return type(value)(spoilt(v, tuple(rest), change) if i == step else v for i, v in enumerate(value))
    return value


def may_be_none(value: Any, path: Path) -> bool:
    """Whether the record that has this field declares that it may be None."""
    *way, last = path
    for step in way:
        value = getattr(value, step) if is_dataclass(value) else value[step]
    return is_dataclass(value) and NoneType in get_args(get_type_hints(type(value)).get(last))


@dataclass(frozen=True)
class Spoil:
    """What is done to one client's upload in one exchange; without a kind it is lost."""

    client: ClientId
    exchange: str
    path: Path = ()
    kind: str | None = None

    def __str__(self) -> str:
        return f"{self.exchange}.{'.'.join(map(str, self.path))}: {self.kind}"


class Spoiling(Local):
    """As local, but for one client's uploads. Honest work is done once for all runs with one ``memo``."""

    def __init__(self, spoil: Spoil | None, memo: dict[bytes, Outcome]) -> None:
        super().__init__()
        self.spoil, self.memo = spoil, memo
        self.seen: dict[str, dict[Path, bool]] = {}
        self.optional: set[tuple[str, Path]] = set()
        self.hit = 0

    def updates(self, clients: Sequence[ClientId], task: Callable[[ClientId], Task]) -> Updates:
        """One after another."""
        for client in clients:
            yield client, self._client_update(task(client))

    def _client_update(self, task: Task) -> Outcome | Lost:
        key = hashlib.sha256(pack(task)).digest()
        found = self.memo.get(key)
        if found is None:
            found = self.side.update(task)
            found = self.memo[key] = replace(found, upload=bytes(found.upload))
        spoil = self.spoil
        if spoil is None:
            wire = unpack(found.upload)
            fields = dict(paths(wire))
            self.seen.setdefault(task.exchange, {}).update(fields)
            self.optional |= {(task.exchange, path) for path in fields if may_be_none(wire, path)}
        elif (task.client, task.exchange) == (spoil.client, spoil.exchange):
            if spoil.kind is None:
                return Lost("lost")
            wire = unpack(found.upload)
            frame = pack(spoilt(wire, spoil.path, KINDS[spoil.kind]), compact=True)
            self.hit += frame != pack(wire, compact=True)
            return replace(found, upload=frame)
        return found
