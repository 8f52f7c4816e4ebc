"""Exchanges played by hand, without an engine or frames between the parts: every change of an argument shows."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fedquilt.core.exchange import Context, Exchange, Method, Reply
from fedquilt.core.lazy import LazyColumn
from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId, Source
from fedquilt.core.train import Job, Train, Trained
from fedquilt.errors import InputError
from fedquilt.records.record import pack
from fedquilt.rounds.client import one_thread


@dataclass
class PlayedExchange:
    """One exchange: what each part of it was given and gave."""

    exchange: Exchange
    state: object
    sent: list[object] = field(default_factory=list)
    before: list[object] = field(default_factory=list)
    after: list[object] = field(default_factory=list)
    uploads: list[object] = field(default_factory=list)
    next: object = None

    @property
    def values(self) -> tuple[object, ...]:
        """Every state and message."""
        return (self.state, self.next, *self.sent, *self.before, *self.after, *self.uploads)


@dataclass(frozen=True)
class Play:
    """All exchanges of a few rounds, and which functions changed an argument."""

    exchanges: tuple[PlayedExchange, ...]
    changed: tuple[str, ...]


@dataclass(frozen=True)
class WatchedFunction:
    """A function whose first arguments are compared before and after each call."""

    where: str
    function: Callable[..., Any]
    names: tuple[str, ...]
    found: list[str] = field(compare=False)

    def __call__(self, *arguments: object) -> Any:
        before = [mark(a) for a in arguments[: len(self.names)]]
        result = self.function(*arguments)
        for name, old, argument in zip(self.names, before, arguments, strict=False):
            if old != mark(argument):
                self.found.append(f"{self.where} changes its argument '{name}'. Return new records instead.")
        return result


def mark(value: object) -> str:
    """What changes if a value does: the hash of its frame, where it has one."""
    if isinstance(value, Job):
        value = [dict(value.params), {k: v for k, v in value.fixed.items() if isinstance(v, dict)}]
    elif isinstance(value, Trained):
        value = [value.params, value.gradient]
    try:
        return hashlib.sha256(pack(value, checksum=False)).hexdigest()
    except InputError:
        return ""  # not a record; nothing to compare


def watched(exchange: Exchange, found: list[str]) -> Exchange:
    """The exchange, with every function watched."""

    def watch(name: str, function: Callable[..., Any], *names: str) -> WatchedFunction:
        return WatchedFunction(f"exchange '{exchange.name}', {name}", function, names, found)

    work: Any = exchange.work
    if isinstance(work, Train):
        start = watch("start", work.start, "download", "client state")
        work = replace(work, start=start, finish=watch("finish", work.finish, "job", "trained", "client state"))
    work = watch("work", work, "download", "client state")
    return replace(
        exchange, down=watch("down", exchange.down, "state"), work=work, up=watch("up", exchange.up, "state")
    )


def played(method: Method, source: Source, rounds: int) -> Play:
    """A few rounds of the first two clients."""
    seed, found = Seed(3), list[str]()
    done: list[PlayedExchange] = []
    with one_thread():
        state = method.init_server(seed)
        clients = {c: method.init_client(seed.fold(c)) for c in source.ids[:2]}
        exchanges = {e.name: watched(e, found) for e in method.exchanges()}
        for round in range(rounds):
            for name in method.plan(state, round):
                context = Context(round, None, seed.fold(round, name), len(source.ids))
                last = work_through(exchanges[name], state, clients, source, context, found)
                state, clients = last.next, dict(zip(clients, last.after, strict=True))
                done.append(last)
    return Play(tuple(done), tuple(dict.fromkeys(found)))


def work_through(
    exchange: Exchange,
    state: object,
    clients: Mapping[ClientId, object],
    source: Source,
    context: Context,
    found: list[str],
) -> PlayedExchange:
    """One exchange with all of these clients, whose states are given."""
    played, replies = PlayedExchange(exchange, state), list[Reply[object]]()
    share = getattr(source, "columns_for_sharing", dict)
    columns = {name: t for name, t in share().items() if not isinstance(t, LazyColumn)}  # nobody can write to those
    data = mark(columns)
    for client, mine in clients.items():
        sent = exchange.down(state, client)
        site, kept = source.site(client, context.round), mark(state)
        after, upload = exchange.work(sent, mine, site, Context(context.round, client, context.seed.fold(client)))
        if (kept, data) != (mark(state), mark(columns)):
            found.append(f"exchange '{exchange.name}', work changes the server's state or the client's data.")
        played.sent.append(sent)
        played.before.append(mine)
        played.after.append(after)
        played.uploads.append(upload)
        replies.append(Reply(client, site.samples, upload))
    played.next = _heard(played, replies, context, found)
    return played


def _heard(played: PlayedExchange, replies: Iterable[Reply[object]], context: Context, found: list[str]) -> object:
    """The state after the replies, which must stay as they are."""
    given = [played.uploads, played.after, played.sent]
    before = [mark(values) for values in given]
    state = played.exchange.up(played.state, iter(replies), context)
    if before != [mark(values) for values in given]:
        found.append(f"exchange '{played.exchange.name}', up changes the uploads, or what they share with a client.")
    return state
