"""The batches of jobs of one exchange: out to the nodes, and answers back, until all are there or the time is up."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fedquilt.core.table import ClientId
from fedquilt.engines.flower.jobs import HEAD_SECONDS, Answer, Frames, JobBatch, Parcel, Refused, read
from fedquilt.engines.flower.membership import Membership
from fedquilt.engines.flower.post import PASSING, NoAnswer, Post, plain, told
from fedquilt.errors import FedquiltError, FrameError
from fedquilt.rounds.engine import Lost

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
    membership: Membership
    note: Callable[[str], None]
    kind: str
    begin: bytes
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
            parcel.head("jobs", JobBatch(number, jobs, self.oldest))
            sent = _Sent(node, tuple(clients), {"begin": self.begin, **parcel.frames}, number)
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
