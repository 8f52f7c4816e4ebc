"""Every property of a method: a method that breaks it is found out, by that property, in words that help."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from typing import Any
from unittest import SkipTest

import pytest

from fedquilt.core.exchange import anything
from fedquilt.engines.workers import Workers
from fedquilt.methods.averaging.centralised import Centralised
from fedquilt.methods.compressed import Compressed
from fedquilt.methods.fedavg import Upload
from fedquilt.methods.on_base import OnBase
from fedquilt.pieces.optimizers import SGD
from fedquilt.testing import check_method, checks_of, fedavg, methods
from fedquilt.testing.faults import Corrupting
from fedquilt.testing.trial import Trial
from helpers.toy import digits

CALLS = count(1)
LAST: list[Any] = [0]


def moved(params: Any, by: float) -> Any:
    return {name: t + by if t.is_floating_point() else t for name, t in params.items()}


@dataclass(frozen=True, kw_only=True)
class Broken(OnBase):
    """FedAvg that does one thing it must not do."""

    base: Any
    what: str

    def init_server(self, seed: Any) -> Any:
        LAST[0] = 0
        return self.base.init_server(seed)

    def exchanges(self) -> Any:
        (train,) = self.base.exchanges()
        calls = count(1)

        def up(state: Any, replies: Any, context: Any) -> Any:
            if self.what == "keeps a counter":
                state = replace(state, shared=moved(state.shared, 0.001 * next(calls)))
            if self.what == "moves alone":
                state = replace(state, shared=moved(state.shared, 0.001))
            if self.what == "believes everything":
                replies = iter([r for r in replies if isinstance(r.upload, Upload) and self.fits(state, r.upload)])
            return self.base.up(state, replies, context)

        check = anything if self.what == "believes everything" else train.check
        return (replace(train, work=self.work, up=up, check=check),)

    def fits(self, state: Any, upload: Upload) -> bool:
        return [t.shape for t in upload.delta.values()] == [t.shape for t in state.shared.values()]

    def work(self, download: Any, client: Any, site: Any, context: Any) -> Any:
        (train,) = self.base.exchanges()
        client, upload = train.work(download, client, site, context)
        by = {
            "draws by itself": lambda: next(CALLS),
            "looks around": lambda: "FEDQUILT_WORKER" in os.environ,
            "knows who was before": lambda: context.client < LAST[0],
        }.get(self.what, lambda: 0)()
        LAST[0] = context.client
        return client, replace(upload, delta=moved(upload.delta, 0.001 * by))

    def predict(self, params: Any, batch: Any) -> Any:
        if self.what == "writes into models":
            params["head.bias"].add_(1)
        scores = self.base.predict(params, batch)
        return scores[:-1] if self.what == "forgets a row" else scores


@dataclass(frozen=True)
class Hiding:
    """A codec that makes 0 of NaN."""

    def encode(self, upload: Any, sent: Any, memory: Any, seed: Any) -> Any:
        return replace(upload, delta={n: t.nan_to_num() for n, t in upload.delta.items()}), memory

    def decode(self, wire: Any, sent: Any) -> Any:
        return wire


def broken(what: str) -> Callable[[], Any]:
    return lambda: Broken(base=fedavg(), what=what)


@pytest.mark.parametrize(
    ("name", "make", "told"),
    [
        ("stays_finite", lambda: Corrupting(base=fedavg(), client=2, kind="nan"), "Client 2 was left out of round 1"),
        ("learns", lambda: fedavg(optimizer=SGD(1e-9)), "Give the method settings with which it learns"),
        ("same_again", broken("draws by itself"), "Take all randomness from context.seed"),
        ("same_elsewhere", broken("looks around"), "keep something outside its states"),
        ("same_in_any_order", broken("knows who was before"), "depends on the order of client updates"),
        ("resumes", broken("keeps a counter"), "stopped and went on differs"),
        ("questions_change_nothing", broken("writes into models"), "predict changes the model"),
        ("questions_change_nothing", broken("forgets a row"), "predict gives a tensor of shape"),
        ("stays_without_replies", broken("moves alone"), "must return the state that it was given"),
        ("refuses_nan", lambda: Compressed(base=fedavg(), codec=Hiding()), "differs from the run without that client"),
        ("refuses_other_shapes", broken("believes everything"), "left no trace"),
        ("refuses_other_types", broken("believes everything"), "left no trace"),
        ("refuses_spoilt_fields", broken("believes everything"), "accepted. Declare the field's type"),
    ],
)
def test_a_broken_promise_is_found(name: str, make: Callable[[], Any], told: str, two_workers: Workers) -> None:
    (check,) = [c for c in checks_of(make(), engine=two_workers) if c.name == name]
    with pytest.raises(AssertionError, match=f"^{name}: .*{told}"):
        check()


def test_captured_steps_are_compared_with_plain_ones() -> None:
    other = Trial(fedavg(epochs=1), digits()).reference
    trial = Trial(fedavg(), digits(), memo={"reference": other})
    assert ["Captured steps differ" in said for said in methods.same_without_capture(trial)] == [True]
    plain = Trial(fedavg(objective=replace(fedavg().net, capture=False)), digits())
    with pytest.raises(SkipTest, match="none of its steps"):
        list(methods.same_without_capture(plain))


@dataclass
class NoRecord:
    delta: Any


@dataclass(frozen=True, kw_only=True)
class Loose(OnBase):
    """FedAvg whose uploads are no records."""

    base: Any

    def exchanges(self) -> Any:
        (train,) = self.base.exchanges()
        return (replace(train, work=lambda *given: (given[1], NoRecord({})), up=lambda state, *_: state),)


def test_the_report_names_every_check_that_fails_and_why() -> None:
    with pytest.raises(AssertionError) as caught:
        check_method(Loose(base=fedavg()), leave_out=["same_elsewhere"])
    said = str(caught.value)
    assert said.startswith("Loose: ")
    assert "failed  survives_packing" in said
    assert "NoRecord" in said
    assert caught.value.__cause__ is not None


def test_the_report_of_a_good_method(two_workers: Workers) -> None:
    report = check_method(fedavg(), engine=two_workers, leave_out=["refuses_spoilt_fields"])
    expected = [p.__name__ for p in methods.PROPERTIES if p.__name__ != "refuses_spoilt_fields"]
    assert list(report.named("passed")) == expected
    assert str(report).splitlines()[0] == "passed  stays_finite"


def test_a_method_with_pooled_data(two_workers: Workers) -> None:

    report = check_method(Centralised(objective=fedavg().net, optimizer=SGD(0.1)), engine=two_workers)
    assert report.named("skipped") == ("refuses_spoilt_fields",)


@pytest.mark.parametrize("check", checks_of(fedavg(), leave_out=["same_elsewhere", "refuses_spoilt_fields"]), ids=str)
def test_checks_as_parameters(check: Any) -> None:
    check()
