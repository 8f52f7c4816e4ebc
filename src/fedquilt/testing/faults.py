"""Methods and engines that go wrong in one place, around those that do not. Worker processes can import them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedquilt.core.exchange import Cohort, Context, Exchange, Method
from fedquilt.core.params import Params
from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId, Site
from fedquilt.engines.local import Local
from fedquilt.methods.on_base import OnBase
from fedquilt.rounds.client import Outcome, Task
from fedquilt.rounds.engine import Lost

STRAY = "stray"
Updates = Iterator[tuple[ClientId, Outcome | Lost]]
Work = Callable[[Any, Any, Site, Context], tuple[Any, Any]]  # of an exchange


# Uploads


def _nan(delta: Params) -> Params:
    broken = {n: t / 0 * 0 if t.is_floating_point() else t for n, t in delta.items()}
    return broken or {STRAY: torch.tensor(float("nan"))}


def _shape(delta: Params) -> Params:
    return {n: t[None].repeat(2, *[1] * t.dim()) for n, t in delta.items()} or {STRAY: torch.zeros(2)}


def _holds_numbers(value: object) -> bool:
    if isinstance(value, Tensor):
        return value.is_floating_point()
    if isinstance(value, dict):
        return not value or any(map(_holds_numbers, value.values()))
    return is_dataclass(value) and any(_holds_numbers(getattr(value, f.name)) for f in fields(value))


def _spoilt(upload: Any, change: Callable[[Params], Params]) -> Any:
    """Change the first field that holds tensors, or is one, or has such a field."""
    if isinstance(upload, Tensor):
        return change({STRAY: upload})[STRAY]
    if isinstance(upload, dict):
        return change(upload)
    names = [f.name for f in fields(upload)] if is_dataclass(upload) else []
    name = next((n for n in names if _holds_numbers(getattr(upload, n))), None)
    return change({}) if name is None else replace(upload, **{name: _spoilt(getattr(upload, name), change)})


CORRUPTIONS: dict[str, Callable[[object], object]] = {
    "nan": lambda upload: _spoilt(upload, _nan),
    "shape": lambda upload: _spoilt(upload, _shape),
    "names": lambda upload: _spoilt(upload, lambda p: {**p, STRAY: torch.zeros(1)}),
    "dtype": lambda upload: _spoilt(upload, lambda p: {n: t.double() for n, t in p.items()}),
    "1e30": lambda upload: _spoilt(upload, lambda p: {n: torch.full_like(t, 1e30) for n, t in p.items()}),
    "kind": lambda upload: "not what was asked for",
}


# Methods


class Wraps(OnBase):
    """A method that changes its base's exchanges and nothing else."""

    base: Method

    def plan(self, state: object, round: int) -> tuple[str, ...]:
        """As the base."""
        return self.base.plan(state, round)


@dataclass(frozen=True)
class Corrupted:
    """Work whose upload is spoiled at one client."""

    work: Work
    client: ClientId
    kind: str

    def __call__(self, download: object, client: object, site: Site, context: Context) -> tuple[object, object]:
        state, upload = self.work(download, client, site, context)
        return state, CORRUPTIONS[self.kind](upload) if context.client == self.client else upload


@dataclass(frozen=True, kw_only=True)
class Corrupting(Wraps):
    """The base, with one client's first upload of each round spoiled: after it, it is left out of the round."""

    base: Method
    client: ClientId
    kind: str

    def exchanges(self) -> tuple[Exchange, ...]:
        """The base's, all spoiled: which of them comes first is the plan's choice."""
        return tuple(replace(e, work=Corrupted(e.work, self.client, self.kind)) for e in self.base.exchanges())


@dataclass(frozen=True)
class Absent:
    """A cohort without one client."""

    cohort: Cohort
    client: ClientId

    def __call__(self, state: object, ids: Sequence[ClientId], seed: Seed) -> Sequence[ClientId]:
        return [c for c in self.cohort(state, ids, seed) if c != self.client]


@dataclass(frozen=True, kw_only=True)
class Without(Wraps):
    """The base, with one client never asked."""

    base: Method
    client: ClientId

    def exchanges(self) -> tuple[Exchange, ...]:
        """The base's, with smaller cohorts."""
        return tuple(replace(e, cohort=Absent(e.cohort, self.client)) for e in self.base.exchanges())


@dataclass(frozen=True)
class Killing:
    """Work that kills its own process at one client: once if there is a marker, always otherwise."""

    work: Work
    client: ClientId
    marker: str | None
    home: int

    def __call__(self, download: object, client: object, site: Site, context: Context) -> tuple[object, object]:
        if context.client == self.client and os.getpid() != self.home:
            if self.marker is None:
                os.kill(os.getpid(), signal.SIGKILL)
            elif not Path(self.marker).exists():
                Path(self.marker).touch()
                os.kill(os.getpid(), signal.SIGKILL)
        state, upload = self.work(download, client, site, context)
        return state, upload


@dataclass(frozen=True, kw_only=True)
class Deadly(Wraps):
    """The base, but a client update to one client ends the process that makes it, unless that is the one that made
    this."""

    base: Method
    client: ClientId
    marker: str | None = None
    home: int = field(default_factory=os.getpid)

    def exchanges(self) -> tuple[Exchange, ...]:
        """The base's, with deadly work."""
        return tuple(
            replace(e, work=Killing(e.work, self.client, self.marker, self.home)) for e in self.base.exchanges()
        )


@dataclass(frozen=True)
class FailingWork:
    """Work that raises at one client."""

    work: Work
    client: ClientId

    def __call__(self, download: object, client: object, site: Site, context: Context) -> tuple[object, object]:
        if context.client == self.client:
            raise ValueError("this client was told to fail")
        state, upload = self.work(download, client, site, context)
        return state, upload


@dataclass(frozen=True, kw_only=True)
class FailingAt(Wraps):
    """The base, but one client's work raises."""

    base: Method
    client: ClientId

    def exchanges(self) -> tuple[Exchange, ...]:
        """The base's, with failing work."""
        return tuple(replace(e, work=FailingWork(e.work, self.client)) for e in self.base.exchanges())


# Engines


class Tampering(Local):
    """Changes one client's upload frame on its way."""

    def __init__(self, client: ClientId, change: Callable[[bytes], bytes]) -> None:
        super().__init__()
        self.client, self.change = client, change

    def updates(self, clients: Sequence[ClientId], task: Callable[[ClientId], Task]) -> Updates:
        """As local, but for one frame."""
        for client, outcome in super().updates(clients, task):
            if client == self.client and isinstance(outcome, Outcome):
                outcome = replace(outcome, upload=self.change(bytes(outcome.upload)))
            yield client, outcome


class Shuffled(Local):
    """Client updates clients in a random order and hands the outcomes back in the order asked for."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.draw = Seed(seed).numpy()

    def updates(self, clients: Sequence[ClientId], task: Callable[[ClientId], Task]) -> Updates:
        """All first, then all answers."""
        mixed = [clients[i] for i in self.draw.permutation(len(clients))]
        found = {client: self.side.update(task(client)) for client in mixed}
        yield from ((client, found[client]) for client in clients)
