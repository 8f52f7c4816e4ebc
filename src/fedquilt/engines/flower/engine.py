"""The server's half on Flower: client updates and evaluations at nodes, through any Flower grid."""

from __future__ import annotations

import inspect
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence

from flwr.serverapp import Grid

from fedquilt import own_code
from fedquilt.core.deployed import mode_scores
from fedquilt.core.describe import describe
from fedquilt.core.exchange import Method
from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId, Source
from fedquilt.engines.flower.delivery import Answered, Delivery, Elsewhere, JobFor, facts
from fedquilt.engines.flower.jobs import EvaluationJob, Given, Here, Marks, Parcel, RunTerms, UpdateJob, frame_at
from fedquilt.engines.flower.membership import ConnectedSites
from fedquilt.engines.flower.post import EVALUATION, Post, told
from fedquilt.engines.flower.post import Patience as Patience
from fedquilt.errors import FedquiltError, FrameError, InputError
from fedquilt.records.record import pack
from fedquilt.rounds.client import Evaluation, Outcome, Score, Scores, Task
from fedquilt.rounds.engine import Facts, Lost

Note = Callable[[str], None]


class Flower:
    """Carries client updates and evaluations to the nodes of a Flower federation. Clients' states stay at the nodes.

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
        self.run, self.patience = run or uuid.uuid4().hex, patience or Patience()
        self.note: Note = note or (lambda text: None)
        self.post = Post(grid, self.patience)
        self.membership = ConnectedSites(self.post, self.run, self.note)
        self._terms: dict[str, bytes] = {}
        self._oldest = 0
        self._waited: dict[ClientId, float] = {}
        self._kind: type | None = None
        self._models: set[str] = set()

    @property
    def sites(self) -> dict[int, Here]:
        """The nodes that are part of the federation, and what they said of themselves."""
        return self.membership.sites

    def gather(
        self, nodes: int, wait: float = 600.0, classes: int | None = None, clients: Collection[ClientId] = ()
    ) -> Elsewhere:
        """Wait until so many nodes have introduced themselves; they are the federation.

        A run that goes on names its ``clients``: then their sites are the federation, and others are left out.
        """
        began = time.monotonic()
        while True:
            self.membership.meet()
            lacking = self.membership.lacking(nodes, clients)
            if not lacking:
                return Elsewhere(self.membership.close(clients), classes)
            if time.monotonic() - began > wait:
                trouble = "".join(f" Node {node} {text}." for node, text in self.membership.trouble.items())
                raise InputError(
                    f"{lacking} within {wait:g} seconds. Start the others (fedquilt join), wait longer, or ask for "
                    f"fewer.{trouble}"
                )
            self.patience.rest(began)

    # What the round loop asks for

    def begin(self, method: Method, source: Source, seed: Seed, score: Score | None) -> None:
        """Remember what this run is; every message says it, so that a restarted node can serve it."""
        if not isinstance(source, Elsewhere):
            raise InputError("The Flower engine needs the source that gather() gave.")
        method_, score_ = describe(method), describe(score, "score")
        begin = RunTerms(self.run, method_, score_, seed.value, prepare=source.prepare)
        self._terms = {"begin": pack(begin, compact=True)}
        if code := own_code.packed(own_code.used(method_, score_)):
            self._terms["code"] = pack([["", *rest] for _, *rest in code], compact=True)  # not where it is here
        self._kind = _returned(score)
        self._models = {"deployed", "global", *mode_scores(method).values()}

    def saved(self, oldest: int) -> None:
        """Snapshots reach back to this round; nodes may forget what is older."""
        self._oldest = oldest

    def _deliver(self, kind: str, clients: Sequence[ClientId], job: JobFor, what: str) -> dict[ClientId, Answered]:
        delivery = Delivery(self.post, self.membership, self.note, kind, self._terms, self._oldest, job, what)
        answers, self._waited = delivery.run(clients), delivery.waited
        return answers

    def seconds_left(self, client: ClientId) -> float:
        """What a client that has answered left of the deadline; decoding its reply takes from that."""
        return self.patience.deadline - self._waited.get(client, 0.0)

    def updates(
        self, clients: Sequence[ClientId], task: Callable[[ClientId], Task]
    ) -> Iterator[tuple[ClientId, Outcome | Lost]]:
        """One message to each node with clients in the cohort; outcomes in the order asked for."""
        tasks = {client: task(client) for client in clients}
        kind = f"train.{next(iter(tasks.values())).exchange}" if tasks else ""

        def job(client: ClientId, parcel: Parcel) -> UpdateJob:
            t = tasks[client]
            return UpdateJob(t.exchange, client, t.round, parcel.add(t.down or b""), t.slot, t.measure, t.again)

        what = next((f"exchange '{t.exchange}' of round {t.round + 1}" for t in tasks.values()), "")
        answers = self._deliver(kind, clients, job, what)
        for client in clients:
            yield client, self._outcome(answers[client])

    def _outcome(self, answer: Answered) -> Outcome | Lost:
        if isinstance(answer, Lost):
            return answer
        result, frames = answer
        try:
            given = self._checked(result)
            upload = frame_at(frames, given.up)
        except (FedquiltError, ValueError) as error:
            return Lost(told(error))
        return Outcome(
            upload, given.slot, given.seconds, given.sound, given.steps, given.loss, given.before, given.after
        )

    def _checked(self, given: object) -> Given:
        """What a node says of a client update reaches the server's logs; it must be what it should be."""
        if not isinstance(given, Given):
            raise FrameError(f"malformed answer: a {type(given).__name__} instead of what a client update gave")
        _check_numbers(given)
        for score in (given.before, given.after):
            if score is not None:
                self._check_score(score)
        return given

    def _check_score(self, score: object) -> None:
        if self._kind is not None and not isinstance(score, self._kind):
            raise FrameError(f"malformed scores: a {type(score).__name__} instead of {self._kind.__name__}")
        check = getattr(score, "check", None)
        if check is not None:
            check()

    def evaluations(
        self, clients: Sequence[ClientId], evaluation: Callable[[ClientId], Evaluation]
    ) -> Iterator[tuple[ClientId, Scores]]:
        """Scores of the clients that answered; the others are noted and left out."""
        asked = {client: evaluation(client) for client in clients}

        def job(client: ClientId, parcel: Parcel) -> EvaluationJob:
            e = asked[client]
            whole = None if e.whole is None else parcel.add(e.whole)
            return EvaluationJob(client, parcel.add(e.down or b""), e.slot, whole, e.splits, e.round)

        what = next((f"scoring after round {e.round + 1}" for e in asked.values()), "")
        answers = self._deliver(EVALUATION, clients, job, what)
        for client in clients:
            try:
                yield client, self._marks(answers[client], asked[client])
            except (FedquiltError, ValueError) as error:
                self.note(f"client {client!r} was not scored: {told(error)}")

    def _marks(self, answer: Answered, asked: Evaluation) -> Scores:
        if isinstance(answer, Lost):
            raise FrameError(answer.reason)
        marks = answer[0]
        scores = marks.scores if isinstance(marks, Marks) else None
        if not isinstance(scores, dict) or not all(isinstance(part, dict) for part in scores.values()):
            raise FrameError("malformed scores")
        for model, part in scores.items():
            if model not in self._models or not set(part) <= set(asked.splits):
                raise FrameError("malformed scores: of another model or split than asked for")
            for score in part.values():
                self._check_score(score)
        return scores

    # The end

    def carried(self) -> dict[str, int]:
        """The bytes of all frames that were put into messages since this was last asked, heads, questions and repeats
        included; those of evaluations among them. A frame that several clients of a node share counts once."""
        weighed, self.post.weighed = self.post.weighed, Counter()
        return {name: weighed[name] for name in ("carried_down", "carried_up", "scoring_down", "scoring_up")}

    def facts(self) -> Facts:
        """The nodes and their versions."""
        return {"engine": self.name, **facts(list(self.sites.values()))}

    def close(self) -> None:
        """Nodes are others' processes; there is nothing to end."""


def _check_numbers(given: Given) -> None:
    if given.slot is not None and (not isinstance(given.slot, bytes) or len(given.slot) != 32):
        raise FrameError("malformed answer: the state's digest is not 32 bytes")
    if not (isinstance(given.seconds, float) and 0 <= given.seconds < 1e9 and isinstance(given.sound, bool)):
        raise FrameError("malformed answer: its time, or whether the state is sound")
    if not _count(given.steps) or not isinstance(given.loss, float | None):
        raise FrameError("malformed answer: its steps or its loss")


def _count(steps: object) -> bool:
    return steps is None or (type(steps) is int and 0 <= steps < 2**63)


def _returned(score: Score | None) -> type | None:
    """The class that a score function says it returns; None if it does not say."""
    try:
        found = None if score is None else inspect.signature(score, eval_str=True).return_annotation
    except (ValueError, TypeError, NameError):
        return None
    return found if isinstance(found, type) and found is not inspect.Signature.empty else None
