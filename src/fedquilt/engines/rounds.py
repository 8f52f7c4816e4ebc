"""The round loop: the server's half of every engine, and the definition of a round."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from fedquilt.core.errors import ExchangeError, FedquiltError, InputError, RoundError
from fedquilt.core.exchange import Exchange, Method, Reply, Turn
from fedquilt.core.limits import upload_limits
from fedquilt.core.record import pack, tensors_in
from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId, Source, in_order
from fedquilt.engines.beside import Companion
from fedquilt.engines.client_side import Exam, Outcome, Score, Task, again_folded, one_thread
from fedquilt.engines.engine import Engine, Lost, Timed
from fedquilt.engines.hearing import Listening
from fedquilt.engines.log import Quarantine as Quarantine
from fedquilt.engines.log import RoundLog as RoundLog
from fedquilt.engines.log import Visit as Visit
from fedquilt.engines.phases import PhaseMeter
from fedquilt.engines.receiving import received, words
from fedquilt.engines.scale import GROWTH, Scale, Unsound
from fedquilt.engines.sender import Carry, Sender
from fedquilt.engines.slots import Handles as Handles
from fedquilt.engines.slots import MemorySlots as MemorySlots
from fedquilt.engines.slots import Slots as Slots

MOST_VOID = 3  # rounds in a row


def needed(min_replies: float, asked: int) -> int:
    """How many of so many clients must answer: a whole number is a count, a fraction a share of them."""
    if isinstance(min_replies, int):
        return min_replies
    return max(1, math.ceil(min_replies * asked - 1e-9))


class Rounds:
    """A run in progress: the server's state, the clients' slots, and the number of rounds done.

    Args:
        method, source, engine, seed: What is run, on which data, where, and from which seed.
        slots: Where clients' states live.
        state, done: To go on from an earlier point; by default a fresh start.
        min_replies: An exchange with fewer usable replies stops the run: a count, or a share of the cohort in (0, 1].
        growth: How far a state may leave the scale of its past, see :class:`Scale`. An exchange that goes further ends
            the round, which is void from there on: all states stay as they were before it. Several such rounds in a
            row stop the run.
        past: What an earlier part of the run knew of that, see :attr:`past`.
    """

    def __init__(
        self, method: Method, source: Source, engine: Engine, seed: Seed, *, slots: Slots | None = None,
        state: Any = None, done: int = 0, score: Score | None = None, min_replies: float = 0.5,
        growth: float = GROWTH, past: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self.method, self.source, self.engine, self.seed = method, source, engine, seed
        self.slots: Slots = slots if slots is not None else (Handles() if engine.keeps_states else MemorySlots())
        settings: Any = getattr(type(method), "__dataclass_params__", None)
        if settings is not None and not settings.frozen:
            raise InputError(
                f"{type(method).__name__} is a dataclass that can change, so engines could disagree. "
                "Make it @dataclass(frozen=True) and keep what changes in the server's or a client's state."
            )
        self.exchanges = {e.name: e for e in method.exchanges()}
        self.done, self.min_replies = done, min_replies
        self._meter = PhaseMeter()
        self._weight = 0  # bytes of the state: who holds a model already is sent little, and answers with one
        self._known: tuple[Sequence[ClientId], frozenset[ClientId]] | None = None
        self.heard: Callable[[Any, int, Reply[Any]], None] | None = None  # told of every reply as it comes
        self.stepped: Callable[[int, str, int, int], None] | None = None  # round, phase, how many clients, of how many
        with one_thread():
            self.state = method.init_server(seed.fold("server")) if state is None else state
        earlier = past or {}
        self._void = int(earlier.get("void", 0))
        self._scale = Scale(growth, earlier.get("norms"))
        if not self._scale.past:
            self._scale.note(self.state)
        engine.begin(method, source, seed, score)

    @property
    def past(self) -> dict[str, Any]:
        """How large the parts of the last states were, and how many rounds in a row were void: what a run that goes on
        from here must know beside its state."""
        return {"norms": self._scale.past, "void": self._void}

    def digest(self) -> str:
        """A sha256 of everything that makes up the state of the run; equal runs have equal digests."""
        total = hashlib.sha256(pack(self.state, checksum=False))
        total.update(str(self.done).encode())
        digests = self.slots.digests()
        for client in in_order(list(digests)):
            total.update(f"{client!r}={digests[client]};".encode())
        return total.hexdigest()

    # One round

    def play(self, measure: bool = False, scored: bool = True) -> RoundLog:
        """Play the next round: its exchanges in order; those ``for_scores`` only if models will be ``scored``."""
        log, self._meter = RoundLog(self.done), PhaseMeter()
        try:
            with one_thread():
                self._trips(log, measure, scored)
        except Exception:
            self._take_back()
            raise
        if log.void is None:
            self._scale.note(self.state)
            self._void = 0
        self.done += 1
        self._meter.stop()
        log.phases = self._meter.phases
        log.seconds = sum(phase.seconds for phase in log.phases)
        return log

    def _trips(self, log: RoundLog, measure: bool, scored: bool) -> None:
        """The exchanges of a round. Of one that is void, those ``for_scores`` are still made: models are scored."""
        names = tuple(n for n in self._plan() if scored or not self.exchanges[n].for_scores)
        void: list[Visit] = []
        for trip, name in enumerate(names):
            if log.void is not None and not self.exchanges[name].for_scores:
                continue
            self._meter.to(name, "aggregate")
            try:
                self.state = self._trip(self.exchanges[name], log, measure, names[:trip].count(name), trip)
            except Unsound as error:
                self._take_back()
                self._stop_round(log, str(error))
                void += log.of(trip)
            self.slots.settle()
        for visit in void:
            log.leave_out(visit, f"the round is void: {log.void}")

    def _take_back(self) -> None:
        """Clients' states are again what they were before this trip."""
        for client in self.slots.unsettled():
            self.slots.back(client)

    def _stop_round(self, log: RoundLog, reason: str) -> None:
        """The round ends with the state before this trip: nobody's reply was to blame, or too many were."""
        if log.void is not None:
            return
        if self._void + 1 >= MOST_VOID:
            raise RoundError(
                f"round {self.done + 1}: {reason}. So it was in {MOST_VOID} rounds in a row. The last good state is "
                "kept. Try a smaller learning rate, or look into ledger.jsonl for clients to leave out."
            )
        self._void, log.void = self._void + 1, reason

    def _plan(self) -> tuple[str, ...]:
        names = self.method.plan(self.state, self.done)
        for name in names:
            if name not in self.exchanges:
                raise InputError(
                    f"{self._name}.plan() names the exchange {name!r} in round {self.done + 1}, "
                    f"but exchanges() has only {sorted(self.exchanges)}."
                )
        return names

    def next_exchange(self) -> Exchange:
        """The trip whose download a client's present model is made with: the first one of the next round."""
        names = self.method.plan(self.state, self.done) or tuple(self.exchanges)
        return self.exchanges[names[0]]

    @property
    def _name(self) -> str:
        return type(self.method).__name__

    def _trip(self, exchange: Exchange, log: RoundLog, measure: bool, again: int, trip: int) -> Any:
        cohort = self._cohort(exchange, log)
        if not cohort:
            return self.state
        seed = again_folded(self.seed.fold("up", exchange.name, self.done), again)
        turn = Turn(self.done, None, seed, len(self.source.ids))
        least = needed(self.min_replies, len(cohort))
        self._weight = sum(t.numel() * t.element_size() for t in tensors_in(self.state))

        def fold(stream: Iterator[Reply[Any]]) -> Any:
            state = exchange.up(self.state, stream, turn)
            for _ in stream:  # a server that does not listen must not stop the work
                pass
            self._scale.check(state)
            return state

        def leave_out(client: ClientId, reason: str) -> None:
            log.leave_out(next(v for v in log.of(trip) if v.client == client), reason)
            self.slots.back(client)

        replies = partial(self._replies, exchange, cohort, log, measure, again, trip)
        listening = Listening(fold, replies, leave_out, lambda left: left >= least)
        try:
            state = listening.state()
        except Exception as error:
            ours = isinstance(error, FedquiltError) and not isinstance(error, InputError)
            if listening.broken and ours:
                raise  # it came with the replies
            if isinstance(error, Unsound):
                self._enough(exchange, len(cohort), len(log.of(trip)), least, log)
                raise
            raise self._failed(exchange, "up", None, error) from error
        self._enough(exchange, len(cohort), len(log.of(trip)), least, log)
        return state

    def _replies(
        self, exchange: Exchange, cohort: Sequence[ClientId], log: RoundLog, measure: bool, again: int, trip: int
    ) -> Iterator[Reply[Any]]:
        """Ask the cohort. Asked once more, in the same trip, it begins from the same states."""
        for visit in log.of(trip):
            self.slots.back(visit.client)
        log.visits = [v for v in log.visits if v.trip != trip]
        meter, name, sender, out = self._meter, exchange.name, self._sender(exchange), log.left_out

        def task(client: ClientId) -> Task:
            before = meter.to(name, "broadcast")
            made = Task(name, client, self.done, sender.send(client).frame, self.slots.get(client), measure, again)
            meter.to(*before)
            return made

        asked = [c for c in cohort if c not in out]
        for place, (client, outcome) in enumerate(meter.during(name, "train", self.engine.visits(asked, task)), 1):
            before = meter.to(name, "upload")
            reply = self._receive(exchange, client, sender, outcome, log, trip)
            if self.stepped is not None:
                self.stepped(self.done + 1, name, place, len(asked))
            meter.to(*before)
            if reply is not None:
                if self.heard is not None:
                    self.heard(self.state, self.done, reply)
                yield reply

    def _cohort(self, exchange: Exchange, log: RoundLog) -> tuple[ClientId, ...]:
        try:
            asked = exchange.cohort(self.state, self.source.ids, self.seed.fold("cohort", self.done))
            _check_cohort(asked, self._clients())
        except Exception as error:
            raise self._failed(exchange, "cohort", None, error) from error
        left_out = log.left_out
        return in_order([c for c in asked if c not in left_out])

    def _clients(self) -> frozenset[ClientId]:
        """All clients, looked at anew only when the source names others."""
        ids = self.source.ids
        if self._known is None or self._known[0] is not ids:
            self._known = (ids, frozenset(ids))
        return self._known[1]

    def _sender(self, exchange: Exchange, carry: Carry | None = None) -> Sender:
        seed = exchange.download_seed(self.done, self.seed)
        return Sender(
            partial(exchange.down, self.state), partial(carry or exchange.carried, seed=seed),
            partial(self._failed, exchange, "down"), exchange.uncoded,
        )  # fmt: skip

    def _receive(
        self,
        exchange: Exchange,
        client: ClientId,
        sender: Sender,
        outcome: Outcome | Lost,
        log: RoundLog,
        trip: int,
    ) -> Reply[Any] | None:
        """The reply, once it has passed every check; only then does the client's new slot count."""
        sent, frame, down = sender.done(client)
        try:
            if isinstance(outcome, Lost):
                raise ValueError(outcome.reason)
            known = max(down.raw, self._weight)
            limits = upload_limits(known, exchange.most_bytes, _seconds_left(self.engine, client))
            wire, upload, load = received(outcome, exchange, self.state, sent, self.source.size(client), limits)
        except Exception as error:
            up = 0 if isinstance(outcome, Lost) else len(outcome.upload)
            log.quarantined.append(Quarantine(self.done, exchange.name, client, words(error), len(frame), up))
            return None
        if outcome.slot is not None:
            self.slots.put(client, outcome.slot)
        log.visits.append(
            Visit(exchange.name, client, down, load, outcome.seconds, wire.examples,
                  outcome.steps, outcome.loss, outcome.before, outcome.after, trip)
        )  # fmt: skip
        return Reply(client, wire.examples, upload)

    def _enough(self, exchange: Exchange, asked: int, usable: int, least: int, log: RoundLog) -> None:
        if usable < least:
            reasons = "; ".join(f"client {q.client!r}: {q.reason.rstrip('.')}" for q in log.quarantined[:3])
            raise RoundError(
                f"round {self.done + 1}, exchange '{exchange.name}': {usable} of {asked} clients gave a usable reply, "
                f"at least {least} needed. {reasons}{'. ' if reasons else ''}A smaller min_replies asks for fewer."
            )

    def _failed(self, exchange: Exchange, stage: str, client: ClientId | None, error: Exception) -> ExchangeError:
        return ExchangeError(self._name, exchange.name, stage, client, self.done, f"{type(error).__name__}: {error}")

    # Scoring

    def examine(
        self, clients: Sequence[ClientId], splits: tuple[str, ...] = ("valid", "test"), with_global: bool = True
    ) -> dict[ClientId, dict[str, Any]]:
        """Score the model each client would use now, and the global one, on each client's own rows.

        Every client's score is a pure function of its model and its own rows: batches never span clients, so that
        all engines give the same numbers.
        """
        with one_thread():
            exchange = self.next_exchange()
            whole = self.method.global_model(self.state) if with_global else None
            beside = None if whole is None else Companion(whole)
            sender, last = self._sender(exchange, partial(_decoded, exchange)), max(self.done - 1, 0)

            def exam(client: ClientId) -> Exam:
                sent = sender.done(client)
                frame = None if beside is None else beside.frame(sent.seen)
                return Exam(client, sent.frame, self.slots.get(client), frame, splits, last)

            found = {}
            for client, scores in self.engine.exams(list(clients), exam):
                found[client] = scores
                if self.stepped is not None:
                    self.stepped(self.done, "evaluate", len(found), len(clients))
            return found


def _seconds_left(engine: Engine, client: ClientId) -> float:
    """How long decoding a client's reply may take: what is left of its deadline, where there is one."""
    return engine.seconds_left(client) if isinstance(engine, Timed) else math.inf


def _check_cohort(asked: Sequence[ClientId], known: frozenset[ClientId]) -> None:
    """A client visited twice in one exchange would see two states on one engine and one on another."""
    seen: set[ClientId] = set()
    for client in asked:
        if client not in known:
            raise InputError(f"client {client!r} is asked, but is not in the federation.")
        if client in seen:
            raise InputError(f"client {client!r} is asked twice.")
        seen.add(client)


def _decoded(exchange: Exchange, download: Any, seed: Seed) -> tuple[Any, Any]:
    """For scores: what the client would see travels as it is."""
    seen, _ = exchange.carried(download, seed)
    return seen, seen
