"""The round loop: the server's half of every engine, and the definition of a round."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from fedquilt.core.exchange import Exchange, Method, Reply, Sifted
from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId, Source, in_order
from fedquilt.errors import ExchangeError, InputError, RoundError
from fedquilt.own_code import told
from fedquilt.records.record import pack
from fedquilt.rounds.beside import Companion
from fedquilt.rounds.client import Evaluation, Score, Scores, one_thread
from fedquilt.rounds.engine import Engine
from fedquilt.rounds.exchange_run import ExchangeRun
from fedquilt.rounds.log import ClientUpdate as ClientUpdate
from fedquilt.rounds.log import Quarantine as Quarantine
from fedquilt.rounds.log import RoundLog as RoundLog
from fedquilt.rounds.phases import PhaseMeter
from fedquilt.rounds.scale import GROWTH, Scale, Unsound
from fedquilt.rounds.sender import Carry, Sender


class Slots(Protocol):
    """Where clients' states live between client updates, as frames.

    What is put can be taken back until it is settled: a reply counts only if the server can take it.
    """

    def get(self, client: ClientId) -> bytes | None:
        """The client's frame; None before its first change."""
        ...

    def put(self, client: ClientId, frame: bytes) -> None:
        """Keep a new frame."""
        ...

    def unsettled(self) -> tuple[ClientId, ...]:
        """The clients for whom something was put that is not settled."""
        ...

    def back(self, client: ClientId) -> None:
        """Take back what was put for a client since it was last settled."""
        ...

    def settle(self) -> None:
        """Let go of what was replaced."""
        ...

    def digests(self) -> Mapping[ClientId, str]:
        """The sha256 of every frame kept."""
        ...


class MemorySlots:
    """Slots in this process's memory."""

    def __init__(self) -> None:
        self.frames: dict[ClientId, bytes] = {}
        self._old: dict[ClientId, bytes | None] = {}

    def get(self, client: ClientId) -> bytes | None:
        """The client's frame."""
        return self.frames.get(client)

    def put(self, client: ClientId, frame: bytes) -> None:
        """Keep a new frame."""
        self._old.setdefault(client, self.frames.get(client))
        self.frames[client] = frame

    def unsettled(self) -> tuple[ClientId, ...]:
        """The clients for whom something was put that is not settled."""
        return tuple(self._old)

    def back(self, client: ClientId) -> None:
        """Take back what was put for a client since it was last settled."""
        if client in self._old:
            old = self._old.pop(client)
            del self.frames[client]
            if old is not None:
                self.frames[client] = old

    def settle(self) -> None:
        """Let go of what was replaced."""
        self._old.clear()

    def digests(self) -> Mapping[ClientId, str]:
        """The sha256 of every frame kept."""
        return {c: hashlib.sha256(f).hexdigest() for c, f in self.frames.items()}


class Handles(MemorySlots):
    """Slots that an engine keeps elsewhere: what is here is only the sha256 of each frame."""

    def digests(self) -> Mapping[ClientId, str]:
        """The sha256 of every frame kept."""
        return {client: handle.hex() for client, handle in self.frames.items()}


class ReplyChecks(Protocol):
    """What leaves out replies that stand out from their cohort."""

    def sift(self, replies: Sequence[Reply], past: Mapping[str, Any], round: int, exchange: str) -> Sifted:
        """What an exchange's replies come to."""
        ...


class Forging(Protocol):
    """What attackers of a simulation make of their replies."""

    def __call__(self, replies: Sequence[Reply], source: Source, run: Seed, seed: Seed) -> list[Reply]:
        """All replies of an exchange, with those of the attackers among the source's clients forged."""
        ...


MOST_VOID = 3  # rounds in a row


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
        checks: Which replies are left out because they stand out from their cohort.
        attackers: Who is malicious in a simulation, and how.
    """

    def __init__(
        self,
        method: Method,
        source: Source,
        engine: Engine,
        seed: Seed,
        *,
        slots: Slots | None = None,
        state: Any = None,
        done: int = 0,
        score: Score | None = None,
        min_replies: float = 0.5,
        growth: float = GROWTH,
        past: Mapping[str, Any] | None = None,
        checks: ReplyChecks | None = None,
        attackers: Forging | None = None,
    ) -> None:
        self.checks, self.attackers = checks, attackers
        self.method, self.source, self.engine, self.seed = method, source, engine, seed
        self.slots: Slots = slots if slots is not None else (Handles() if engine.keeps_states else MemorySlots())
        settings: Any = getattr(type(method), "__dataclass_params__", None)
        if settings is not None and not settings.frozen:
            raise InputError(
                f"{type(method).__name__} is a mutable dataclass, so engines could disagree. "
                "Make it @dataclass(frozen=True), and keep what changes in the server or client state."
            )
        self.exchanges = {e.name: e for e in method.exchanges()}
        self.done, self.min_replies = done, min_replies
        self._known: tuple[Sequence[ClientId], frozenset[ClientId]] | None = None
        self.heard: Callable[[Any, int, Reply], None] | None = None  # told of every reply as it comes
        self.stepped: Callable[[int, str, int, int], None] | None = None  # round, phase, how many clients, of how many
        with one_thread():
            self.state = method.init_server(seed.fold("server")) if state is None else state
        earlier = past or {}
        self._void = int(earlier.get("void", 0))
        self.checked: Mapping[str, Any] = earlier.get("checked", {})
        self.scale = Scale(growth, earlier.get("norms"))
        if not self.scale.past:
            self.scale.note(self.state)
        engine.begin(method, source, seed, score)

    @property
    def past(self) -> dict[str, Any]:
        """How large the parts of the last states were, and how many rounds in a row were void: what a run that goes on
        from here must know beside its state."""
        known = {"norms": self.scale.past, "void": self._void}
        return known if self.checks is None else {**known, "checked": self.checked}

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
        """Play the next round: the exchanges of its plan, in order; see :class:`fedquilt.rounds.exchange.Exchange`.

        Those ``for_scores`` are made only if models will be ``scored``; ``measure`` has clients score the model before
        and after their training.
        """
        log, meter = RoundLog(self.done), PhaseMeter()
        try:
            with one_thread():
                self._play_exchanges(self._plan(scored), log, meter, measure)
        except Exception:
            self._take_back()
            raise
        if log.void is None:
            self.scale.note(self.state)
            self._void = 0
        self.done += 1
        meter.stop()
        log.phases = meter.phases
        log.seconds = sum(phase.seconds for phase in log.phases)
        return log

    def _plan(self, scored: bool) -> list[Exchange]:
        names = self.method.plan(self.state, self.done)
        for name in names:
            if name not in self.exchanges:
                raise InputError(
                    f"{self._name}.plan() names the exchange {name!r} in round {self.done + 1}, "
                    f"but exchanges() has only {sorted(self.exchanges)}."
                )
        return [e for e in map(self.exchanges.__getitem__, names) if scored or not e.for_scores]

    def _play_exchanges(self, plan: list[Exchange], log: RoundLog, meter: PhaseMeter, measure: bool) -> None:
        """One exchange leaves the state that the next begins from. Of a round that is void, those ``for_scores`` are
        still made: models are scored."""
        void: list[ClientUpdate] = []
        for place, exchange in enumerate(plan):
            if log.void is not None and not exchange.for_scores:
                continue
            meter.to(exchange.name, "aggregate")
            again = sum(earlier is exchange for earlier in plan[:place])
            try:
                self.state = ExchangeRun(self, exchange, log, meter, measure, place, again).play()
            except Unsound as error:
                self._take_back()
                self._make_void(log, str(error))
                void += log.of(place)
            self.slots.settle()
        for client_update in void:
            log.leave_out(client_update, f"the round is void: {log.void}")

    def _take_back(self) -> None:
        """Clients' states are again what they were before this exchange."""
        for client in self.slots.unsettled():
            self.slots.back(client)

    def _make_void(self, log: RoundLog, reason: str) -> None:
        """The round ends with the state before this exchange: nobody's reply was to blame, or too many were."""
        if log.void is not None:
            return
        if self._void + 1 >= MOST_VOID:
            raise RoundError(
                f"round {self.done + 1}: {reason}. This happened in {MOST_VOID} consecutive rounds. The last "
                "valid state "
                "is kept. Try a smaller learning rate, or check dropped.jsonl for clients to exclude."
            )
        self._void, log.void = self._void + 1, reason

    # What an exchange needs of the run

    def clients(self) -> frozenset[ClientId]:
        """All clients, looked at anew only when the source names others."""
        ids = self.source.ids
        if self._known is None or self._known[0] is not ids:
            self._known = (ids, frozenset(ids))
        return self._known[1]

    def sender(self, exchange: Exchange, carry: Carry | None = None) -> Sender:
        """What makes the downloads of an exchange."""
        seed = exchange.download_seed(self.done, self.seed)
        failed = partial(self.failed, exchange, "down")
        return Sender(
            partial(exchange.down, self.state), partial(carry or exchange.carried, seed=seed), failed, exchange.uncoded
        )

    def failed(self, exchange: Exchange, stage: str, client: ClientId | None, error: Exception) -> ExchangeError:
        """The method failed: where, and how."""
        return ExchangeError(self._name, exchange.name, stage, client, self.done, told(error))

    @property
    def _name(self) -> str:
        return type(self.method).__name__

    # Scoring

    def next_exchange(self) -> Exchange:
        """The exchange whose download a client's present model is made with: the first one of the next round."""
        names = self.method.plan(self.state, self.done) or tuple(self.exchanges)
        return self.exchanges[names[0]]

    def evaluate(
        self, clients: Sequence[ClientId], splits: tuple[str, ...] = ("valid", "test"), with_global: bool = True
    ) -> dict[ClientId, Scores]:
        """Score the model each client would use now, and the global one, on each client's own samples.

        Every client's score is a pure function of its model and its own samples: batches never span clients, so that
        all engines give the same numbers.
        """
        with one_thread():
            exchange = self.next_exchange()
            whole = self.method.global_model(self.state) if with_global else None
            beside = None if whole is None else Companion(whole)
            sender, last = self.sender(exchange, partial(_decoded, exchange)), max(self.done - 1, 0)

            def evaluation(client: ClientId) -> Evaluation:
                sent = sender.done(client)
                frame = None if beside is None else beside.frame(sent.seen)
                return Evaluation(client, sent.frame, self.slots.get(client), frame, splits, last)

            found = {}
            for client, scores in self.engine.evaluations(list(clients), evaluation):
                found[client] = scores
                if self.stepped is not None:
                    self.stepped(self.done, "evaluate", len(found), len(clients))
            return found


def _decoded(exchange: Exchange, download: object, seed: Seed) -> tuple[object, object]:
    """For scores: what the client would see travels as it is."""
    seen, _ = exchange.carried(download, seed)
    return seen, seen
