"""The clients as their server knows them, and the batches of jobs of one exchange: out to the nodes, and answers
back."""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from fedquilt.core.columns import PerColumn
from fedquilt.core.table import ClientId, in_order
from fedquilt.engines.flower.jobs import HEAD_SECONDS, PROTOCOL, Answer, Frames, Here, NodeJobs, Parcel, Refused, read
from fedquilt.engines.flower.membership import ConnectedSites
from fedquilt.engines.flower.post import PASSING, NoAnswer, Post, plain, told
from fedquilt.errors import FedquiltError, FrameError, InputError
from fedquilt.rounds.engine import Lost


@dataclass(frozen=True)
class Elsewhere:
    """A source without data: what the nodes said of themselves, checked against each other.

    Args:
        sites: What each node said, under Flower's number of the node.
        classes: How many classes there are, if the nodes do not know.
        prepare: How tables are prepared, once the sites have agreed on that.
    """

    sites: Mapping[int, Here]
    wanted: int | None = None
    ids: tuple[ClientId, ...] = field(init=False)
    evaluated: tuple[ClientId, ...] = field(init=False)

    prepare: PerColumn | None = None
    groups: None = None
    global_test: None = None

    def __post_init__(self) -> None:
        if not self.sites:
            raise InputError("No node has introduced itself. Start some with 'fedquilt join'.")
        self._agree()
        owner: dict[ClientId, int] = {}
        for node, site in self.sites.items():
            for client in {*site.clients, *site.evaluated}:
                if client in owner:
                    raise InputError(
                        f"Two nodes both claim to be client {client!r}. Give each site a name of its own: "
                        "fedquilt join --name ..."
                    )
                owner[client] = node
        object.__setattr__(self, "ids", in_order([c for s in self.sites.values() for c in s.clients]))
        object.__setattr__(self, "evaluated", in_order([c for s in self.sites.values() for c in s.evaluated]))

    def _agree(self) -> None:
        first, *others = self.sites.values()
        for site in (first, *others):
            if site.protocol != PROTOCOL:
                raise InputError(f"A node speaks version {site.protocol} of the protocol, this server {PROTOCOL}.")
            for what in ("shape", "dtype", "prepare"):
                mine, theirs = getattr(first, what), getattr(site, what)
                if mine != theirs:
                    names = ", ".join(repr(c) for c in list(site.clients)[:3])
                    raise InputError(
                        f"The sites differ in the {what} of their rows: {mine}, but {theirs} at client {names}. "
                        "All sites must prepare their data in the same way."
                    )

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one prepared row."""
        return next(iter(self.sites.values())).shape if self.prepare is None else (self.prepare.width,)

    @property
    def table(self) -> PerColumn | None:
        """The columns of the sites' tables, before anything is known of their cells; None for other rows."""
        found: PerColumn | None = next(iter(self.sites.values())).table
        return found

    @property
    def preparation(self) -> PerColumn | None:
        """What is done to the columns of tables."""
        return self.prepare

    @property
    def classes(self) -> int | None:
        """How many classes: as asked for, or the most that any site has."""
        known = [site.classes for site in self.sites.values() if site.classes is not None]
        return self.wanted if self.wanted is not None else max(known, default=None)

    def size(self, client: ClientId) -> int:
        """How many training samples the client said it has."""
        return next((s.clients[client] for s in self.sites.values() if client in s.clients), 0)

    def fingerprint(self) -> str:
        """What data this is, as the sites' own (salted) prints tell; Flower's numbers of the nodes do not matter."""
        prints = sorted(repr((in_order(list(s.clients)), s.fingerprint)) for s in self.sites.values())
        return hashlib.sha256("\n".join(prints).encode()).hexdigest()

    def site(self, client: ClientId, round: int) -> NoReturn:
        """The server has no data."""
        raise InputError(f"The data of client {client!r} are at its own site; the server of a federation has none.")

    def evaluation(self, client: ClientId, split: str, round: int = 0) -> None:
        """The server has no held-out samples."""

    def pooled(self) -> NoReturn:
        """Pooling would mean moving the data."""
        raise InputError("A method that pools all data cannot run on a real federation: the data stay at the sites.")


def facts(sites: Sequence[Here]) -> dict[str, object]:
    """What to record of the nodes: how many, and which versions they run."""
    versions = {name: sorted({s.versions.get(name, "?") for s in sites}) for name in ("fedquilt", "torch", "flwr")}
    return {"nodes": len(sites), "versions": versions}


_LATE = 5.0  # seconds to read an answer that came just in time
JobFor = Callable[[ClientId, Parcel], object]
Answered = Lost | tuple[object, Frames]  # why there is no result, or a result and the frames that came with it


@dataclass(eq=False)
class _Sent:
    """A batch of jobs under way to a node: its messages so far, and the question whether the node is at work on it."""

    node: int
    clients: tuple[ClientId, ...]
    frames: Frames
    number: str
    since: float = 0.0
    patience: float = 0.0
    messages: list[str] = field(default_factory=list)
    question: str | None = None
    failures: int = 0
    again: float = 0.0


@dataclass
class Delivery:
    """One message to each node that has clients in the cohort.

    ``answers`` has for each client its result with the frames of its answer, or why there is none; ``waited``, after
    how many seconds it came. Clients whose node is not there wait for it; nodes that have forgotten their work are sent
    it again.
    """

    post: Post
    membership: ConnectedSites
    note: Callable[[str], None]
    kind: str
    terms: Frames
    oldest: int
    job: JobFor
    what: str = "an exchange"
    answers: dict[ClientId, Answered] = field(default_factory=dict)
    waited: dict[ClientId, float] = field(default_factory=dict)
    _under_way: list[_Sent] = field(default_factory=list)
    _homeless: list[ClientId] = field(default_factory=list)
    _began: float = 0.0
    _until: float = 0.0  # when the waiting ends, in seconds since 1970

    def run(self, clients: Sequence[ClientId]) -> dict[ClientId, Answered]:
        """Send everything and wait for the answers."""
        patience = self.post.patience
        self._homeless = list(clients)
        began = self._began = time.monotonic()
        self._until = time.time() + patience.deadline
        while True:
            self._send()
            for sent in list(self._under_way):
                self._listen(sent)
            if not self._homeless and not self._under_way:
                return self.answers
            if time.monotonic() - began > patience.deadline:
                for site in dict.fromkeys(map(self.membership.site_of, self._homeless)):
                    self.note(f"{site} did not come back in time; its clients are left out of {self.what}")
                for client in clients:
                    self.answers.setdefault(client, Lost(f"no answer within {patience.deadline:g} seconds"))
                return self.answers
            patience.rest(began)

    # Out

    def _send(self) -> None:
        """Send each node what its clients have to do; those whose node is not there now stay homeless."""
        by_node: dict[int, list[ClientId]] = {}
        waiting = []
        for client in self._homeless:
            node = self.membership.node_of(client)
            if node is None:
                self.membership.missed(client, self.what, self._until)
                waiting.append(client)
            else:
                by_node.setdefault(node, []).append(client)
        self._homeless = waiting
        for node, clients in by_node.items():
            parcel, number = Parcel(), uuid.uuid4().hex
            jobs = [self.job(client, parcel) for client in clients]
            parcel.head("jobs", NodeJobs(number, jobs, self.oldest))
            sent = _Sent(node, tuple(clients), {**self.terms, **parcel.frames}, number)
            self._under_way.append(sent)
            self._push(sent)

    def _push(self, sent: _Sent) -> None:
        sent.since, sent.patience = time.monotonic(), self.post.patience.ask
        name = self.post.send(sent.node, self.kind, sent.frames)
        if name is None:
            self._failed(sent, NoAnswer("Flower did not take the message"))
        else:
            sent.messages.append(name)

    # Back

    def _listen(self, sent: _Sent) -> None:
        """Take what has come for a batch of jobs; if nothing has, find out whether the node still works on it."""
        for name in list(sent.messages):
            found = self.post.fetch(name)
            if found is None:
                continue
            sent.messages.remove(name)
            self._heard(sent, found)
            if sent not in self._under_way:
                return
        if sent.node not in self.post.online():
            self._gone(sent)
        elif not sent.messages:
            if time.monotonic() >= sent.again:
                self._push(sent)
        else:
            self._ask(sent)

    def _ask(self, sent: _Sent) -> None:
        """A node that has forgotten its work was restarted, and gets it again. Questions get lost, too, so they are
        repeated, but ever more rarely: Flower's nodes do one thing at a time, so that those which a node at work has
        not answered wait there, in front of the next round."""
        said = None if sent.question is None else self.post.fetch(sent.question)
        if said is not None:
            sent.question = None
            if _idle(said):
                self.note(
                    f"{self.membership.called(sent.node)} knows nothing of its work on {self.what}; it is sent again"
                )
                self._push(sent)
        elif time.monotonic() - sent.since > sent.patience:
            longest = max(self.post.patience.ask, self.post.patience.deadline / 10)
            sent.since, sent.patience = time.monotonic(), min(2 * sent.patience, longest)
            sent.question = self.post.send(sent.node, "query.busy", Parcel().head("number", sent.number).frames)

    def _gone(self, sent: _Sent) -> None:
        self.membership.missed(sent.clients[0], self.what, self._until)
        self._under_way.remove(sent)
        self._homeless.extend(sent.clients)

    def _heard(self, sent: _Sent, found: dict[str, bytes] | NoAnswer) -> None:
        if isinstance(found, NoAnswer):
            self._failed(sent, found)
            return
        try:
            self._take(sent, found)
        except (FedquiltError, ValueError) as error:
            self._lose(sent, told(error))
        self._under_way.remove(sent)

    def _take(self, sent: _Sent, frames: Frames) -> None:
        left = self.post.patience.deadline - (time.monotonic() - self._began)
        answer: Answer = read(frames, "answer", Answer, min(max(left, _LATE), HEAD_SECONDS))
        if answer.number != sent.number:
            raise FrameError("replayed: an answer to another batch of jobs")
        if not isinstance(answer.results, list):
            raise FrameError("malformed answer: no list of results")
        if answer.data != self.membership.fingerprint(sent.clients[0]):
            raise FrameError("other data: the site's data are not those it joined with")
        for result in answer.results:
            client = getattr(result, "client", None)
            if plain(client) and client in sent.clients and client not in self.answers:  # one counts, of its own node
                self.answers[client] = Lost(told(result.reason)) if isinstance(result, Refused) else (result, frames)
                self.waited[client] = time.monotonic() - self._began
        self._lose(sent, "its node gave no result for it")

    def _failed(self, sent: _Sent, failed: NoAnswer) -> None:
        """Flower gave an error instead of an answer: try once more, then leave the node's clients out."""
        if failed.code in PASSING:  # the node, or a process of it, was killed: it gets the work again when it is back
            sent.again = time.monotonic() + min(self.post.patience.ask, 5.0)
            return
        sent.failures += 1
        if sent.failures < 2 and failed.code is not None:
            self.note(f"{self.membership.called(sent.node)} failed and is asked once more: {failed.reason}")
            return
        self._lose(sent, failed.reason)
        self._under_way.remove(sent)

    def _lose(self, sent: _Sent, reason: str) -> None:
        for client in sent.clients:
            self.answers.setdefault(client, Lost(reason))


def _idle(said: dict[str, bytes] | NoAnswer) -> bool:
    """Whether a node says that it does not work on the batch of jobs; one that cannot tell is believed to work."""
    try:
        return not isinstance(said, NoAnswer) and not read(said, "busy", bool)
    except (FedquiltError, ValueError):
        return False
