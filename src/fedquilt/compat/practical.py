"""What goes wrong in practice, simulated: clients that join at random, uploads that get lost, slow clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from fedquilt.core.exchange import Context, Exchange, Method, Reply, at_random, unmoved
from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId, Site, in_order
from fedquilt.core.train import InTurn, Job, Train
from fedquilt.errors import InputError
from fedquilt.methods.on_base import OnBase

DELAY = 0.1  # seconds that one message on a slow line takes at most, as in PFLlib

S = TypeVar("S")
U = TypeVar("U")


@dataclass(frozen=True)
class joining:
    """Ask a random number of clients, from ``least`` up to all, drawn without replacement, anew each round."""

    least: int

    def __call__(self, state: object, ids: Sequence[ClientId], seed: Seed) -> Sequence[ClientId]:
        count = int(seed.fold("how many").numpy().integers(self.least, len(ids) + 1))
        return at_random(count)(state, ids, seed)


def some(rate: float, ids: Sequence[ClientId], seed: Seed) -> tuple[ClientId, ...]:
    """int(rate * N) of the clients."""
    drawn = seed.numpy().choice(len(ids), int(rate * len(ids)), replace=False)
    return in_order([ids[i] for i in drawn])


@dataclass(frozen=True, kw_only=True)
class Practical(OnBase):
    """A method in less than ideal conditions.

    Args:
        base: The method.
        join: If set, at least so many clients are asked, at random up to all.
        drop_rate: The share of a round's uploads that get lost, after the clients have worked.
        slow: Clients that do a random number of epochs, from 1 to half of them.
        late: Clients on slow lines: each message takes a random time up to ``DELAY`` seconds.
        patience: Uploads of clients whose messages take longer than this on average, in seconds, are left out. Only
            simulated time counts, so that results do not depend on the machine.
        seed: Of the simulated times.
    """

    base: Method
    join: int | None = None
    drop_rate: float = 0.0
    slow: tuple[ClientId, ...] = ()
    late: tuple[ClientId, ...] = ()
    patience: float = 10000.0
    seed: int = 0

    def plan(self, state: object, round: int) -> tuple[str, ...]:
        """As the base."""
        return self.base.plan(state, round)

    def exchanges(self) -> tuple[Exchange, ...]:
        """The base's."""
        return tuple(self._worse(e) for e in self.base.exchanges())

    def _worse(self, exchange: Exchange) -> Exchange:
        if self.join is not None and isinstance(exchange.cohort, at_random):
            exchange = replace(exchange, cohort=joining(self.join))
        work = exchange.work
        if exchange.up == unmoved:
            return exchange
        if not isinstance(work, Train | InTurn):
            if self.slow and exchange.name == "train":
                raise InputError("-tsr: this algorithm's local work has no epochs that could be fewer. Leave it out.")
            return exchange
        if self.drop_rate or self.late:
            exchange = replace(exchange, up=partial(self._up, exchange.up))
        if not self.slow:
            return exchange
        slowed = InTurn(tuple(map(self._slowed, work.works))) if isinstance(work, InTurn) else self._slowed(work)
        return replace(exchange, work=slowed)

    def _slowed(self, work: Train) -> Train:
        return replace(work, start=partial(self._start, work.start, work.epochs))

    def _start(
        self, begin: Callable[..., Job], epochs: int, download: object, client: object, site: Site, context: Context
    ) -> Job:
        job = begin(download, client, site, context)
        if context.client not in self.slow:
            return job
        most = max(1, (job.epochs or epochs) // 2)
        return replace(job, epochs=int(context.seed.fold("slow").numpy().integers(1, most + 1)))

    def _up(
        self, up: Callable[[S, Iterable[Reply[U]], Context], S], state: S, replies: Iterable[Reply[U]], context: Context
    ) -> S:
        heard = list(replies)
        count = int((1 - self.drop_rate) * len(heard))
        drawn = context.seed.fold("lost").numpy().choice(len(heard), count, replace=False)
        there = [heard[i] for i in sorted(drawn)]
        return up(
            state, iter([reply for reply in there if self.seconds(reply.client, context) <= self.patience]), context
        )

    def seconds(self, client: ClientId, context: Context) -> float:
        """The mean simulated time of the client's messages, two a round, up to this round."""
        if client not in self.late:
            return 0.0
        draws = Seed(self.seed).fold("delay", client).numpy().random(context.round + 1)
        return float(2 * DELAY * draws.mean())
