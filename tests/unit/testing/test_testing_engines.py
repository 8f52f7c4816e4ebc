"""Every property of an engine: ours keep it, and one that breaks it is found out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from fedquilt.core.table import ClientId
from fedquilt.engines.auto import Auto
from fedquilt.engines.lanes import Lanes
from fedquilt.engines.local import Local
from fedquilt.engines.workers import Workers
from fedquilt.errors import ExchangeError
from fedquilt.rounds.client import Task
from fedquilt.rounds.engine import Lost
from fedquilt.testing import check_engine
from fedquilt.testing.faults import Updates


@pytest.mark.parametrize("make", [Local, Auto, lambda: Workers(2)], ids=["local", "auto", "workers"])
def test_our_engines_keep_every_promise(make: Callable[[], Any]) -> None:
    assert set(check_engine(make()).named("skipped")) <= {"tells_of_lost_clients"}


def test_workers_lose_clients_and_say_so() -> None:
    assert "tells_of_lost_clients" in check_engine(Workers(1)).named("passed")


class Broken(Local):
    """Does one thing it must not do."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what, self.closed, self.runs = what, 0, 0

    def begin(self, *given: Any) -> None:
        self.runs += 1
        super().begin(*given)

    def updates(self, clients: Sequence[ClientId], task: Callable[[ClientId], Task]) -> Updates:
        for client in clients:
            try:
                asked = task(client)
                yield client, self.side.update(replace(asked, round=0) if self.what == "forgets the round" else asked)
            except ExchangeError as error:
                if self.what == "names nobody":
                    raise ExchangeError("", "", "", None, 0, "somebody failed") from error
                if self.what != "goes on":
                    yield client, Lost("it failed")

    def facts(self) -> dict[str, Any]:
        return {"engine": self} if self.what == "has no facts" else super().facts()

    def close(self) -> None:
        self.closed += 1
        if self.what == "closes once" and self.closed > 1:
            raise RuntimeError("it is closed")


@pytest.mark.parametrize(
    ("name", "what", "told"),
    [
        ("same_as_local", "forgets the round", "FedAvg: the digests are not those of 'local'"),
        ("tells_of_errors", "names nobody", "The error does not say where it happened"),
        ("tells_of_errors", "goes on", "left out were"),
        ("has_facts", "has no facts", "cannot be written as JSON"),
        ("closes_twice", "closes once", "it is closed"),
    ],
)
def test_a_broken_promise_is_found(name: str, what: str, told: str) -> None:
    with pytest.raises(AssertionError) as caught:
        check_engine(Broken(what))
    assert f"failed  {name}" in str(caught.value)
    assert told in str(caught.value)


def test_lanes_are_not_bit_identical_and_say_so_here() -> None:
    """They agree but for rounding; see ``tests/conformance/test_lanes_agree.py``."""
    with pytest.raises(AssertionError, match="failed  same_as_local"):
        check_engine(Lanes(2))
