"""What happened in a round: who was asked, what travelled, and who was left out."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from fedquilt.core.table import ClientId
from fedquilt.moved import renamed
from fedquilt.rounds.phases import Phase
from fedquilt.rounds.traffic import Load


@dataclass(frozen=True)
class ClientUpdate:
    """The record of one client update: bytes of the real frames, time, and what local training said of itself.

    ``seconds`` were measured where the client's work was done; ``exchange`` is the place of the exchange in the round.
    """

    exchange: str
    client: ClientId
    down: Load
    up: Load
    seconds: float
    samples: int
    steps: int | None = None
    loss: float | None = None
    before: object = None
    after: object = None
    place: int = 0
    examples = renamed("examples", "samples")

    @property
    def bytes_down(self) -> int:
        """The length of the download's frame."""
        return self.down.wire

    @property
    def bytes_up(self) -> int:
        """The length of the upload's frame."""
        return self.up.wire


@dataclass(frozen=True)
class Quarantine:
    """A reply that was left out, and why; or one that was ``used``, for less than it asked."""

    round: int
    exchange: str
    client: ClientId
    reason: str
    bytes_down: int = 0
    bytes_up: int = 0
    used: bool = False

    def row(self, done: int) -> dict[str, Any]:
        """As a row of ``dropped.jsonl``, after so many rounds."""
        row = {**asdict(self), "round": done}
        return row if row.pop("used") is False else {**row, "used": True}


@dataclass
class RoundLog:
    """What happened in one round; ``phases`` says where its seconds went, ``void`` why the round does not count,
    ``bounded`` which replies were used for less than they asked."""

    round: int
    updates: list[ClientUpdate] = field(default_factory=list)
    quarantined: list[Quarantine] = field(default_factory=list)
    bounded: list[Quarantine] = field(default_factory=list)
    seconds: float = 0.0
    phases: list[Phase] = field(default_factory=list)
    void: str | None = None
    visits = renamed("visits", "updates")

    def of(self, place: int) -> list[ClientUpdate]:
        """The client updates of one exchange of the round, by its place."""
        return [v for v in self.updates if v.place == place]

    def leave_out(self, update: ClientUpdate, reason: str) -> None:
        """A client update does not count after all."""
        self.updates = [v for v in self.updates if v is not update]
        self.quarantined.append(
            Quarantine(self.round, update.exchange, update.client, reason, update.bytes_down, update.bytes_up)
        )

    @property
    def bytes_down(self) -> int:
        """All that was sent to clients, also to those whose replies were quarantined."""
        return sum(v.bytes_down for v in self.updates) + sum(q.bytes_down for q in self.quarantined)

    @property
    def bytes_up(self) -> int:
        """All that clients sent, also what was quarantined."""
        return sum(v.bytes_up for v in self.updates) + sum(q.bytes_up for q in self.quarantined)

    @property
    def raw_down(self) -> int:
        """What would have been sent to clients without codecs."""
        return sum(v.down.raw for v in self.updates) + sum(q.bytes_down for q in self.quarantined)

    @property
    def raw_up(self) -> int:
        """What clients would have sent without codecs."""
        return sum(v.up.raw for v in self.updates) + sum(q.bytes_up for q in self.quarantined)

    @property
    def left_out(self) -> set[ClientId]:
        """The clients whose replies were quarantined."""
        return {q.client for q in self.quarantined}

    def metrics(self) -> dict[str, Any]:
        """The numbers of the round: clients, trainings, their loss weighted by samples, and bytes."""
        losses = [(v.samples, v.loss) for v in self.updates if v.loss is not None]
        return {
            "clients": len({v.client for v in self.updates}),
            "updates": sum(v.steps is not None for v in self.updates),
            "train_loss": sum(n * v for n, v in losses) / sum(n for n, _ in losses) if losses else None,
            "bytes_down": self.bytes_down,
            "bytes_up": self.bytes_up,
            "raw_down": self.raw_down,
            "raw_up": self.raw_up,
            "quarantined": len(self.quarantined),
        }
