"""What every engine offers the round loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from fedquilt.core.exchange import Method
from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId, Source
from fedquilt.rounds.client import Evaluation, Outcome, Score, Scores, Task

Facts = dict[str, object]  # what is recorded of an engine, by name


@dataclass(frozen=True)
class Lost:
    """A client update that gave no answer, and why."""

    reason: str


class Engine(Protocol):
    """Carries tasks to clients and brings outcomes back in the order asked for.

    An engine that ``keeps_states`` leaves clients' states where the clients are: the slots of its tasks and outcomes
    are the sha256 of the frames, not the frames. One that makes its client updates one after another may say so by an
    attribute ``one_at_a_time = True``: then joules are counted for each of them.
    """

    name: str
    keeps_states: bool

    def begin(self, method: Method, source: Source, seed: Seed, score: Score | None) -> None:
        """Get ready for a run; an engine can serve several runs, one after another."""
        ...

    def updates(
        self, clients: Sequence[ClientId], task: Callable[[ClientId], Task]
    ) -> Iterator[tuple[ClientId, Outcome | Lost]]:
        """Make a client update to each client; outcomes come in the order of ``clients``, as they are ready."""
        ...

    def evaluations(
        self, clients: Sequence[ClientId], evaluation: Callable[[ClientId], Evaluation]
    ) -> Iterator[tuple[ClientId, Scores]]:
        """Score each client's model; results come in the order of ``clients``."""
        ...

    def saved(self, oldest: int) -> None:
        """Snapshots reach back to the state before this round; no older state will be asked for."""
        ...

    def facts(self) -> Facts:
        """What to record about this engine as it is now: processes, devices, their peak memory. Nothing of it is in
        snapshots: what counts over a whole run is a metric."""
        ...

    def close(self) -> None:
        """Give back processes and memory. An engine can be closed twice."""
        ...


@runtime_checkable
class Timed(Protocol):
    """An engine whose clients have a deadline, which decoding their replies is part of."""

    def seconds_left(self, client: ClientId) -> float:
        """What a client that has answered left of its deadline."""
        ...


@runtime_checkable
class Carrier(Protocol):
    """An engine whose messages travel to other machines, and which knows what they weighed."""

    def carried(self) -> dict[str, int]:
        """Bytes since this was last asked: ``carried_down`` and ``carried_up`` are all that was put into messages, to
        clients and from them; ``scoring_down`` and ``scoring_up`` are those of evaluations among them."""
        ...
