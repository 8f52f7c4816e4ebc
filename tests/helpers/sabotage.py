"""Methods that go wrong in one place. They live in a module so that worker processes can import them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedquilt.core.errors import InputError
from fedquilt.core.exchange import Cohort, Exchange, Turn
from fedquilt.core.params import Params
from fedquilt.core.seed import Seed
from fedquilt.core.table import Batch, ClientId, Site
from fedquilt.core.train import Job, Trained
from fedquilt.methods.on_base import OnBase

STRAY = "stray"


def _nan(delta: Params) -> Params:
    broken = {n: t / 0 * 0 if t.is_floating_point() else t for n, t in delta.items()}
    return broken or {STRAY: torch.tensor(float("nan"))}


def _shape(delta: Params) -> Params:
    return {n: t[None].repeat(2, *[1] * t.dim()) for n, t in delta.items()} or {STRAY: torch.zeros(2)}


def _spoil(upload: Any, change: Callable[[Params], Params]) -> Any:
    """Change the first field: the one that holds tensors, or is one, or has such a field."""
    name = fields(upload)[0].name
    value = getattr(upload, name)
    if is_dataclass(value):
        return replace(upload, **{name: _spoil(value, change)})
    changed = change({name: value})[name] if isinstance(value, Tensor) else change(value)
    return replace(upload, **{name: changed})


CORRUPTIONS: dict[str, Callable[[Any], Any]] = {
    "nan": lambda upload: _spoil(upload, _nan),
    "shape": lambda upload: _spoil(upload, _shape),
    "names": lambda upload: _spoil(upload, lambda p: {**p, STRAY: torch.zeros(1)}),
    "dtype": lambda upload: _spoil(upload, lambda p: {n: t.double() for n, t in p.items()}),
    "1e30": lambda upload: _spoil(upload, lambda p: {n: torch.full_like(t, 1e30) for n, t in p.items()}),
    "kind": lambda upload: "not what was asked for",
}


@dataclass(frozen=True)
class wild_in:
    """A schedule by which everybody diverges in some rounds."""

    rounds: tuple[int, ...]

    def __call__(self, round: int) -> float:
        return 1e9 if round in self.rounds else 1.0


class Wraps(OnBase):
    """A method that changes its base's exchanges and nothing else."""

    base: Any

    def plan(self, state: Any, round: int) -> tuple[str, ...]:
        """As the base."""
        names: tuple[str, ...] = self.base.plan(state, round)
        return names


@dataclass(frozen=True)
class Corrupted:
    """Work whose upload is spoiled at one client."""

    work: Any
    client: Any
    kind: str

    def __call__(self, download: Any, client: Any, site: Site, turn: Turn) -> tuple[Any, Any]:
        state, upload = self.work(download, client, site, turn)
        return state, CORRUPTIONS[self.kind](upload) if turn.client == self.client else upload


@dataclass(frozen=True, kw_only=True)
class Corrupting(Wraps):
    """The base, with one client's first upload of each round spoiled: after it, it is left out of the round."""

    base: Any
    client: Any
    kind: str

    def exchanges(self) -> tuple[Exchange, ...]:
        """The base's, all spoiled: which of them comes first is the plan's choice."""
        return tuple(replace(e, work=Corrupted(e.work, self.client, self.kind)) for e in self.base.exchanges())


@dataclass(frozen=True)
class Absent:
    """A cohort without one client."""

    cohort: Cohort
    client: Any

    def __call__(self, state: Any, ids: Sequence[ClientId], seed: Seed) -> Sequence[ClientId]:
        return [c for c in self.cohort(state, ids, seed) if c != self.client]


@dataclass(frozen=True, kw_only=True)
class Without(Wraps):
    """The base, with one client never asked."""

    base: Any
    client: Any

    def exchanges(self) -> tuple[Exchange, ...]:
        """The base's, with smaller cohorts."""
        return tuple(replace(e, cohort=Absent(e.cohort, self.client)) for e in self.base.exchanges())


@dataclass(frozen=True)
class Killing:
    """Work that kills its own process at one client: once if there is a marker, always otherwise."""

    work: Any
    client: Any
    marker: str | None

    def __call__(self, download: Any, client: Any, site: Site, turn: Turn) -> tuple[Any, Any]:
        if turn.client == self.client and "FEDQUILT_WORKER" in os.environ:  # never the tests' own process
            if self.marker is None:
                os.kill(os.getpid(), signal.SIGKILL)
            elif not Path(self.marker).exists():
                Path(self.marker).touch()
                os.kill(os.getpid(), signal.SIGKILL)
        state, upload = self.work(download, client, site, turn)
        return state, upload


@dataclass(frozen=True, kw_only=True)
class Deadly(Wraps):
    """The base, but a visit to one client ends its worker process."""

    base: Any
    client: Any
    marker: str | None = None

    def exchanges(self) -> tuple[Exchange, ...]:
        """The base's, with deadly work."""
        return tuple(replace(e, work=Killing(e.work, self.client, self.marker)) for e in self.base.exchanges())


def boom(out: Any, params: Params, fixed: Mapping[str, Any], batch: Batch) -> Tensor:
    """A term that raises what ``start`` asked for."""
    if "boom" in fixed:
        raise fixed["boom"]
    return params["weight"].new_zeros(())


ERRORS = {"foreign": lambda: KeyError("boom"), "own": lambda: InputError("boom")}


@dataclass(frozen=True, kw_only=True)
class Failing(Wraps):
    """The base, but one stage raises at one client, which is known by its id and its number of rows."""

    base: Any
    stage: str
    client: int
    rows: int
    error: str = "foreign"

    def exchanges(self) -> tuple[Exchange, ...]:
        """The base's, with trouble."""
        (train,) = self.base.exchanges()
        objective = train.work.objective.plus(boom)
        work = replace(train.work, start=self.start, objective=objective, finish=self.finish)
        return (replace(train, down=self.down, work=work, up=self.up, check=self.check, cohort=self.cohort),)

    def _maybe(self, stage: str, here: bool) -> None:
        if stage == self.stage and here:
            raise ERRORS[self.error]()

    def cohort(self, state: Any, ids: Any, seed: Seed) -> Any:
        """Everyone."""
        self._maybe("cohort", True)
        return ids

    def down(self, state: Any, client_id: ClientId) -> Any:
        """As the base."""
        self._maybe("down", client_id == self.client)
        return self.base.down(state, client_id)

    def start(self, download: Any, client: Any, site: Site, turn: Turn) -> Job:
        """As the base; a mine for the objective."""
        here = site.examples == self.rows
        self._maybe("start", here)
        job: Job = self.base.start(download, client, site, turn)
        mine = {"boom": ERRORS[self.error]()} if here and self.stage == "objective" else {}
        return replace(job, fixed={**job.fixed, **mine})

    def finish(self, job: Job, trained: Trained, client: Any, site: Site, turn: Turn) -> tuple[Any, Any]:
        """As the base."""
        self._maybe("finish", site.examples == self.rows)
        state, upload = self.base.finish(job, trained, client, site, turn)
        return state, upload

    def check(self, state: Any, upload: Any) -> None:
        """As the base."""
        self._maybe("check", True)
        self.base.check(state, upload)

    def up(self, state: Any, replies: Any, turn: Turn) -> Any:
        """As the base."""
        list(replies)
        self._maybe("up", True)
        return state
