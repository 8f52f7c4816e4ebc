"""Play one round and keep what really travelled: every download and every upload, as frames."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedquilt.core.exchange import Exchange, Method
from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId, Site, Source, Table
from fedquilt.engines.local import Overheard
from fedquilt.records.record import unpack
from fedquilt.rounds.client import Task
from fedquilt.rounds.rounds import MemorySlots, Rounds


@dataclass(frozen=True)
class Letter:
    """One exchange of one client, as the server saw it: both records, decoded, and the bytes of the upload's frame."""

    exchange: str
    client: ClientId
    sent: Any
    upload: Any
    samples: int
    bytes_up: int


@dataclass(frozen=True)
class Few:
    """A source whose clients train on a few of their rows only, drawn from a seed; None leaves them all."""

    source: Source
    rows: int | None
    seed: Seed

    @property
    def ids(self) -> Sequence[ClientId]:
        """Those of the source."""
        return self.source.ids

    @property
    def evaluated(self) -> Sequence[ClientId]:
        """Those of the source."""
        return self.source.evaluated

    def site(self, client: ClientId, round: int) -> Site:
        """The client's data, with few training samples."""
        site = self.source.site(client, round)
        if self.rows is None or len(site.train) <= self.rows:
            return site
        chosen = self.seed.fold("few", client).numpy().choice(len(site.train), self.rows, replace=False)
        return replace(site, train=replace(site.train, index=site.train.all_rows()[chosen]))

    def evaluation(self, client: ClientId, split: str, round: int = 0) -> Table | None:
        """As the source."""
        return self.source.evaluation(client, split, round)

    def size(self, client: ClientId) -> int:
        """How many rows it trains on."""
        return len(self.site(client, 0).train)


def overheard(
    method: Method, source: Source, seed: Seed, state: Any = None, done: int = 0, slots: MemorySlots | None = None
) -> list[Letter]:
    """Everything that clients were sent and answered in one round, from the start or from an earlier point."""
    heard: list[tuple[Task, bytes]] = []
    engine = Overheard(lambda task, outcome: heard.append((task, bytes(outcome.upload))))
    rounds = Rounds(method, source, engine, seed, state=state, done=done, slots=slots)
    rounds.play()
    return [_opened(rounds.exchanges[task.exchange], task, upload) for task, upload in heard]


def _opened(exchange: Exchange, task: Task, frame: bytes) -> Letter:
    """What was heard, decoded as the server decodes it."""
    sent, wire = exchange.download.decode(unpack(task.down or b""), None), unpack(frame)
    upload = exchange.codec.decode(wire.upload, sent)
    return Letter(task.exchange, task.client, sent, upload, wire.samples, len(frame))
