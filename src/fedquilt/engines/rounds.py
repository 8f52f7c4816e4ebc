"""The round loop: the server's half of every engine, and the definition of a round."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from fedquilt.core.errors import ExchangeError, FedquiltError, InputError, RoundError
from fedquilt.core.exchange import Exchange, Method, Reply, Turn
from fedquilt.core.params import finite
from fedquilt.core.record import finite_scalars, pack, tensors_in, unpack
from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId, Source, in_order
from fedquilt.engines.beside import Companion
from fedquilt.engines.client_side import Exam, Outcome, Score, Task, Wire, again_folded, one_thread
from fedquilt.engines.engine import Engine, Lost
from fedquilt.engines.log import Quarantine as Quarantine
from fedquilt.engines.log import RoundLog as RoundLog
from fedquilt.engines.log import Visit as Visit
from fedquilt.engines.phases import PhaseMeter
from fedquilt.engines.sender import Carry, Sender
from fedquilt.engines.traffic import load_of

MOST_EXAMPLES = 10**9


class Slots(Protocol):
    """Where clients' states live between visits, as frames."""

    def get(self, client: ClientId) -> bytes | None:
        """The client's frame; None before its first change."""
        ...

    def put(self, client: ClientId, frame: bytes) -> None:
        """Keep a new frame."""
        ...

    def digests(self) -> Mapping[ClientId, str]:
        """The sha256 of every frame kept."""
        ...


class MemorySlots:
    """Slots in this process's memory."""

    def __init__(self) -> None:
        self.frames: dict[ClientId, bytes] = {}

    def get(self, client: ClientId) -> bytes | None:
        """The client's frame."""
        return self.frames.get(client)

    def put(self, client: ClientId, frame: bytes) -> None:
        """Keep a new frame."""
        self.frames[client] = frame

    def digests(self) -> Mapping[ClientId, str]:
        """The sha256 of every frame kept."""
        return {c: hashlib.sha256(f).hexdigest() for c, f in self.frames.items()}


class Handles(MemorySlots):
    """Slots that an engine keeps elsewhere: what is here is only the sha256 of each frame."""

    def digests(self) -> Mapping[ClientId, str]:
        """The sha256 of every frame kept."""
        return {client: handle.hex() for client, handle in self.frames.items()}


class Rounds:
    """A run in progress: the server's state, the clients' slots, and the number of rounds done.

    Args:
        method, source, engine, seed: What is run, on which data, where, and from which seed.
        slots: Where clients' states live.
        state, done: To go on from an earlier point; by default a fresh start.
        min_replies: A round with fewer usable replies stops the run.
    """

    def __init__(
        self, method: Method, source: Source, engine: Engine, seed: Seed, *, slots: Slots | None = None,
        state: Any = None, done: int = 0, score: Score | None = None, min_replies: int = 1,
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
        self._known: tuple[Sequence[ClientId], frozenset[ClientId]] | None = None
        self.heard: Callable[[Any, int, Reply[Any]], None] | None = None  # told of every reply that counts
        self.stepped: Callable[[int, str, int, int], None] | None = None  # round, phase, how many clients, of how many
        with one_thread():
            self.state = method.init_server(seed.fold("server")) if state is None else state
        engine.begin(method, source, seed, score)

    def digest(self) -> str:
        """A sha256 of everything that makes up the state of the run; equal runs have equal digests."""
        total = hashlib.sha256(pack(self.state))
        total.update(str(self.done).encode())
        digests = self.slots.digests()
        for client in in_order(list(digests)):
            total.update(f"{client!r}={digests[client]};".encode())
        return total.hexdigest()

    # One round

    def play(self, measure: bool = False) -> RoundLog:
        """Play the next round: its exchanges in order."""
        log, self._meter = RoundLog(self.done), PhaseMeter()
        with one_thread():
            names = self._plan()
            for place, name in enumerate(names):
                self._meter.to(name, "aggregate")
                self.state = self._trip(self.exchanges[name], log, measure, names[:place].count(name), place)
        self.done += 1
        self._meter.stop()
        log.phases = self._meter.phases
        log.seconds = sum(phase.seconds for phase in log.phases)
        return log

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
        sender, meter, name = self._sender(exchange), self._meter, exchange.name
        accepted: list[ClientId] = []

        def task(client: ClientId) -> Task:
            before = meter.to(name, "broadcast")
            made = Task(name, client, self.done, sender.send(client).frame, self.slots.get(client), measure, again)
            meter.to(*before)
            return made

        def replies() -> Iterator[Reply[Any]]:
            visits = meter.during(name, "train", self.engine.visits(cohort, task))
            for place, (client, outcome) in enumerate(visits, 1):
                before = meter.to(name, "upload")
                reply = self._receive(exchange, client, sender, outcome, log, trip)
                if self.stepped is not None:
                    self.stepped(self.done + 1, name, place, len(cohort))
                meter.to(*before)
                if reply is not None:
                    accepted.append(client)
                    if self.heard is not None:
                        self.heard(self.state, self.done, reply)
                    yield reply

        stream = replies()
        seed = again_folded(self.seed.fold("up", exchange.name, self.done), again)
        turn = Turn(self.done, None, seed, len(self.source.ids))
        try:
            state = exchange.up(self.state, stream, turn)
            for _ in stream:  # a server that does not listen must not stop the work
                pass
        except Exception as error:
            if isinstance(error, FedquiltError) and not isinstance(error, InputError):
                raise  # it came with the replies
            raise self._failed(exchange, "up", None, error) from error
        self._enough(exchange, cohort, accepted, log)
        if not finite(tensors_in(state)):
            raise RoundError(
                f"round {self.done + 1}, exchange '{exchange.name}': the server's state holds non-finite numbers after "
                "'up', although every upload was finite. Try a smaller learning rate."
            )
        return state

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
            wire = unpack(outcome.upload)
            if not isinstance(wire, Wire):
                raise ValueError("malformed: not an upload")
            if not isinstance(wire.examples, int) or not 0 < wire.examples <= MOST_EXAMPLES:
                raise ValueError(f"absurd weight: {wire.examples!r} examples")
            if wire.examples > (rows := self.source.size(client)) > 0:
                raise ValueError(f"absurd weight: {wire.examples} examples of a client that has {rows}")
            if not outcome.sound:
                raise ValueError("non-finite numbers in the client's own state; try a smaller learning rate")
            upload = exchange.codec.decode(wire.upload, sent)
            if not (finite(tensors_in(upload)) and finite_scalars(upload)):
                raise ValueError("non-finite numbers in the upload; did training diverge? Try a smaller learning rate")
            exchange.check(self.state, upload)
        except Exception as error:
            up = 0 if isinstance(outcome, Lost) else len(outcome.upload)
            known = isinstance(error, ValueError | FedquiltError) and str(error)
            reason = str(error) if known else f"{type(error).__name__}: {error}"
            log.quarantined.append(Quarantine(self.done, exchange.name, client, reason, len(frame), up))
            return None
        if outcome.slot is not None:
            self.slots.put(client, outcome.slot)
        load = load_of(exchange.uncoded(upload), wire.upload, outcome.upload, partial(Wire, wire.examples))
        log.visits.append(
            Visit(exchange.name, client, down, load, outcome.seconds, wire.examples,
                  outcome.steps, outcome.loss, outcome.before, outcome.after, trip)
        )  # fmt: skip
        return Reply(client, wire.examples, upload)

    def _enough(self, exchange: Exchange, cohort: Sequence[ClientId], accepted: list[ClientId], log: RoundLog) -> None:
        if len(accepted) < self.min_replies:
            reasons = "; ".join(f"client {q.client!r}: {q.reason}" for q in log.quarantined[:3])
            raise RoundError(
                f"round {self.done + 1}, exchange '{exchange.name}': {len(accepted)} of {len(cohort)} clients gave a "
                f"usable reply, at least {self.min_replies} needed. {reasons}"
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
