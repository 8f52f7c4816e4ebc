"""Flower's grid with its surprises taken out: messages that were not stored, and replies that nobody asked for."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from flwr.app import Message
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import UnexpectedObjectContentError
from google.protobuf.message import DecodeError

from fedquilt.engines.flower.content import from_content, to_content
from fedquilt.engines.flower.jobs import Frames
from fedquilt.errors import FedquiltError

EVALUATION = "evaluate.evaluation"
UNREADABLE = (  # what reading a message that somebody made by hand may raise
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    DecodeError,
    UnexpectedObjectContentError,
)
PASSING = frozenset({3, 4, 5, 8})  # Flower's codes for a message, a reply or a node that is away, a killed process


@dataclass(frozen=True)
class Patience:
    """How long to wait for nodes.

    Args:
        deadline: Seconds that an exchange may take; clients that have not answered by then are left out.
        ask: After so many seconds without an answer, ask a node whether it is still at work; it is sent the work
            again if it knows nothing of it. The question is repeated after twice the time, and so on.
        pause: Seconds between two looks for answers, at first; each look costs the SuperLink something.
    """

    deadline: float = 3600.0
    ask: float = 30.0
    pause: float = 1.0

    def rest(self, since: float) -> None:
        """Sleep between two looks: the pause, or a twentieth of the time that has been waited, up to ten pauses."""
        time.sleep(min(max(self.pause, (time.monotonic() - since) / 20), 10 * self.pause))


@dataclass(frozen=True)
class NoAnswer:
    """A reply that holds no answer: why, and Flower's code if it was Flower that said so."""

    reason: str
    code: int | None = None


class Post:
    """Sends frames to nodes and fetches their replies; ``weighed`` counts their bytes, those of evaluations apart too.

    A connection that breaks is no matter of this class: Flower tries again for as long as the run is alive.
    """

    def __init__(self, grid: Grid, patience: Patience) -> None:
        self.grid, self.patience = grid, patience
        self._there: set[int] = set()
        self._looked = float("-inf")
        self._seen: dict[int, float] = {}
        self.weighed: Counter[str] = Counter()
        self._evaluations: set[str] = set()  # those under way

    def online(self) -> set[int]:
        """The nodes that are there, asked for only now and then."""
        now = time.monotonic()
        if now - self._looked > 5 * self.patience.pause or not self._there:
            self._looked, self._there = now, set(self.grid.get_node_ids())
            self._seen.update(dict.fromkeys(self._there, time.time()))
        return self._there

    def last_seen(self, node: int) -> float:
        """When a node was seen last, in seconds since 1970; now, if it never was."""
        return self._seen.get(node, time.time())

    def send(self, node: int, kind: str, frames: Frames) -> str | None:
        """The message's name; None if Flower did not take it."""
        message = Message(to_content(frames), dst_node_id=node, message_type=kind, ttl=self.patience.deadline + 60)
        name = next((name for name in self.grid.push_messages([message]) if name), None)
        if name is not None:
            if kind == EVALUATION:
                self._evaluations.add(name)
            self._weigh("down", name, frames)
        return name

    def fetch(self, name: str) -> dict[str, bytes] | NoAnswer | None:
        """What came in reply to a message; None if nothing has.

        One message at a time: a reply that Flower itself cannot read must not take others with it.
        """
        try:
            found = [m for m in self.grid.pull_messages([name]) if m.metadata.reply_to_message_id == name]
        except UNREADABLE as error:
            return NoAnswer(f"malformed message: Flower cannot read it ({type(error).__name__})")
        if not found:
            return None
        content = _content(found[0])
        if not isinstance(content, NoAnswer):
            self._weigh("up", name, content)
        self._evaluations.discard(name)
        return content

    def _weigh(self, way: str, name: str, frames: Frames) -> None:
        size = sum(map(len, frames.values()))
        self.weighed[f"carried_{way}"] += size
        if name in self._evaluations:
            self.weighed[f"scoring_{way}"] += size


def _content(reply: Message) -> dict[str, bytes] | NoAnswer:
    if reply.has_error():
        return NoAnswer(f"Flower says: {told(reply.error.reason or f'error {reply.error.code}')}", reply.error.code)
    try:
        return from_content(reply.content)
    except (FedquiltError, *UNREADABLE) as error:
        return NoAnswer(told(error))


def told(words: object, most: int = 500) -> str:
    """Words from elsewhere, fit for a log and a terminal: one line, not too long, nothing that a terminal obeys."""
    line = " ".join(str(words).split())
    return "".join(c if c.isprintable() else "?" for c in (line if len(line) <= most else line[:most] + "..."))


def clock(seconds: float) -> str:
    """A time of day, with its date if that is another day."""
    then, today = time.localtime(seconds), time.localtime()
    return time.strftime("%H:%M:%S" if then[:3] == today[:3] else "%Y-%m-%d %H:%M:%S", then)


def plain(client: object) -> bool:
    """Whether this can be a client's id: a number, a word, or a tuple of them."""
    return isinstance(client, int | str) or (isinstance(client, tuple) and all(map(plain, client)))


def all_plain(clients: Iterable[object]) -> bool:
    """Whether all can be clients' ids."""
    return all(map(plain, clients))
