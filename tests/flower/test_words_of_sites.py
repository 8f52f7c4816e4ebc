"""What is said of sites that come, go and come back: by name, since when, in which exchange, until when."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

pytest.importorskip("flwr")

from conformance.cases import CASES
from fedquilt.core.seed import Seed
from fedquilt.engines.flower.membership import called
from fedquilt.engines.flower.post import Patience, clock
from fedquilt.rounds.rounds import Rounds
from helpers.nodes import flower, grid

FEDAVG = next(case for case in CASES if case.name == "fedavg")
TIME = r"(\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d"


class Named:
    """As much of an introduction as a name takes."""

    def __init__(self, *clients: Any) -> None:
        self.clients, self.evaluated = dict.fromkeys(clients, 3), []


@pytest.mark.parametrize(
    ("clients", "name"),
    [
        (["oslo"], "site 'oslo'"),
        ([7], "site 7"),
        (["b", "a"], "the site of 'a', 'b'"),
        (["d", "c", "b", "a", "e"], "the site of 'a', 'b', 'c' and 2 more"),
        (["\x1b[31m" + "x" * 900], "site '\\x1b[31m" + "x" * 51 + "..."),
    ],
)
def test_a_site_is_called_by_its_clients(clients: list[Any], name: str) -> None:
    assert called(Named(*clients)) == name  # type: ignore[arg-type]


def test_a_site_that_goes_and_comes_back_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    over, notes = grid(FEDAVG.federation, 2), list[str]()
    engine = flower(over, note=notes.append)
    rounds = Rounds(FEDAVG.method, engine.gather(2), engine, Seed(0))
    name = engine.membership.called(12)
    assert sum(f"{name} is there, with" in note for note in notes) == 1
    assert "node 12" not in name
    rounds.play()
    looks, away = [0], over.nodes.pop(12)

    def rest(self: Patience, since: float) -> None:
        time.sleep(0.02)
        looks[0] += 1
        if looks[0] == 4:
            over.nodes[12] = away

    monkeypatch.setattr(Patience, "rest", rest)
    time.sleep(0.02)
    notes.clear()
    log = rounds.play()
    assert not log.quarantined
    told = [note for note in notes if name in note]
    assert len(told) == 2, notes
    assert re.fullmatch(
        rf"{re.escape(name)} is away since {TIME}, in exchange 'train' of round 2; it is waited for until {TIME}",
        told[0],
    )
    assert re.fullmatch(rf"{re.escape(name)} is back, after \d+ seconds", told[1])


def test_a_site_that_does_not_come_back_is_left_out_by_name() -> None:
    over, notes = grid(FEDAVG.federation, 2), list[str]()
    engine = flower(over, deadline=0.3, note=notes.append)
    rounds = Rounds(FEDAVG.method, engine.gather(2), engine, Seed(0))
    name = engine.membership.called(12)
    del over.nodes[12]
    time.sleep(0.02)
    log = rounds.play()
    assert log.quarantined
    assert f"{name} did not come back in time; its clients are left out of exchange 'train' of round 1" in notes
    assert not any("node 12 is gone" in note for note in notes)


def test_times_of_day() -> None:
    now = time.time()
    assert clock(now).count(":") == 2
    assert clock(now - 3 * 86400).startswith("20")
