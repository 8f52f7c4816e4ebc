"""Joules of a run: by phase, and by client update where one client update is made at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from torch import Tensor

from fedquilt.core.exchange import Method
from fedquilt.core.params import norm
from fedquilt.core.plain import JSON, Row
from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId, Source
from fedquilt.metrics.energy import SWITCHED_OFF, Meter, per_change
from fedquilt.records.limits import upload_limits
from fedquilt.records.record import Frame, unpack
from fedquilt.rounds.client import Evaluation, Outcome, Score, Task
from fedquilt.rounds.engine import Engine, Lost, Timed
from fedquilt.rounds.rounds import ClientUpdate, RoundLog

SIDE_BY_SIDE = "not told: runs side by side share the machine's counters; engine.at_once=1 plays one at a time"
OFF = f"{SWITCHED_OFF} (meters.energy = false)"
_SECONDS = 10.0  # to read an upload that nobody has checked yet
SERVER_ALONE = "of the server's machine alone: what the sites spend is not counted"


class Metered:
    """An engine that also reads the meter: waiting for clients counts as 'train', evaluations as 'evaluate'.

    ``asked`` holds the joules and the model change of each client update of the round, where the engine makes one
    client update at a time in this process; several at once cannot be told apart by counters of the whole machine.
    """

    def __init__(self, engine: Engine, meter: Meter) -> None:
        self.engine, self.meter, self.name, self.keeps_states = engine, meter, engine.name, engine.keeps_states
        self.visited: list[tuple[ClientId, float, float | None]] = []

    def begin(self, method: Method, source: Source, seed: Seed, score: Score | None) -> None:
        """As the engine."""
        self.engine.begin(method, source, seed, score)

    def updates(
        self, clients: Sequence[ClientId], task: Callable[[ClientId], Task]
    ) -> Iterator[tuple[ClientId, Outcome | Lost]]:
        """As the engine; what is spent until each outcome is here counts."""
        alone = getattr(self.engine, "one_at_a_time", False)
        outcomes = self.engine.updates(clients, task)
        while True:
            before = self.meter.read()
            pair = next(outcomes, None)
            spent = self.meter.since(before)
            self.meter.add("train", spent)
            if pair is None:
                return
            if alone and spent is not None and isinstance(pair[1], Outcome):
                self.visited.append((pair[0], spent, change_in(pair[1].upload)))
            yield pair

    def evaluations(
        self, clients: Sequence[ClientId], evaluation: Callable[[ClientId], Evaluation]
    ) -> Iterator[tuple[ClientId, Row]]:
        """As the engine."""
        with self.meter.phase("evaluate"):
            yield from self.engine.evaluations(clients, evaluation)

    def saved(self, oldest: int) -> None:
        """As the engine."""
        self.engine.saved(oldest)

    def seconds_left(self, client: ClientId) -> float:
        """As the engine, if its clients have a deadline."""
        return self.engine.seconds_left(client) if isinstance(self.engine, Timed) else math.inf

    def facts(self) -> Row:
        """As the engine."""
        return self.engine.facts()

    def close(self) -> None:
        """As the engine."""
        self.engine.close()


def change_in(upload: Frame) -> float | None:
    """||w_after - w_before|| of an upload that is a change (``delta``) and travelled as it is; None otherwise, also of
    one that nobody has checked yet and that cannot be used."""
    try:
        delta = getattr(unpack(upload, limits=upload_limits(0, len(upload), _SECONDS)).upload, "delta", None)
        if not isinstance(delta, Mapping) or not all(isinstance(t, Tensor) for t in delta.values()):
            return None
        found = norm(delta)
    except Exception:  # the round will say what is wrong with it
        return None
    return found if math.isfinite(found) else None


class Energy:
    """What a run spends. Without counters it does nothing, and the engine is the very same."""

    def __init__(self, engine: Engine, meter: Meter | None = None) -> None:
        self.meter = Meter.here() if meter is None else meter
        self._metered = Metered(engine, self.meter) if self.meter.counters else None
        self.engine: Engine = engine if self._metered is None else self._metered
        self.changed = {"joules": 0.0, "change": 0.0}
        self.rounds = 0  # so many were counted; a run that goes on elsewhere may be counted in part

    def play(self, play: Callable[[], RoundLog]) -> RoundLog:
        """A round: what is not spent waiting for clients is the server's, 'aggregate'."""
        if self._metered is None:
            return play()
        self._metered.visited = []
        waited, before = self.meter.spent.get("train", 0.0), self.meter.read()
        log = play()
        spent = self.meter.since(before)
        if spent is not None:
            self.rounds += 1
            self.meter.add("aggregate", max(spent - (self.meter.spent.get("train", 0.0) - waited), 0.0))
        for _, joules, change in self._metered.visited:
            if change is not None:
                self.changed = {"joules": self.changed["joules"] + joules, "change": self.changed["change"] + change}
        return log

    def of(self, updates: Sequence[ClientUpdate]) -> list[Row]:
        """What is known of each client update: joules, model change, and their ratio."""
        known = {} if self._metered is None else {c: (j, d) for c, j, d in self._metered.visited}
        if len(known) < len(updates) or self._metered is None or len(self._metered.visited) != len(known):
            return [{} for _ in updates]  # nothing measured, or several exchanges to a client in one round
        return [_client_update(*known[update.client]) if update.client in known else {} for update in updates]

    # Resuming, and the end

    def state(self) -> Row:
        """So far, for snapshots; empty where nothing is measured."""
        spent = {"joules": dict(self.meter.spent), "changed": dict(self.changed), "rounds": self.rounds}
        return spent if self.meter.spent else {}

    def restore(self, state: Mapping[str, JSON], done: int = 0) -> None:
        """Go on from a snapshot after so many rounds."""
        if state:
            self.meter.spent, self.changed = dict(state["joules"]), dict(state["changed"])
            self.rounds = int(state.get("rounds", done))

    def result(self, done: int | None = None) -> Row:
        """For result.json; ``done`` is the number of rounds of the run."""
        if not self.meter.spent:
            return {"source": "none", "note": self.meter.why}
        told = [SERVER_ALONE] if self.engine.keeps_states else []
        if done is not None and self.rounds < done:
            told.append(f"counted in {self.rounds} of {done} rounds")
        return {
            "source": self.meter.source,
            "joules": dict(self.meter.spent),
            "joules_per_model_change": per_change(self.changed["joules"], self.changed["change"]),
            **({"note": "; ".join(told)} if told else {}),
        }


def _client_update(joules: float, change: float | None) -> Row:
    known = {"joules": joules}
    if change is None:
        return known
    return {**known, "model_change": change, "joules_per_change": per_change(joules, change)}
