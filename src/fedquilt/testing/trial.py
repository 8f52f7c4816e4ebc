"""A method on trial: it, the data it is tried on, and runs that several checks look at, each made once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar
from unittest.mock import patch

from torch import Tensor

from fedquilt.core.capture.steps import UpdateSteps
from fedquilt.core.exchange import Method
from fedquilt.core.plain import Row
from fedquilt.core.table import ClientId
from fedquilt.data import Federation
from fedquilt.engines.local import Local
from fedquilt.engines.workers import Workers
from fedquilt.kernels import CapturedStep, Player
from fedquilt.metrics.classify import classify
from fedquilt.rounds.engine import Engine
from fedquilt.rounds.log import Quarantine
from fedquilt.runs.runner import Snapshot, run
from fedquilt.testing.by_hand import Play, played
from fedquilt.testing.faults import Without

T = TypeVar("T")


@dataclass(frozen=True)
class EndedRun:
    """A run that has ended.

    Args:
        snapshot: After the last round.
        digests: Of the run's whole state, after each round.
        left_out: Whoever was left out of a round, and why.
        captured: How many steps of training were played as captured ones.
    """

    snapshot: Snapshot
    digests: tuple[str, ...]
    left_out: tuple[Quarantine, ...]
    captured: int = 0

    @property
    def digest(self) -> str:
        """After the last round."""
        return self.digests[-1]

    @property
    def numbers(self) -> Row:
        """The metrics of the last round that must not depend on the machine: neither times nor memory."""
        metrics = self.snapshot.metrics
        return {name: value for name, value in metrics.items() if "seconds" not in name and name != "peak_bytes"}


def seen(method: Method, federation: Federation, rounds: int, engine: Engine | None = None, **options: Any) -> EndedRun:
    """Play so many rounds; by default on ``local``, with scores."""
    digests: list[str] = []
    out: list[Quarantine] = []
    options = {"score": classify, "engine": engine or Local(), **options}
    for last in run(method, federation, rounds=rounds, **options):
        digests.append(last.digest())
        out += last.log.quarantined
    return EndedRun(last, tuple(digests), tuple(out))


@dataclass(frozen=True)
class Trial:
    """A method on trial.

    Args:
        method: The method.
        federation: The data that it learns; small ones are enough.
        rounds: How many rounds a run has: enough to make every exchange, and to learn.
        engine: An engine with processes of its own, which stays open; by default one is started where it is needed.
        offset: Where checks that look at some of many cases begin.
        memo: What was found out already; trials that differ in ``engine`` alone share it.
    """

    method: Method
    federation: Federation
    rounds: int = 2
    engine: Engine | None = None
    offset: int = 0
    memo: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def _once(self, name: str, make: Callable[[], T]) -> T:
        if name not in self.memo:
            self.memo[name] = make()
        found: T = self.memo[name]
        return found

    @property
    def alone(self) -> bool:
        """Whether the method has one client, which has all data."""
        return bool(getattr(self.method, "pools_data", False))

    @property
    def guesses(self) -> bool:
        """Whether its models guess hidden patches instead of classes, and are scored by their loss."""
        return bool(getattr(self.method, "reconstructs", False))

    @property
    def source(self) -> Federation:
        """The data as its clients have them."""
        return self.federation.pooled() if self.alone else self.federation

    @property
    def suspect(self) -> ClientId:
        """The client whose replies are spoilt."""
        return self.source.ids[-1 if self.alone or len(self.source.ids) < 2 else 1]

    def run(self, method: Method | None = None, engine: Engine | None = None, **options: Any) -> EndedRun:
        """A run on this trial's data."""
        options = {"rounds": self.rounds, "engine": engine, **options}
        return seen(method or self.method, self.federation, **options)

    @property
    def reference(self) -> EndedRun:
        """The run that others are compared with."""
        return self._once("reference", self._reference)

    def _reference(self) -> EndedRun:
        with counted_captures() as count:
            found = self.run()
        return EndedRun(found.snapshot, found.digests, found.left_out, sum(count))

    @property
    def without_suspect(self) -> EndedRun:
        """A run, without scores, in which the suspect is never asked."""
        return self._once("without", lambda: self.run(Without(base=self.method, client=self.suspect), score=None))

    @property
    def straight(self) -> tuple[EndedRun, str]:
        """A run of twice as many rounds in a folder, and its log of clients."""

        def make() -> tuple[EndedRun, str]:
            with TemporaryDirectory() as folder:
                found = self.run(rounds=2 * self.rounds, folder=folder)
                return found, clients_log(folder)

        return self._once("straight", make)

    @property
    def play(self) -> Play:
        """Two rounds of two clients by hand."""
        return self._once("play", lambda: played(self.method, self.source, self.rounds))

    def elsewhere(self) -> AbstractContextManager[Engine]:
        """An engine with processes of its own."""
        return Workers(2) if self.engine is None else nullcontext(self.engine)


def clients_log(folder: str | Path) -> str:
    """What a run logged of its clients' scores."""
    file = Path(folder) / "metrics" / "clients.jsonl"
    return file.read_text(encoding="utf-8") if file.exists() else ""


@contextmanager
def counted_captures() -> Iterator[list[bool]]:
    """Inside, a list grows by one True for every captured step that is played and counts: not by those that are only
    compared with plain ones."""
    bound, compared = CapturedStep.bound, UpdateSteps._compared
    count, comparing = list[bool](), list[bool]()

    def counted(self: CapturedStep, stable: Sequence[Tensor]) -> Player:
        player = bound(self, stable)

        def played(*moving: Tensor) -> tuple[Tensor, ...]:
            if stable and not comparing:  # first values are captured, too, and depend on no tensor
                count.append(True)
            return player(*moving)

        return played

    def aside(self: UpdateSteps, *given: Any) -> list[Tensor]:
        comparing.append(True)
        try:
            return compared(self, *given)
        finally:
            comparing.pop()

    with patch.object(CapturedStep, "bound", counted), patch.object(UpdateSteps, "_compared", aside):
        yield count
