"""The reference engine: one client after another, in this process. It defines the numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from fedquilt.core.exchange import Method
from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId, Source
from fedquilt.engines.kept_memory import give_back, keep_memory
from fedquilt.rounds.client import ClientSide, Evaluation, Outcome, Score, Scores, Task
from fedquilt.rounds.engine import Facts, Lost


class Local:
    """Runs every client update here. A failure raises at once and names method, exchange, stage, client and round.

    Args:
        device: Where local training runs; None is the CPU.
    """

    name = "local"
    keeps_states = False
    one_at_a_time = True  # so that what is spent until an outcome is there belongs to its client

    def __init__(self, device: str | None = None) -> None:
        self.device = None if device is None else torch.device(device)
        self._side: ClientSide | None = None

    @property
    def side(self) -> ClientSide:
        """The client's half; there once a run has begun."""
        if self._side is None:
            raise AssertionError("begin() comes before client updates")
        return self._side

    def begin(self, method: Method, source: Source, seed: Seed, score: Score | None) -> None:
        """Get ready for a run."""
        keep_memory()
        self._side = ClientSide(method, source, seed, score, self.device)

    def updates(
        self, clients: Sequence[ClientId], task: Callable[[ClientId], Task]
    ) -> Iterator[tuple[ClientId, Outcome | Lost]]:
        """One after another."""
        for client in clients:
            yield client, self.side.update(task(client))
            give_back()

    def evaluations(
        self, clients: Sequence[ClientId], evaluation: Callable[[ClientId], Evaluation]
    ) -> Iterator[tuple[ClientId, Scores]]:
        """One after another."""
        for client in clients:
            yield client, self.side.evaluation(evaluation(client))
            give_back()

    def saved(self, oldest: int) -> None:
        """Clients' states are in the run's folder, which looks after itself."""

    def facts(self) -> Facts:
        """One process, this one."""
        return {"engine": self.name, "processes": 1, "device": str(self.device or "cpu")}

    def close(self) -> None:
        """Forget the last run."""
        self._side = None


class Overheard(Local):
    """The local engine, with somebody listening: ``note`` is given each task and what the client made of it."""

    def __init__(self, note: Callable[[Task, Outcome], None]) -> None:
        super().__init__()
        self.note = note

    def updates(
        self, clients: Sequence[ClientId], task: Callable[[ClientId], Task]
    ) -> Iterator[tuple[ClientId, Outcome | Lost]]:
        """As they are, noted."""
        for client in clients:
            made = task(client)
            outcome = self.side.update(made)
            self.note(made, outcome)
            yield client, outcome
            give_back()
