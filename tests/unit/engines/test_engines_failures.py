"""A failure names the method, the exchange, the stage, the client and the round, on every engine."""

from __future__ import annotations

import pytest

from fedquilt.engines.local import Local
from fedquilt.errors import ExchangeError, RoundError
from helpers.sabotage import Failing
from helpers.toy import fedavg, last, points

TOY = points(10, 20, 30)  # client 1 is known by its 20 rows where its id is not told


@pytest.fixture(params=["local", "workers"])
def engine(request):
    return Local() if request.param == "local" else request.getfixturevalue("two_workers")


@pytest.mark.parametrize("error", ["foreign", "own"])
@pytest.mark.parametrize(
    ("stage", "client"), [("cohort", None), ("down", 1), ("start", 1), ("objective", 1), ("finish", 1), ("up", None)]
)
def test_a_failure_says_where(engine, stage, client, error):
    """A KeyError, and an InputError of the library itself: the user needs the place of both."""
    with pytest.raises(ExchangeError) as caught:
        last(Failing(base=fedavg(), stage=stage, client=1, rows=20, error=error), TOY, engine=engine)
    failure = caught.value
    assert (failure.method, failure.exchange, failure.stage) == ("Failing", "train", stage)
    assert (failure.client, failure.round) == (client, 0)
    kind = "InputError" if error == "own" else "KeyError"
    who = "" if client is None else f", client {client}"
    assert str(failure).startswith(f"Failing, exchange 'train', stage '{stage}'{who}, round 1: {kind}: ")
    assert "boom" in failure.reason
    far = engine.name == "workers" and stage in ("start", "objective", "finish")
    assert ("Where it happened in the worker" in str(failure)) == far
    assert ("sabotage.py" in failure.trace) == far


def test_a_failing_check_is_the_client_s_fault_and_only_quarantines(engine):
    with pytest.raises(
        RoundError,
        match=r"0 of 3 clients.*client 0: KeyError: 'boom'; client 1: KeyError: 'boom'; client 2: KeyError: 'boom'",
    ):
        last(Failing(base=fedavg(), stage="check", client=1, rows=20), TOY, engine=engine)


def test_an_engine_serves_the_next_run_after_a_failure(engine):
    """The answers still under way when a run fails must not be taken for those of the next."""
    clean = last(fedavg(), TOY).digest()
    for stage in ("start", "down", "up", "finish"):
        with pytest.raises(ExchangeError):
            last(Failing(base=fedavg(), stage=stage, client=1, rows=20), TOY, engine=engine)
        assert last(fedavg(), TOY, engine=engine).digest() == clean
