"""The server's half on Flower: errands to nodes and answers back, through any Flower grid."""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

from fedquilt.core.describe import describe
from fedquilt.core.errors import FedquiltError, FrameError, InputError
from fedquilt.core.exchange import Method
from fedquilt.core.record import pack
from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId, Source
from fedquilt.engines.client_side import Exam, Outcome, Score, Task
from fedquilt.engines.engine import Lost
from fedquilt.engines.flower.content import from_content, to_content
from fedquilt.engines.flower.errand import (
    Answer,
    Begin,
    Errand,
    ExamJob,
    Frames,
    Given,
    Here,
    Job,
    Marks,
    Parcel,
    Refused,
    frame_at,
    read,
)  # fmt: skip
from fedquilt.engines.flower.source import Elsewhere, facts

Note = Callable[[str], None]
_PASSING = {3, 4, 5, 8}  # Flower's codes for a message, a reply or a node that is not there, and for a killed process


@dataclass(frozen=True)
class Patience:
    """How long to wait for nodes.

    Args:
        deadline: Seconds that an exchange may take; clients that have not answered by then are left out.
        ask: After so many seconds without an answer, ask a node whether it is still at work; it is sent the work
            again if it knows nothing of it.
        pause: Seconds between two looks for answers.
    """

    deadline: float = 3600.0
    ask: float = 30.0
    pause: float = 0.2


@dataclass
class _Sent:
    """An errand under way to a node: its messages so far, and the clients that wait for it."""

    node: int
    kind: str
    clients: tuple[ClientId, ...]
    frames: Frames
    number: str
    since: float
    messages: set[str] = field(default_factory=set)
    asking: set[str] = field(default_factory=set)
    failures: int = 0


class Flower:
    """Carries visits and exams to the nodes of a Flower federation. Clients' states stay at the nodes.

    Args:
        grid: Flower's way to the nodes: that of a server app, of the simulation, or of a test.
        run: Keys what the nodes keep for this run; the same for a run that is resumed.
        patience: How long to wait.
        note: Hears of nodes that come, go or fail.
    """

    name = "flower"
    keeps_states = True  # clients' states are handles here: the digest of what the node keeps

    def __init__(
        self, grid: Grid, run: str | None = None, patience: Patience | None = None, note: Note | None = None
    ) -> None:
        self.grid, self.run, self.patience = grid, run or uuid.uuid4().hex, patience or Patience()
        self.note: Note = note or (lambda text: None)
        self.sites: dict[int, Here] = {}
        self._where: dict[ClientId, int] = {}
        self._begin: bytes | None = None
        self._oldest = 0
        self._trouble = ""
        self._there: list[int] = []
        self._looked = float("-inf")

    # Who is there

    def gather(self, nodes: int, wait: float = 600.0, classes: int | None = None) -> Elsewhere:
        """Wait until so many nodes have introduced themselves; they are the federation."""
        end = time.monotonic() + wait
        while len(self.sites) < nodes:
            self._meet()
            if len(self.sites) >= nodes:
                break
            if time.monotonic() > end:
                raise InputError(
                    f"{len(self.sites)} of {nodes} nodes came within {wait:.0f} seconds. Start the others "
                    f"(fedquilt join), wait longer, or ask for fewer.{self._trouble}"
                )
            time.sleep(self.patience.pause)
        return Elsewhere(dict(sorted(self.sites.items())), classes)

    def _meet(self) -> None:
        """Let nodes that are new here introduce themselves; a node that was restarted may have a new number."""
        new = [n for n in self.grid.get_node_ids() if n not in self.sites]
        if not new:
            return
        parcel = {"run": pack(self.run)}
        replies = self._replies({n: self._message(n, "query.here", parcel) for n in new}, 60.0)
        for node, reply in replies.items():
            try:
                site: Here = read(self._content(reply), "here", Here)
            except (FedquiltError, ValueError) as error:
                self._trouble = f" Node {node} did not introduce itself: {error}"
                self.note(self._trouble.strip())
                continue
            self.sites[node] = site
            for client in {*site.clients, *site.examined}:
                before = self._where.get(client)
                if before is not None and before != node:
                    self.sites.pop(before, None)  # the same site under a new number
                self._where[client] = node
            self.note(f"node {node} has {len(site.clients)} clients")

    def _replies(self, messages: Mapping[int, Message], wait: float) -> dict[int, Message]:
        sent = dict(zip(self.grid.push_messages(list(messages.values())), messages, strict=True))
        found: dict[int, Message] = {}
        end = time.monotonic() + wait
        while len(found) < len(sent) and time.monotonic() < end:
            waiting = [m for m, node in sent.items() if node not in found]
            for reply in self.grid.pull_messages(waiting):
                found[sent[reply.metadata.reply_to_message_id]] = reply
            if len(found) < len(sent):
                time.sleep(self.patience.pause)
        return found

    def _message(self, node: int, kind: str, frames: Frames) -> Message:
        return Message(to_content(frames), dst_node_id=node, message_type=kind, ttl=self.patience.deadline + 60)

    def _content(self, reply: Message) -> dict[str, bytes]:
        if reply.has_error():
            raise FrameError(f"Flower says: {reply.error.reason or f'error {reply.error.code}'}")
        return from_content(reply.content)

    # What the round loop asks for

    def begin(self, method: Method, source: Source, seed: Seed, score: Score | None) -> None:
        """Remember what this run is; every message says it, so that a restarted node can serve it."""
        if not isinstance(source, Elsewhere):
            raise InputError("The Flower engine needs the source that gather() gave.")
        self._begin = pack(Begin(self.run, describe(method), describe(score, "score"), seed.value))

    def saved(self, oldest: int) -> None:
        """Snapshots reach back to this round; nodes may forget what is older."""
        self._oldest = oldest

    def visits(
        self, clients: Sequence[ClientId], task: Callable[[ClientId], Task]
    ) -> Iterator[tuple[ClientId, Outcome | Lost]]:
        """One message to each node with clients in the cohort; outcomes in the order asked for."""
        tasks = {client: task(client) for client in clients}
        kind = f"train.{next(iter(tasks.values())).exchange}" if tasks else ""

        def job(client: ClientId, parcel: Parcel) -> Job:
            t = tasks[client]
            return Job(t.exchange, client, t.round, parcel.add(t.down or b""), t.slot, t.measure, t.again)

        answers = self._errands(kind, clients, job)
        for client in clients:
            yield client, self._outcome(client, answers[client])

    def _outcome(self, client: ClientId, answer: Any) -> Outcome | Lost:
        if isinstance(answer, Lost):
            return answer
        result, frames = answer
        if not isinstance(result, Given):
            return Lost(f"malformed answer: a {type(result).__name__}")
        if result.slot is not None and (not isinstance(result.slot, bytes) or len(result.slot) != 32):
            return Lost("malformed answer: the state's digest is not 32 bytes")
        try:
            upload = frame_at(frames, result.up)
        except FrameError as error:
            return Lost(str(error))
        return Outcome(
            upload, result.slot, float(result.seconds), bool(result.sound), result.steps, result.loss, result.before,
            result.after,
        )  # fmt: skip

    def exams(
        self, clients: Sequence[ClientId], exam: Callable[[ClientId], Exam]
    ) -> Iterator[tuple[ClientId, dict[str, Any]]]:
        """Scores of the clients that answered; the others are noted and left out."""
        asked = {client: exam(client) for client in clients}

        def job(client: ClientId, parcel: Parcel) -> ExamJob:
            e = asked[client]
            whole = None if e.whole is None else parcel.add(e.whole)
            return ExamJob(client, parcel.add(e.down or b""), e.slot, whole, e.splits, e.round)

        answers = self._errands("evaluate.exam", clients, job)
        for client in clients:
            answer = answers[client]
            result = answer if isinstance(answer, Lost) else answer[0]
            if isinstance(result, Marks):
                yield client, result.scores
            else:
                self.note(f"client {client!r} was not scored: {getattr(result, 'reason', 'malformed answer')}")

    # Errands

    def _errands(
        self, kind: str, clients: Sequence[ClientId], job: Callable[[ClientId, Parcel], Any]
    ) -> dict[ClientId, Any]:
        """For each client its result with the frames of its answer, or why there is none."""
        answers: dict[ClientId, Any] = {}
        homeless = list(clients)
        under_way: list[_Sent] = []
        end = time.monotonic() + self.patience.deadline
        while homeless or under_way:
            homeless = self._send(kind, homeless, job, under_way)
            for sent in list(under_way):
                self._listen(sent, answers, homeless, under_way)
            if time.monotonic() > end:
                for client in clients:
                    answers.setdefault(client, Lost(f"no answer within {self.patience.deadline:.0f} seconds"))
                return answers
            if homeless or under_way:
                time.sleep(self.patience.pause)
        return answers

    def _send(
        self, kind: str, clients: Sequence[ClientId], job: Callable[[ClientId, Parcel], Any], under_way: list[_Sent]
    ) -> list[ClientId]:
        """Send each node what its clients have to do; returns the clients whose node is not there now."""
        if not clients:
            return []
        online = set(self.grid.get_node_ids())
        if any(self._where.get(c) not in online for c in clients):
            self._meet()
        by_node: dict[int, list[ClientId]] = {}
        for client in clients:
            node = self._where.get(client)
            if node is not None and node in online:
                by_node.setdefault(node, []).append(client)
        for node, theirs in by_node.items():
            under_way.append(self._sent(node, kind, tuple(theirs), job))
        gone = [c for c in clients if self._where.get(c) not in online]
        return gone

    def _sent(
        self, node: int, kind: str, clients: tuple[ClientId, ...], job: Callable[[ClientId, Parcel], Any]
    ) -> _Sent:
        parcel, number = Parcel(), uuid.uuid4().hex
        jobs = [job(client, parcel) for client in clients]
        parcel.head("errand", Errand(number, jobs, self._oldest))
        frames = {"begin": self._begin or b"", **parcel.frames}
        sent = _Sent(node, kind, clients, frames, number, time.monotonic())
        self._push(sent)
        return sent

    def _push(self, sent: _Sent) -> None:
        sent.since = time.monotonic()
        sent.messages.update(self.grid.push_messages([self._message(sent.node, sent.kind, sent.frames)]))

    def _listen(
        self, sent: _Sent, answers: dict[ClientId, Any], homeless: list[ClientId], under_way: list[_Sent]
    ) -> None:
        """Take what has come for an errand; if nothing has, find out whether the node still works on it."""
        for reply in self.grid.pull_messages([*sent.messages, *sent.asking]):
            about = reply.metadata.reply_to_message_id
            if about in sent.asking:
                sent.asking.discard(about)
                self._heard(sent, reply)
                continue
            sent.messages.discard(about)
            try:
                self._take(sent, self._content(reply), answers)
            except (FedquiltError, ValueError) as error:
                if self._give_up(sent, reply, str(error), answers):
                    under_way.remove(sent)
                    return
                continue
            under_way.remove(sent)
            return
        if sent.node not in set(self._online(sent)):
            self.note(f"node {sent.node} is gone; its clients wait for it to come back")
            under_way.remove(sent)
            homeless.extend(sent.clients)
        elif not sent.messages:
            self._push(sent)
        elif time.monotonic() - sent.since > self.patience.ask and not sent.asking:
            sent.since = time.monotonic()
            query = self._message(sent.node, "query.busy", {"number": pack(sent.number)})
            sent.asking.update(self.grid.push_messages([query]))

    def _online(self, sent: _Sent) -> Sequence[int]:
        """The nodes that are there, asked for only now and then."""
        now = time.monotonic()
        if now - self._looked > max(self.patience.pause, 1.0):
            self._looked, self._there = now, list(self.grid.get_node_ids())
        return self._there

    def _heard(self, sent: _Sent, reply: Message) -> None:
        """A node said whether it is at work; if it is not, it was restarted and gets the work again."""
        try:
            busy = bool(read(self._content(reply), "busy", bool))
        except (FedquiltError, ValueError):
            return
        if not busy:
            self.note(f"node {sent.node} knows nothing of its work; it is sent again")
            self._push(sent)

    def _take(self, sent: _Sent, frames: Frames, answers: dict[ClientId, Any]) -> None:
        answer: Answer = read(frames, "answer", Answer)
        if answer.number != sent.number:
            raise FrameError("replayed: an answer to another errand")
        if not isinstance(answer.results, list):
            raise FrameError("malformed answer: no list of results")
        for result in answer.results:
            client = getattr(result, "client", None)
            if client in sent.clients and client not in answers:  # one answer counts, and only from its own node
                answers[client] = Lost(result.reason) if isinstance(result, Refused) else (result, frames)
        for client in sent.clients:
            answers.setdefault(client, Lost("its node gave no result for it"))

    def _give_up(self, sent: _Sent, reply: Message, reason: str, answers: dict[ClientId, Any]) -> bool:
        """A failed or malformed answer: try once more, then leave the node's clients out."""
        if reply.has_error() and reply.error.code in _PASSING:
            self.note(f"node {sent.node} cannot be reached for now: {reason}")
            return False
        sent.failures += 1
        if sent.failures < 2 and reply.has_error():
            self.note(f"node {sent.node} failed and is asked once more: {reason}")
            return False
        for client in sent.clients:
            answers.setdefault(client, Lost(reason))
        return True

    # The end

    def facts(self) -> dict[str, Any]:
        """The nodes and their versions."""
        return {"engine": self.name, **facts(list(self.sites.values()))}

    def close(self) -> None:
        """Nodes are others' processes; there is nothing to end."""


def run_key(*parts: str) -> str:
    """A key for what nodes keep, from what tells one run from another."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]
