"""Short client updates and evaluations go to workers several in a message; nothing else changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedquilt.core.params import Parts, everything_but, under
from fedquilt.core.seed import Seed
from fedquilt.engines import workers
from fedquilt.engines import workers as groups
from fedquilt.engines.worker import Several, several
from fedquilt.engines.workers import Pace, Workers, grouped
from fedquilt.errors import ExchangeError, WorkerError
from fedquilt.metrics.classify import classify
from fedquilt.records.record import equal
from fedquilt.rounds.client import Evaluation
from fedquilt.rounds.rounds import Rounds
from helpers.sabotage import Deadly, Failing, Without
from helpers.toy import fedavg, last, points

MANY = points(*[8] * 24)
PRIVATE = fedavg(parts=Parts(shared=everything_but(under("bias")), private=under("bias")))


@given(st.integers(0, 200), st.integers(1, 16), st.integers(1, 9))
def test_groups_hold_everybody_once_in_order_and_end_small(count: int, most: int, crew: int) -> None:
    found = grouped(range(count), most, crew)
    assert [one for group in found for one in group] == list(range(count))
    sizes = [len(group) for group in found]
    assert all(1 <= size <= most for size in sizes)
    left = count
    for size in sizes:
        assert size == 1 or size <= left / (2 * crew)  # so much work is left that others have something too
        left -= size


def test_a_message_brings_enough_work() -> None:
    pace = Pace()
    assert pace.together == 1  # nothing is known yet
    pace.add(0.5 * groups.GRAIN, 1)
    assert pace.together == 2
    pace.add(7.5 * groups.GRAIN, 3)
    assert pace.together == 1
    short = Pace()
    short.add(1e-6, 1)
    assert short.together == groups.MOST


def test_what_all_have_in_common_is_sent_once() -> None:
    down, whole, other = b"down", b"whole", b"other"
    evaluations = [Evaluation(c, down, None, whole, ("test",)) for c in (1, 2)]
    evaluations += [Evaluation(3, other, None, None, ("test",)), Evaluation(4, down, None, other, ("test",))]
    found = several(evaluations)
    assert isinstance(found, Several)
    assert (found.down, found.whole) == (down, whole)
    assert [(p.down, p.whole) for p in found.parts] == [(None, b""), (None, b""), (other, None), (None, other)]
    assert several(evaluations[:1]) is evaluations[0]


@pytest.fixture
def messages(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many parts each message to a worker had."""
    sent: list[int] = []

    def spied(parts: Any) -> Any:
        sent.append(len(parts))
        return several(parts)

    monkeypatch.setattr(workers, "several", spied)
    return sent


def test_short_updates_and_evaluations_share_messages_to_the_same_bits(
    two_workers: Workers, messages: list[int]
) -> None:
    alone = last(PRIVATE, MANY, rounds=4, score=classify)
    shared = last(PRIVATE, MANY, rounds=4, engine=two_workers, score=classify)
    assert shared.digest() == alone.digest()
    assert equal(shared.evaluations, alone.evaluations)
    assert max(messages) > 2
    assert len(messages) < 4 * 2 * 24


def test_of_a_group_that_kills_its_worker_only_the_one_is_left_out() -> None:
    with Workers(2) as engine:
        snapshot = last(Deadly(base=PRIVATE, client=1), MANY, rounds=2, engine=engine)
    (quarantine,) = snapshot.log.quarantined
    assert quarantine.client == 1
    assert "twice during this client update" in quarantine.reason
    assert snapshot.digest() == last(Without(base=PRIVATE, client=1), MANY, rounds=2).digest()


@pytest.mark.parametrize("stage", ["start", "finish"])
def test_of_a_group_that_fails_the_one_is_named(
    stage: str, two_workers: Workers, monkeypatch: pytest.MonkeyPatch, messages: list[int]
) -> None:
    monkeypatch.setattr(Pace, "together", 4)
    odd = points(8, 8, 9, *[8] * 21)
    with pytest.raises(ExchangeError) as caught:
        last(Failing(base=PRIVATE, stage=stage, client=2, rows=9), odd, rounds=1, engine=two_workers)
    assert max(messages) == 4
    assert (caught.value.client, caught.value.stage) == (2, stage)
    assert last(fedavg(), MANY, engine=two_workers).digest() == last(fedavg(), MANY).digest()


@pytest.mark.parametrize("inner", [1, None])
def test_a_failure_within_names_the_client_that_was_visited(
    inner: int | None, two_workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody's own run inside a score may fail at a client of its own."""
    monkeypatch.setattr(Pace, "together", 4)
    with pytest.raises(WorkerError, match=r"client 2: odd"):
        last(fedavg(), points(8, 8, 9, *[8] * 21), rounds=1, engine=two_workers, score=Within(inner))


@dataclass(frozen=True)
class Within:
    """A score that fails at one client with another's name."""

    client: int | None

    def __call__(self, predict: Any, params: Any, table: Any) -> Any:
        """Fails."""
        if len(table) == 9:
            raise ExchangeError("M", "train", "work", self.client, 0, "odd")
        return classify(predict, params, table)


def test_a_lost_group_holds_nobody_else_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clients before it are heard at once, and those behind it as they come, however many there are."""
    monkeypatch.setattr(Pace, "together", 8)
    monkeypatch.setattr(workers, "_WINDOW", 16)
    many = points(*[8] * 120)
    heard: list[int] = []
    most = 0
    with Workers(2) as engine:
        rounds = Rounds(Deadly(base=PRIVATE, client=3), many, engine, Seed(0))
        real = engine._collect

        def collect(worker: Any) -> Any:
            nonlocal most
            answer = real(worker)
            held = len(answer.result) if answer is not None and isinstance(answer.result, tuple) else 1
            heard.append(held)
            most = max(most, sum(heard) - len(told))
            return answer

        told: list[int] = []
        monkeypatch.setattr(engine, "_collect", collect)
        rounds.heard = lambda state, round, reply: told.append(reply.client)
        log = rounds.play()
    assert [q.client for q in log.quarantined] == [3]
    assert told == [c for c in range(120) if c != 3]
    assert most < 100  # not all that came were held until the end


def test_all_of_many_workers_have_something_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pace, "together", groups.MOST)
    most = 0
    real = Workers._give

    def give(self: Workers, waiting: Any, what: Any) -> None:
        nonlocal most
        real(self, waiting, what)
        most = max(most, sum(bool(worker.jobs) for worker in self._workers))

    monkeypatch.setattr(Workers, "_give", give)
    with Workers(6) as engine:
        last(fedavg(), points(*[8] * 600), rounds=1, engine=engine)
    assert most == 6


def test_a_closed_engine_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Workers(1)
    rounds = Rounds(fedavg(), MANY, engine, Seed(0))
    half = engine.evaluations(MANY.ids, lambda client: Evaluation(client, None, None, None, ()))
    engine.close()
    with pytest.raises(WorkerError, match="closed"):
        rounds.play()
    with pytest.raises(WorkerError, match="closed"):
        next(half)


def odd_score(predict: Any, params: Any, table: Any) -> Any:
    """Fails at one client."""
    if len(table) == 9:
        raise ZeroDivisionError("odd")
    return classify(predict, params, table)


def test_of_a_group_whose_evaluation_fails_the_one_is_named(
    two_workers: Workers, monkeypatch: pytest.MonkeyPatch, messages: list[int]
) -> None:
    monkeypatch.setattr(Pace, "together", 4)
    with pytest.raises(WorkerError, match=r"client 2: ZeroDivisionError: odd"):
        last(fedavg(), points(8, 8, 9, *[8] * 21), rounds=1, engine=two_workers, score=odd_score)
    assert max(messages) == 4
