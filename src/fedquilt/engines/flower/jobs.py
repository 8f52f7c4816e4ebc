"""What a server asks of a Flower node, and what the node answers: records, and how frames travel beside them.

One message carries all work that an exchange has for the clients of one node. Frames that are equal travel once.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from fedquilt.core.columns import PerColumn
from fedquilt.core.table import ClientId
from fedquilt.errors import FrameError
from fedquilt.records.limits import Limits
from fedquilt.records.record import pack, record, unpack
from fedquilt.rounds.client import Scores

PROTOCOL = 4
HEAD_SECONDS = 30.0
Frames = Mapping[str, bytes]
T = TypeVar("T")


@record(name="fedquilt.engines.flower.errand:Begin")
class RunTerms:
    """Which run this is: its method and score as descriptions, and its seed. ``run`` keys what a node keeps.
    ``prepare`` says how tables are prepared, once the federation has agreed on that."""

    run: str
    method: object
    score: object
    seed: int
    protocol: int = PROTOCOL
    prepare: object = None


@record(name="fedquilt.engines.flower.errand:Job")
class UpdateJob:
    """One client update, as :class:`fedquilt.rounds.client.Task`, but for the download's place among the frames.

    ``slot`` is the sha256 of the client's state that the server counts on; None before the client's first change.
    """

    exchange: str
    client: ClientId
    round: int
    down: int
    slot: bytes | None
    measure: bool
    again: int


@record
class EvaluationJob:
    """One evaluation, as :class:`fedquilt.rounds.client.Evaluation`, but for the places of its frames."""

    client: ClientId
    down: int
    slot: bytes | None
    whole: int | None
    splits: tuple[str, ...]
    round: int


@record
class NodeJobs:
    """All that one message asks for. ``keep_from`` is the oldest round that a snapshot of the server can go back to."""

    number: str
    jobs: list[object]
    keep_from: int


@record
class Given:
    """What a client update gave; the upload is a frame of its own, and the client's state stays at the node."""

    client: ClientId
    up: int
    slot: bytes | None
    seconds: float
    sound: bool
    steps: int | None
    loss: float | None
    before: object
    after: object


@record
class Marks:
    """The scores of one client."""

    client: ClientId
    scores: Scores


@record
class Refused:
    """A job that came to nothing, and why. The full trace stays in the node's own log."""

    client: ClientId
    reason: str


@record
class Answer:
    """The results of a batch of jobs, one for each job; ``data`` is the salted print of the data they were made
    with."""

    number: str
    data: str
    results: list[object]


@record
class Here:
    """A node introduces itself: who its clients are, and the facts that must be the same at every site.

    ``table`` names the columns of rows that the federation is to standardise together; None for all other rows."""

    protocol: int
    clients: dict[ClientId, int]
    evaluated: list[ClientId]
    shape: tuple[int, ...]
    dtype: str
    prepare: str
    classes: int | None
    fingerprint: str
    versions: dict[str, str]
    table: PerColumn | None = None


@dataclass
class Parcel:
    """Frames under names, each of them once; what both sides put into a message."""

    frames: dict[str, bytes] = field(default_factory=dict)
    _places: dict[bytes, int] = field(default_factory=dict)

    def add(self, frame: bytes) -> int:
        """The frame's place; an equal frame gets the place it already has."""
        place = self._places.get(frame)
        if place is None:
            place = self._places[frame] = len(self._places)
            self.frames[f"frame-{place}"] = frame
        return place

    def head(self, name: str, value: object) -> Parcel:
        """Pack a record under a name."""
        self.frames[name] = pack(value, compact=True)
        return self


def head_limits(seconds: float) -> Limits:
    """What may stand beside the frames (jobs, results, clients), and how long it may take to decode."""
    return Limits(size=2**26, nodes=2**22, until=time.monotonic() + seconds)


def read(frames: Frames, name: str, kind: type[T], seconds: float = HEAD_SECONDS) -> T:
    """The record under a name; refused unless it is of the kind expected there, and decoded in so many seconds."""
    if name not in frames:
        raise FrameError(f"malformed message: it has no part called {name!r}.")
    found = unpack(frames[name], limits=head_limits(seconds))
    if not isinstance(found, kind):
        raise FrameError(f"malformed message: {name!r} is a {type(found).__name__}, not a {kind.__name__}.")
    return found


def frame_at(frames: Frames, place: int) -> bytes:
    """The frame at a place."""
    found = frames.get(f"frame-{place}")
    if found is None:
        raise FrameError(f"malformed message: frame {place} is missing.")
    return found
