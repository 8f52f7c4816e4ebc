"""Engines that count what the reference engine does, and changes of frames."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from fedquilt.core.table import ClientId
from fedquilt.engines.local import Local
from fedquilt.records.record import pack, unpack
from fedquilt.rounds.client import Task
from fedquilt.testing.faults import Tampering as Tampering
from fedquilt.testing.faults import Updates as Updates


class Counting(Local):
    """Remembers every task and every upload."""

    def __init__(self) -> None:
        super().__init__()
        self.tasks: list[Task] = []
        self.uploads: list[bytes] = []

    def updates(self, clients: Sequence[ClientId], task: Callable[[ClientId], Task]) -> Updates:
        """As local."""
        for client in clients:
            self.tasks.append(task(client))
            outcome = self.side.update(self.tasks[-1])
            self.uploads.append(outcome.upload)
            yield client, outcome


def with_samples(samples: Any) -> Callable[[bytes], bytes]:
    """A change of a frame: another number of examples."""
    return lambda frame: pack(replace(unpack(frame), samples=samples), compact=True)
