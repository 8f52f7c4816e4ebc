"""Engines that tamper with, shuffle or count what the reference engine does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from fedquilt.core.record import pack, unpack
from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId
from fedquilt.engines.client_side import Outcome, Task
from fedquilt.engines.engine import Lost
from fedquilt.engines.local import Local

Visits = Iterator[tuple[ClientId, Outcome | Lost]]


class Tampering(Local):
    """Changes one client's upload frame on its way."""

    def __init__(self, client: ClientId, change: Callable[[bytes], bytes]) -> None:
        super().__init__()
        self.client, self.change = client, change

    def visits(self, clients: Sequence[ClientId], task: Callable[[ClientId], Task]) -> Visits:
        """As local, but for one frame."""
        for client, outcome in super().visits(clients, task):
            if client == self.client and isinstance(outcome, Outcome):
                outcome = replace(outcome, upload=self.change(outcome.upload))
            yield client, outcome


class Shuffled(Local):
    """Visits clients in a random order and hands the outcomes back in the order asked for."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.draw = Seed(seed).numpy()

    def visits(self, clients: Sequence[ClientId], task: Callable[[ClientId], Task]) -> Visits:
        """All first, then all answers."""
        mixed = [clients[i] for i in self.draw.permutation(len(clients))]
        found = {client: self.side.visit(task(client)) for client in mixed}
        yield from ((client, found[client]) for client in clients)


class Counting(Local):
    """Remembers every task and every upload."""

    def __init__(self) -> None:
        super().__init__()
        self.tasks: list[Task] = []
        self.uploads: list[bytes] = []

    def visits(self, clients: Sequence[ClientId], task: Callable[[ClientId], Task]) -> Visits:
        """As local."""
        for client in clients:
            self.tasks.append(task(client))
            outcome = self.side.visit(self.tasks[-1])
            self.uploads.append(outcome.upload)
            yield client, outcome


def with_examples(examples: Any) -> Callable[[bytes], bytes]:
    """A change of a frame: another number of examples."""
    return lambda frame: pack(replace(unpack(frame), examples=examples), compact=True)
