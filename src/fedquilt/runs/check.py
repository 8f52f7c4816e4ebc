"""Is a method well-behaved? Reproducible, without side effects, and the same in other processes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from fedquilt.core.errors import FedquiltError, InputError
from fedquilt.core.exchange import Exchange, Method
from fedquilt.core.record import pack
from fedquilt.core.seed import Seed
from fedquilt.core.train import Job, Train, Trained
from fedquilt.engines.engine import Engine
from fedquilt.engines.local import Local
from fedquilt.engines.rounds import Rounds
from fedquilt.engines.workers import Workers
from fedquilt.methods.on_base import OnBase


def check(method: Method, federation: Any, *, rounds: int = 2, workers: bool = True) -> list[str]:
    """What is wrong with a method, found by running it: an empty list when nothing is.

    It is run twice here (the results must be equal), once with every argument hashed before and after each of its
    functions (none may change), and once in a worker process (the result must be the same).

    Args:
        method: The method to check.
        federation: Small data are enough.
        rounds: How many rounds each time; enough to reach every exchange.
        workers: Whether to start a worker process too.
    """
    first, second = (_digest(method, federation, rounds, Local()) for _ in range(2))
    problems = []
    if first != second:
        problems.append("Two runs with one seed differ. Take all randomness from turn.seed or the seed you are given.")
    watched = _Watched(method)
    _digest(watched, federation, rounds, Local())
    problems += list(dict.fromkeys(watched.found))
    if workers and not problems:
        problems += _elsewhere(method, federation, rounds, first)
    return problems


def _elsewhere(method: Method, federation: Any, rounds: int, expected: str) -> list[str]:
    with Workers(1) as engine:
        try:
            found = _digest(method, federation, rounds, engine)
        except FedquiltError as error:
            return [f"It does not run in another process: {error}"]
    same = "The result in another process differs. Does the method keep something outside its states?"
    return [] if found == expected else [same]


def _digest(method: Method, federation: Any, rounds: int, engine: Engine) -> str:
    source = federation.pooled() if getattr(method, "pools_data", False) else federation
    run = Rounds(method, source, engine, Seed(0))
    for _ in range(rounds):
        run.play()
    return run.digest()


class _Watched(OnBase):
    """A method whose functions are watched."""

    def __init__(self, base: Method) -> None:
        self.base, self.found = base, list[str]()

    def plan(self, state: Any, round: int) -> tuple[str, ...]:
        """As the base."""
        names: tuple[str, ...] = self.base.plan(state, round)
        return names

    def exchanges(self) -> tuple[Exchange, ...]:
        """As the base, each function watched."""
        return tuple(self._watch(exchange) for exchange in self.base.exchanges())

    def _watch(self, exchange: Exchange) -> Exchange:
        def watched(name: str, function: Callable[..., Any], *names: str) -> _Watch:
            return _Watch(f"exchange '{exchange.name}', {name}", function, names, self.found)

        work: Any = exchange.work
        if isinstance(work, Train):
            start = watched("start", work.start, "download", "client state")
            finish = watched("finish", work.finish, "job", "trained", "client state")
            work = replace(work, start=start, finish=finish)
        else:
            work = watched("work", work, "download", "client state")
        down, up = watched("down", exchange.down, "state"), watched("up", exchange.up, "state")
        return replace(exchange, down=down, work=work, up=up)


@dataclass(frozen=True)
class _Watch:
    where: str
    function: Callable[..., Any]
    names: tuple[str, ...]
    found: list[str] = field(compare=False)

    def __call__(self, *arguments: Any) -> Any:
        before = [_mark(a) for a in arguments[: len(self.names)]]
        result = self.function(*arguments)
        for name, old, argument in zip(self.names, before, arguments, strict=False):
            if old != _mark(argument):
                self.found.append(f"{self.where} changes its argument '{name}'. Return new records instead.")
        return result


def _mark(value: Any) -> str:
    if isinstance(value, Job):
        value = [dict(value.params), {k: v for k, v in value.fixed.items() if isinstance(v, dict)}]
    elif isinstance(value, Trained):
        value = [value.params, value.gradient]
    try:
        return hashlib.sha256(pack(value, checksum=False)).hexdigest()
    except InputError:
        return ""  # not a record; nothing to compare
