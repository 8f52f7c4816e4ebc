"""Plays the runs of a comparison or a sweep: those that are not finished yet, one by one or side by side."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fedquilt.config.config import Config
from fedquilt.core.exchange import Method
from fedquilt.core.plain import Row
from fedquilt.data import Federation, Stream
from fedquilt.engines.process import forks
from fedquilt.engines.workers import cores
from fedquilt.errors import ExchangeError, RoundError
from fedquilt.metrics.energy import Meter
from fedquilt.metrics.memory import available
from fedquilt.results.traffic import model_bytes
from fedquilt.rounds.engine import Engine
from fedquilt.runs.build import engine_of, method_of, result_for, run_of
from fedquilt.runs.energy import SIDE_BY_SIDE
from fedquilt.runs.engines import tell_unused
from fedquilt.runs.given import Given
from fedquilt.studies.listening import Listener, Nobody, play_to
from fedquilt.studies.side_by_side import side_by_side

EACH = 2**29  # bytes that are reckoned for a run beside others
MODELS = 12  # and so many copies of its model


@dataclass(frozen=True)
class PlannedRun:
    """One run of several: its label, its settings, its folder, what people read for its method; and its objects, where
    a script gave them."""

    label: str
    config: Config
    folder: Path
    display: str
    given: Given | None = None

    def method(self, federation: Federation | Stream) -> Method:
        """What it runs."""
        return method_of(self.config, federation) if self.given is None else self.given.method


Federations = Mapping[int, Federation | Stream]  # by the seed of a run; a recipe has one for all


class Audience(Protocol):
    """Who follows several runs."""

    def kept(self) -> None:
        """One of them was finished before."""
        ...

    def playing(self, cell: PlannedRun) -> AbstractContextManager[Listener]:
        """One of them is played; what is given hears of it."""
        ...


class NoAudience:
    """Nobody follows."""

    def kept(self) -> None:
        """Nothing."""

    @contextmanager
    def playing(self, cell: PlannedRun) -> Iterator[Listener]:
        """Nobody listens."""
        yield Nobody()


class Player:
    """Plays cells that are not finished yet. Trouble of one does not stop the others. An ``engine`` that is given
    plays them one by one, and stays open."""

    def __init__(
        self, config: Config, federations: Federations, audience: Audience | None, engine: Engine | None = None
    ) -> None:
        self.config, self.federations, self.audience = config, federations, audience or NoAudience()
        self.failed: list[Row] = []
        tell_unused(config.engine.devices, config.engine.kind)  # here, not once for each run
        self._engine, self._given = engine, engine

    def play(self, cells: Sequence[PlannedRun]) -> None:
        """Play them; what failed is added to ``failed``."""
        todo = []
        for cell in cells:
            if result_for(cell.folder, self.federations[cell.config.seed], cell.config.rounds) is None:
                todo.append(cell)
            else:
                self.audience.kept()
        count = self._at_once(todo)
        found = self._side_by_side(todo, count) if count > 1 else self._one_by_one(todo)
        self.failed += [
            {"method": c.label, "display": c.display, "seed": c.config.seed, "reason": reason} for c, reason in found
        ]

    def _side_by_side(self, todo: Sequence[PlannedRun], count: int) -> list[tuple[PlannedRun, str]]:
        """So many at once, each on an engine of its own; which failed, and why."""
        for federation in set(self.federations.values()):
            federation.fingerprint()  # once for all runs on it
        choice = self.config.engine
        if choice.processes is None and choice.kind in ("auto", "workers"):  # they share the cores
            choice = choice.model_copy(update={"processes": max(1, cores() // count)})
        counted = Meter.here()
        silent = Meter(why=SIDE_BY_SIDE if counted.counters else counted.why)

        def apart(cell: PlannedRun, listener: Listener) -> str | None:
            with closing(engine_of(self.config.model_copy(update={"engine": choice}))) as engine:
                return self._trouble(cell, engine, listener, silent)

        return side_by_side(todo, count, apart, self.audience.playing)

    def _one_by_one(self, todo: Sequence[PlannedRun]) -> list[tuple[PlannedRun, str]]:
        """One after the other on the same engine; which failed, and why."""
        found = []
        for cell in todo:
            with self.audience.playing(cell) as listener:
                reason = self._trouble(cell, self._here(), listener)
            found += [] if reason is None else [(cell, reason)]
        return found

    def _here(self) -> Engine:
        """The engine for one run after another."""
        if self._engine is None:
            self._engine = engine_of(self.config)
        return self._engine

    def _trouble(self, cell: PlannedRun, engine: Engine, listener: Listener, meter: Meter | None = None) -> str | None:
        """Play one; why it failed, if it did."""
        try:
            data = self.federations[cell.config.seed]
            play_to(listener, run_of(cell.config, engine, cell.folder, data, meter=meter, given=cell.given))
        except (ExchangeError, RoundError) as error:
            return str(error)
        return None

    def _at_once(self, todo: Sequence[PlannedRun]) -> int:
        """How many runs are played at once: as many as the settings say; by default, with engine 'auto', as many as
        there are cores and memory for."""
        chosen = self.config.engine
        if len(todo) < 2 or self._given is not None:
            return 1
        if not forks(None):
            if (chosen.at_once or 1) > 1:
                warnings.warn(
                    f"engine.at_once = {chosen.at_once}: runs execute one after another, since this process has other "
                    "threads or cannot be forked.",
                    stacklevel=2,
                )
            return 1
        if chosen.at_once is not None:
            return min(chosen.at_once, len(todo))
        if chosen.kind != "auto" or chosen.processes is not None or chosen.devices:
            return 1
        return max(1, min(len(todo), cores(), self._in_memory(todo)))

    def _in_memory(self, todo: Sequence[PlannedRun]) -> int:
        """How many runs there is memory for."""
        kinds = {(str(cell.config.model), id(cell.given)): cell for cell in todo}.values()
        largest = max(model_bytes(cell.method(self.federations[cell.config.seed])) or 0 for cell in kinds)
        return available() // (EACH + MODELS * largest)

    def all_failed(self, what: str) -> str:
        """In words."""
        return f"Every {what} failed. " + "; ".join(f"{f['display']}: {f['reason']}" for f in self.failed[:3])

    def __enter__(self) -> Player:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._engine is not None and self._given is None:
            self._engine.close()
