"""Play one round and keep what really travelled: every download and every upload, as frames."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedquilt.core.exchange import Exchange, Method
from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId, Site, Source, Table
from fedquilt.engines.local import Local
from fedquilt.records.record import unpack
from fedquilt.rounds.client import Outcome, Task
from fedquilt.rounds.engine import Lost
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


class Tap(Local):
    """The local engine, with somebody listening."""

    def __init__(self) -> None:
        super().__init__()
        self.frames: list[tuple[str, ClientId, bytes, bytes]] = []

    def updates(
        self, clients: Sequence[ClientId], task: Callable[[ClientId], Task]
    ) -> Iterator[tuple[ClientId, Outcome | Lost]]:
        """As they are, written down."""
        for client in clients:
            made = task(client)
            outcome = self.side.update(made)
            self.frames.append((made.exchange, client, made.down or b"", bytes(outcome.upload)))
            yield client, outcome

    def letters(self, exchanges: Sequence[Exchange]) -> list[Letter]:
        """What was heard, decoded as the server decodes it."""
        known = {e.name: e for e in exchanges}
        found = []
        for name, client, down, up in self.frames:
            sent, wire = known[name].download.decode(unpack(down), None), unpack(up)
            upload = known[name].codec.decode(wire.upload, sent)
            found.append(Letter(name, client, sent, upload, wire.samples, len(up)))
        return found


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
    tap = Tap()
    rounds = Rounds(method, source, tap, seed, state=state, done=done, slots=slots)
    rounds.play()
    return tap.letters(tuple(rounds.exchanges.values()))
