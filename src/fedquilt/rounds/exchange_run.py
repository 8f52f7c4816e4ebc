"""One exchange of a round, in its order: cohort, downloads, clients' work, checked replies, the server's next state."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from fedquilt.core.exchange import Context, Exchange, Reply
from fedquilt.core.params import finite
from fedquilt.core.table import ClientId, in_order
from fedquilt.errors import FedquiltError, InputError, RoundError
from fedquilt.records.declared import check_declared, shown
from fedquilt.records.limits import NO_LIMITS, Limits, upload_limits
from fedquilt.records.record import finite_scalars, tensors_in, unpack
from fedquilt.rounds.blame import Blame
from fedquilt.rounds.client import Outcome, Task, Wire, again_folded
from fedquilt.rounds.engine import Lost, Timed
from fedquilt.rounds.log import ClientUpdate, Quarantine, RoundLog
from fedquilt.rounds.phases import PhaseMeter
from fedquilt.rounds.scale import Unsound
from fedquilt.rounds.sender import Sender, SentDownload
from fedquilt.rounds.traffic import Load, load_of

if TYPE_CHECKING:
    from fedquilt.rounds.rounds import Rounds

HELD = 64 * 2**20  # bytes of replies that are held until the server has taken them
MOST_SAMPLES = 10**9
_LONGEST = 500  # characters of a reason

Replies = Iterator[Reply]


class ExchangeRun:
    """An exchange as it is played in a round.

    Replies stream into ``up`` and are let go. A few of them, as long as they are small, are also held: should ``up``
    fail, or make a state that cannot be, those that are to blame are left out (:mod:`fedquilt.rounds.blame`).
    Where replies are too large to be held, the clients are asked once more instead.

    Args:
        rounds: The run.
        exchange: What is exchanged.
        log, meter: What happens in the round, and how long that takes.
        measure: Whether clients score the model before and after their training.
        place: Which of the round's exchanges this is.
        again: How many of those before it were the same.
    """

    def __init__(
        self,
        rounds: Rounds,
        exchange: Exchange,
        log: RoundLog,
        meter: PhaseMeter,
        measure: bool = False,
        place: int = 0,
        again: int = 0,
    ) -> None:
        self.rounds, self.exchange, self.log, self.meter = rounds, exchange, log, meter
        self.measure, self.place, self.again = measure, place, again
        self.cohort: tuple[ClientId, ...] = ()
        self._weight = sum(t.numel() * t.element_size() for t in tensors_in(rounds.state))
        self._held: list[Reply] | None = []
        self._bytes = 0  # of those
        self._checked = rounds.checked  # what the cohort's checks know after this exchange
        self._broken = False  # whether the replies failed to come, which is no fault of the server's

    def play(self) -> Any:
        """The server's next state."""
        self.cohort = self._choose()
        if not self.cohort:
            return self.rounds.state
        try:
            state = self._next_state()
        except Exception as error:
            ours = isinstance(error, FedquiltError) and not isinstance(error, InputError)
            if self._broken and ours:
                raise  # it came with the replies
            if isinstance(error, Unsound):
                self._check_enough()
                raise
            raise self.rounds.failed(self.exchange, "up", None, error) from error
        self._check_enough()
        self.rounds.checked = self._checked
        return state

    def _choose(self) -> tuple[ClientId, ...]:
        """Who is asked: whose reply was left out of the round is not asked again."""
        rounds = self.rounds
        try:
            asked = self.exchange.cohort(rounds.state, rounds.source.ids, rounds.seed.fold("cohort", rounds.done))
            _check_cohort(asked, rounds.clients())
        except Exception as error:
            raise rounds.failed(self.exchange, "cohort", None, error) from error
        left_out = self.log.left_out
        return in_order([c for c in asked if c not in left_out])

    # Downloads, work, and checked replies

    def _replies(self) -> Replies:
        """Send each client of the cohort its download, have it work, and check its reply."""
        rounds, meter, name = self.rounds, self.meter, self.exchange.name
        sender, left_out = rounds.sender(self.exchange), self.log.left_out
        asked = [c for c in self.cohort if c not in left_out]
        updates = rounds.engine.updates(asked, partial(self._task, sender))
        for count, (client, outcome) in enumerate(meter.during(name, "train", updates), 1):
            before = meter.to(name, "upload")
            reply = self._receive(client, sender.done(client), outcome)
            if rounds.stepped is not None:
                rounds.stepped(rounds.done + 1, name, count, len(asked))
            meter.to(*before)
            if reply is not None:
                if rounds.heard is not None:
                    rounds.heard(rounds.state, rounds.done, reply)
                yield reply

    def _task(self, sender: Sender, client: ClientId) -> Task:
        """A client's work: its download, and the state that it left last time."""
        rounds, name = self.rounds, self.exchange.name
        before = self.meter.to(name, "broadcast")
        down, slot = sender.send(client).frame, rounds.slots.get(client)
        self.meter.to(*before)
        return Task(name, client, rounds.done, down, slot, self.measure, self.again)

    def _receive(self, client: ClientId, sent: SentDownload, outcome: Outcome | Lost) -> Reply | None:
        """The reply, once it has passed every check; only then does the client's new slot count."""
        rounds, exchange, log = self.rounds, self.exchange, self.log
        try:
            if isinstance(outcome, Lost):
                raise ValueError(outcome.reason)
            left = rounds.engine.seconds_left(client) if isinstance(rounds.engine, Timed) else math.inf
            limits = upload_limits(max(sent.load.raw, self._weight), exchange.most_bytes, left)
            rows = rounds.source.size(client)
            wire, upload, load = received(outcome, exchange, rounds.state, sent.seen, rows, limits)
        except Exception as error:
            up = 0 if isinstance(outcome, Lost) else len(outcome.upload)
            log.quarantined.append(Quarantine(rounds.done, exchange.name, client, words(error), len(sent.frame), up))
            return None
        if outcome.slot is not None:
            rounds.slots.put(client, outcome.slot)
        notes = (outcome.steps, outcome.loss, outcome.before, outcome.after)
        seconds, samples = outcome.seconds, wire.samples
        log.updates.append(
            ClientUpdate(exchange.name, client, sent.load, load, seconds, samples, *notes, place=self.place)
        )
        return Reply(client, wire.samples, upload)

    # What the server makes of them

    def _next_state(self) -> Any:
        """The state that the replies make, without those that the server cannot take."""
        stream = self._holding(self._coming())
        try:
            return self._aggregate(stream)
        except Exception as error:
            if self._broken:
                raise
            for _ in stream:  # those under way are heard, too
                pass
            blame = Blame(self._aggregate, lambda left: left >= self._least)
            if self._held is None:
                return blame.one_by_one(self._once_more(), self._leave_out, error)
            state, guilty = blame.among(self._held, error)
        for client, reason in guilty.items():
            self._leave_out(client, reason)
        return state

    def _aggregate(self, replies: Replies) -> Any:
        """What ``up`` makes of replies, once its scale is checked."""
        rounds, exchange = self.rounds, self.exchange
        seed = again_folded(rounds.seed.fold("up", exchange.name, rounds.done), self.again)
        state = exchange.up(rounds.state, replies, Context(rounds.done, None, seed, len(rounds.source.ids)))
        for _ in replies:  # a server that does not listen must not stop the work
            pass
        rounds.scale.check(state)
        return state

    def _coming(self) -> Replies:
        try:
            replies = self._replies()
            if self.rounds.attackers is None and self.rounds.checks is None:
                yield from replies
            else:
                yield from self._compared(list(replies))
        except Exception:
            self._broken = True
            raise

    def _compared(self, replies: list[Reply]) -> list[Reply]:
        """What the attackers of a simulation make of their replies, and what the cohort's checks leave of all."""
        rounds, checks = self.rounds, self.rounds.checks
        if rounds.attackers is not None:
            seed = again_folded(rounds.seed.fold("attack", self.exchange.name, rounds.done), self.again)
            replies = rounds.attackers(replies, rounds.source, rounds.seed, seed)
        if checks is None:
            return replies
        found = checks.sift(replies, rounds.checked, rounds.done, self.exchange.name)
        self._checked = found.past
        for client, reason in found.odd.items():
            self._leave_out(client, reason)
        self.log.bounded = [q for q in self.log.bounded if q.exchange != self.exchange.name]  # asked once more
        self.log.bounded += [
            Quarantine(rounds.done, self.exchange.name, client, how, used=True) for client, how in found.bounded.items()
        ]
        return found.kept

    def _once_more(self) -> Replies:
        """The clients are asked again, and begin from the same states."""
        for update in self.log.of(self.place):
            self.rounds.slots.back(update.client)
        self.log.updates = [v for v in self.log.updates if v.place != self.place]
        yield from self._coming()

    def _holding(self, replies: Replies) -> Replies:
        """The replies; they are held as long as they are small."""
        for reply in replies:
            if self._held is not None:
                self._held.append(reply)
                self._bytes += sum(t.numel() * t.element_size() for t in tensors_in(reply.upload))
                if self._bytes > HELD:
                    self._held = None
            yield reply

    def _leave_out(self, client: ClientId, reason: str) -> None:
        """The server cannot take this client's reply: its client update does not count."""
        self.log.leave_out(next(v for v in self.log.of(self.place) if v.client == client), reason)
        self.rounds.slots.back(client)

    @property
    def _least(self) -> int:
        return needed(self.rounds.min_replies, len(self.cohort))

    def _check_enough(self) -> None:
        usable = len(self.log.of(self.place))
        if usable < self._least:
            reasons = "; ".join(f"client {q.client!r}: {q.reason.rstrip('.')}" for q in self.log.quarantined[:3])
            where = f"round {self.rounds.done + 1}, exchange '{self.exchange.name}'"
            raise RoundError(
                f"{where}: {usable} of {len(self.cohort)} clients returned a usable reply, at least "
                f"{self._least} needed. "
                f"{reasons}{'. ' if reasons else ''}Lower min_replies to require fewer."
            )


def needed(min_replies: float, asked: int) -> int:
    """How many of so many clients must answer: a whole number is a count, a fraction a share of them."""
    if isinstance(min_replies, int):
        return min_replies
    return max(1, math.ceil(min_replies * asked - 1e-9))


def received(
    outcome: Outcome, exchange: Exchange, state: object, sent: object, rows: int, limits: Limits = NO_LIMITS
) -> tuple[Wire, Any, Load]:
    """What travelled, the upload in it, and what that weighs; raises unless all of it can be used, for every method and
    on every engine.

    In this order: the frame, the number of samples (of a client with so many ``rows``), the client's own new state,
    the codec, finite numbers, what the record declares of its fields, and what the method's ``check`` knows of them.
    """
    wire = unpack(outcome.upload, limits=limits)
    if not isinstance(wire, Wire):
        raise ValueError("malformed: not an upload")
    if type(wire.samples) is not int or not 0 < wire.samples <= MOST_SAMPLES:
        raise ValueError(f"invalid weight: {shown(wire.samples)} samples")
    if wire.samples > rows > 0:
        raise ValueError(f"invalid weight: {wire.samples} samples of a client that has {rows}")
    if not outcome.sound:
        raise ValueError("non-finite numbers in the client's own state; try a smaller learning rate")
    upload = exchange.codec.decode(wire.upload, sent)
    if not (finite(tensors_in(upload)) and finite_scalars(upload)):
        raise ValueError("non-finite numbers in the upload; did training diverge? Try a smaller learning rate")
    check_declared(upload, exchange.upload)
    exchange.check(state, upload)
    limits.check_time()
    return wire, upload, load_of(exchange.uncoded(upload), wire.upload, outcome.upload, partial(Wire, wire.samples))


def words(error: Exception) -> str:
    """Why a reply was dropped, for the log; part of it may have come from the client."""
    known = isinstance(error, ValueError | FedquiltError) and str(error)
    reason = str(error) if known else f"{type(error).__name__}: {error}"
    return reason if len(reason) <= _LONGEST else reason[:_LONGEST] + "..."


def _check_cohort(asked: Iterable[ClientId], known: frozenset[ClientId]) -> None:
    """A client asked twice in one exchange would see two states on one engine and one on another."""
    seen: set[ClientId] = set()
    for client in asked:
        if client not in known:
            raise InputError(f"client {client!r} is selected, but is not in the federation.")
        if client in seen:
            raise InputError(f"client {client!r} is selected twice.")
        seen.add(client)
