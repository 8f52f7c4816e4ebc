"""Attackers in simulations, and checks of a cohort's replies."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedquilt import Attackers, CohortChecks, FedAvg, Federation, Net, run
from fedquilt.core.exchange import Reply
from fedquilt.core.seed import Seed
from fedquilt.data import IID
from fedquilt.errors import InputError, SnapshotError
from fedquilt.methods.fedavg import Upload
from fedquilt.models import MLP
from fedquilt.pieces.robust import median
from fedquilt.pieces.robust.attacks import sign_flip
from fedquilt.pieces.robust.cohort import Reputation

ATTACKERS = Attackers(sign_flip(factor=10.0), clients=0.2)


def federation() -> Federation:
    return Federation.from_source("digits", partition=IID(), clients=10)


def method(**settings: Any) -> FedAvg:
    return FedAvg(Net.of(MLP, features=64, classes=10, hidden=()), batch_size=5, **settings)


def played(rounds: int = 3, engine: str = "local", **settings: Any) -> Any:
    base = settings.pop("method", method())
    *_, last = run(base, federation(), rounds=rounds, engine=engine, processes=2, **settings)
    return last


def replies(n: int, seed: int, *odd: np.ndarray) -> list[Reply]:
    draw = np.random.default_rng(seed)
    honest = draw.normal(size=(n, 50)) + 1.0
    lengths = np.exp(draw.normal(size=(n, 1)) * 0.3)
    vectors = [*(honest * lengths), *odd]
    return [Reply(i, 10, Upload({"w": torch.tensor(v)})) for i, v in enumerate(vectors)]


def test_attackers_spoil_the_mean_and_checks_leave_them_out(tmp_path: Path) -> None:
    fine, spoilt = played(), played(attackers=ATTACKERS)
    held = played(attackers=ATTACKERS, checks=CohortChecks(), folder=tmp_path / "run")
    assert fine.metrics["test_accuracy"] > 0.8
    assert spoilt.metrics["test_accuracy"] < 0.5
    assert held.metrics["test_accuracy"] > fine.metrics["test_accuracy"] - 0.05
    rows = [json.loads(line) for line in (tmp_path / "run/dropped.jsonl").read_text().splitlines()]
    attackers = ATTACKERS.among(range(10), Seed(0))
    assert len(attackers) == 2
    assert {row["client"] for row in rows} >= attackers
    assert sum(row["client"] in attackers for row in rows) == 6
    assert all("deviations" in row["reason"] and "limit" in row["reason"] for row in rows)


def test_robust_rules_hold_too() -> None:
    held = played(attackers=ATTACKERS, method=method(aggregate=median()))
    assert held.metrics["test_accuracy"] > 0.7


def test_engines_agree_and_a_run_goes_on(tmp_path: Path) -> None:
    checks = CohortChecks(strikes=2, suspended=2, most_share=0.15)
    whole = played(5, attackers=ATTACKERS, checks=checks).digest()
    assert played(5, "workers", attackers=ATTACKERS, checks=checks).digest() == whole
    for count, _ in enumerate(
        run(method(), federation(), rounds=5, folder=tmp_path, attackers=ATTACKERS, checks=checks), 1
    ):
        if count == 3:
            break
    assert played(5, attackers=ATTACKERS, checks=checks, folder=tmp_path).digest() == whole
    with pytest.raises(SnapshotError, match="another method, seed"):
        played(5, checks=checks, folder=tmp_path)  # another run


def test_honest_cohorts_rarely_lose_a_reply() -> None:
    """The declared rate holds for log-normal lengths: of 150 rounds at 10 %, 15 with a deviation of 4."""
    for n in (6, 20):
        for checks in (CohortChecks(false_alarms=0.1), CohortChecks(false_alarms=0.1, direction=False)):
            alarms = sum(bool(checks.judge(replies(n, seed))) for seed in range(150))
            assert 2 < alarms < 28


@pytest.mark.parametrize("lie", [np.full(50, 1e3), np.full(50, -1.0)])
def test_what_stands_out_is_found(lie: np.ndarray) -> None:
    found = [CohortChecks().judge(replies(12, seed, lie)) for seed in range(20)]
    assert all(12 in odd for odd in found)
    assert sum(len(odd) for odd in found) < 30


def test_short_changes_and_small_cohorts_are_left_alone() -> None:
    assert CohortChecks(direction=False).judge(replies(12, 0, np.full(50, 1e-9))) == {}
    assert CohortChecks().judge(replies(2, 0, np.full(50, 1e9))) == {}
    same = [Reply(i, 10, Upload({"w": torch.ones(5)})) for i in range(8)]
    assert CohortChecks().judge(same) == {}


def test_nobody_weighs_more_than_the_share() -> None:
    cohort = [Reply(i, n, Upload({"w": torch.ones(1)})) for i, n in enumerate([10, 20, 30, 10_000])]
    kept, told = CohortChecks(most_share=0.4).capped(cohort)
    assert [r.samples for r in kept] == [10, 20, 30, 40]
    assert told == {3: "counts as 40 samples instead of 10000: nobody has more than 0.4"}
    for share in (0.25, 0.1):  # what four clients cannot keep to is kept to as nearly as can be
        assert [r.samples for r in CohortChecks(most_share=share).capped(cohort)[0]] == [10, 10, 10, 10]


def test_who_stands_out_again_and_again_is_suspended_for_a_while() -> None:
    checks, known = CohortChecks(strikes=2, suspended=3), Reputation({})
    for round, odd in enumerate((True, False, True, True)):
        assert known.suspended("a", round) is None
        known.note({"a": odd, "b": False}, checks, round)
    assert [bool(known.suspended("a", r)) for r in range(4, 8)] == [True, True, True, False]
    assert Reputation(json.loads(json.dumps(known.past))).suspended("a", 4) == known.suspended("a", 4)
    assert known.suspended("b", 4) is None


def test_an_exchange_that_cannot_be_judged_forgives_nobody() -> None:
    """A method of several exchanges: only some of them have changes, and cohorts may be small."""
    checks, past, odd = CohortChecks(strikes=3), dict[str, Any](), dict[Any, str]()
    liar = np.full(50, 1e4)
    for round in range(3):
        counts = [Reply(i, 10, object()) for i in range(11)]
        for heard in (counts, replies(10, round, liar), replies(2, round, liar)):
            found = checks.sift([*heard[:-1], replace(heard[-1], client=-1)], past, round)
            odd, past = found.odd, found.past
    assert "suspended until round 13: its replies stood out in 3 rounds in a row" in odd[-1]


def test_attackers_are_named_or_drawn() -> None:
    assert Attackers(sign_flip(), clients=(3, 7)).among(range(10), Seed(0)) == {3, 7}
    assert Attackers(sign_flip(), clients=0.3).among(range(10), Seed(0)) == Attackers(sign_flip(), clients=0.3).among(
        range(10), Seed(0)
    )
    with pytest.raises(InputError, match="no client is called 11"):
        Attackers(sign_flip(), clients=(11,)).among(range(10), Seed(0))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Attackers(sign_flip(), clients=1.0),
        lambda: CohortChecks(false_alarms=0.0),
        lambda: CohortChecks(most_share=0.0),
        lambda: CohortChecks(strikes=0),
        lambda: CohortChecks(suspended=0),
    ],
)
def test_what_cannot_be(wrong: Any) -> None:
    with pytest.raises(InputError):
        wrong()
