"""A user's network or loss is captured only where that changes nothing; and where it is not, nothing is missed."""

from __future__ import annotations

import logging
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedquilt.core.capture.steps import EAGER, SPACING
from fedquilt.core.net import Capture, Net
from fedquilt.core.objective import Objective
from fedquilt.core.seed import Seed
from fedquilt.engines.local import Local
from fedquilt.engines.workers import Workers
from fedquilt.errors import InputError
from fedquilt.methods.fedavg import FedAvg
from fedquilt.metrics.classify import classify
from fedquilt.models import MLP
from fedquilt.pieces.objectives import cross_entropy
from fedquilt.pieces.optimizers import SGD
from helpers import impure
from helpers.toy import digits, last, site_of, trained

IMPURE = [
    impure.Tempered,
    impure.TemperedAside,
    impure.TemperedByClass,
    impure.Coin,
    impure.Noisy,
    impure.Printing,
    impure.Buffered,
    impure.Peeking,
    impure.PeekingBehind,
    impure.hooked,
]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """What the impure ones leave behind is gone after each test, and the generators are where they were."""
    drawn, numbers = random.getstate(), np.random.get_state()
    yield
    begin()
    random.setstate(drawn)
    np.random.set_state(numbers)


def begin() -> None:
    impure.TemperedByClass.seen["calls"], impure.Numbered.made, impure.SCALE["by"] = 0, 0, 1.0
    impure.HEARD.clear()
    impure.CALLS.set(0)
    random.seed(7)
    np.random.seed(7)


def played(build: Any, capture: Capture, *terms: Any, engine: str = "local", rounds: int = 2) -> tuple[Any, Net]:
    """A short federated run, and the network it was made with."""
    begin()
    net = Net(build, capture=capture)
    method = FedAvg(objective=Objective(net, terms or (cross_entropy,)), optimizer=SGD(0.1, momentum=0.9), batch_size=8)
    with nullcontext(Local()) if engine == "local" else Workers(1) as chosen:
        return last(method, digits(clients=2), rounds=rounds, engine=chosen, score=classify), net


@pytest.mark.parametrize("engine", ["local", "workers"])
@pytest.mark.parametrize("build", IMPURE, ids=lambda b: b.__name__)
def test_what_is_not_pure_runs_as_without_capture(build: Any, engine: str):
    auto, net = played(build, "auto", engine=engine)
    plain, _ = played(build, False, engine=engine)
    assert auto.digest() == plain.digest()
    assert auto.metrics["test_accuracy"] == plain.metrics["test_accuracy"]
    assert net.captured_steps.bound == 0


@pytest.mark.parametrize("engine", ["local", "workers"])
@pytest.mark.parametrize("terms", [(), (impure.pure,)], ids=["library's loss", "user's loss"])
def test_what_is_pure_is_captured_and_gives_the_same(terms: tuple[Any, ...], engine: str):
    auto, net = played(impure.Small, "auto", *terms, engine=engine)
    assert auto.digest() == played(impure.Small, False, *terms, engine=engine)[0].digest()
    if engine == "local":
        assert net.captured_steps.bound > 0


def test_forward_is_reached_at_every_step():
    """The module of a schedule counts its calls; every step and every scoring is one."""
    calls = []
    for capture in ("auto", False):
        _, net = played(impure.Tempered, capture)
        calls.append(net.trait("calls"))
    assert calls[0] == calls[1] > 100


def test_prints_and_hooks_are_reached_at_every_step(capsys: pytest.CaptureFixture[str]):
    said, heard = [], []
    for capture in ("auto", False):
        played(impure.Printing, capture)
        said.append(capsys.readouterr().out.count("rows"))
        played(impure.hooked, capture)
        heard.append(len(impure.HEARD))
    assert said[0] == said[1] > 100
    assert heard[0] == heard[1] > 100


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (impure.Tempered, "Tempered.forward sets 'calls'"),
        (impure.TemperedAside, "a step changes TemperedAside.log"),
        (impure.TemperedByClass, "a step changes TemperedByClass.seen"),
        (impure.Coin, "Coin.forward uses random"),
        (impure.Noisy, "a generator of Python's or numpy's"),
        (impure.Printing, "Printing.tell calls print"),
        (impure.Buffered, "a step changes mean"),
        (impure.Peeking, "it reads a tensor's numbers by numpy()"),
        (impure.hooked, "a hook is registered on first"),
    ],
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_one_line_of_the_log_says_why(build: Any, why: str, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "fedquilt")
    played(build, "auto")
    (line,) = [r for r in caplog.records if "its steps are not captured" in r.message]
    assert why in line.message
    assert line.levelno == logging.INFO


def rows(count: int = 80) -> Any:
    draw = torch.Generator().manual_seed(3)
    return site_of(x=torch.randn(count, 64, generator=draw), y=torch.arange(count) % 10)


def test_a_global_that_changes_between_updates_is_seen_at_once(caplog: pytest.LogCaptureFixture):
    found = []
    for capture in ("auto", False):
        begin()
        net = Net(impure.Small, capture=capture)
        objective, params = Objective(net, (impure.scaled,)), net.init(Seed(0))
        for update in range(4):
            impure.SCALE["by"] = 1.0 if update < 2 else 3.0
            params = trained(objective, params, rows(), batch_size=8, lr=0.1).params
        found.append(params)
        assert net.captured_steps.bound == (3 if capture == "auto" else 0)
    assert all(torch.equal(found[0][n], found[1][n]) for n in found[0])
    (line,) = caplog.records
    assert "SCALE has changed" in line.message
    assert line.levelno == logging.WARNING


def by(scale: Callable[[], float]) -> Any:
    """A term made by a function around a value that it closes over."""

    def term(out: Tensor, *rest: Any) -> Tensor:
        return cross_entropy(out, *rest) * scale()

    return term


def test_a_closure_that_changes_later_is_seen():
    found = []
    for capture in ("auto", False):
        held = [1.0]
        net = Net(impure.Small, capture=capture)
        objective, params = Objective(net, (by(lambda held=held: held[0]),)), net.init(Seed(0))
        for update in range(4):
            held[0] = 1.0 if update < 2 else 3.0
            params = trained(objective, params, rows(), batch_size=8, lr=0.1).params
        found.append(params)
    assert all(torch.equal(found[0][n], found[1][n]) for n in found[0])


def scale() -> float:
    """A function that is put in another's place later."""
    return 1.0


class Scaled(impure.Small):
    """Calls it, and a method that is."""

    def by(self) -> float:
        return 1.0

    def forward(self, x: Tensor) -> Tensor:
        """Class scores."""
        return super().forward(x) * self.by() * scale()


@pytest.mark.parametrize("what", ["function", "method", "first of two closures"])
def test_what_is_put_in_another_place_is_seen(what: str, monkeypatch: pytest.MonkeyPatch):
    """As in a notebook, where a cell that defines a function is run again; two closures have one name."""
    found = []
    for capture in ("auto", False):
        held = [[1.0], [1.0]]
        terms = tuple(by(lambda own=own: own[0]) for own in held) if what.startswith("first") else (cross_entropy,)
        net = Net(Scaled, capture=capture)
        objective, params = Objective(net, terms), net.init(Seed(0))
        with monkeypatch.context() as patch:
            for update in range(4):
                if update == 2:
                    held[0][0] = 3.0
                    place = (Scaled, "by") if what == "method" else (sys.modules[__name__], "scale")
                    patch.setattr(*place, lambda *_: 3.0)
                params = trained(objective, params, rows(), batch_size=8, lr=0.1).params
        found.append(params)
        assert net.captured_steps.bound == (3 if capture == "auto" else 0)
    assert all(torch.equal(found[0][n], found[1][n]) for n in found[0])


@pytest.mark.parametrize("engine", ["local", "workers"])
def test_what_nobody_can_see_is_found_by_comparing_again(engine: str):
    """The loss changes with its 8th call: 5 plain steps, the recorded one, two compared: the second differs, and the
    run goes on from the plain result, as if nothing had been captured."""
    auto, net = played(impure.Small, "auto", impure.late(EAGER + 3), engine=engine)
    plain, _ = played(impure.Small, False, impure.late(EAGER + 3), engine=engine)
    assert auto.digest() == plain.digest()
    if engine == "local":
        assert net.captured_steps.bound == 1


def test_comparing_goes_on_and_one_line_says_what_was_found(caplog: pytest.LogCaptureFixture):
    """Compared are the 1st, 2nd, 4th, ..., 64th step that is played, and the 101st, which is the 14th call."""
    begin()
    net = Net(impure.Small)
    objective, params = Objective(net, (impure.late(EAGER + 1 + 8),)), net.init(Seed(0))
    trained(objective, params, rows(), batch_size=8, epochs=20)
    (line,) = caplog.records
    assert "differs from the plain one" in line.message
    assert line.levelno == logging.WARNING
    (known,) = net.captured_steps.known.values()
    assert known.refused
    assert known.played == SPACING
    calls = impure.CALLS.get()
    assert calls == 200 - (SPACING - 8)  # every step from there on
    trained(objective, params, rows(), batch_size=8, epochs=20)
    assert impure.CALLS.get() == calls + 200
    assert len(caplog.records) == 1


@pytest.mark.parametrize("build", [impure.Drawn, impure.Numbered, impure.Small], ids=lambda b: b.__name__)
def test_first_values_are_those_of_building_anew(build: Any):
    found = []
    for capture in ("auto", False):
        begin()
        net = Net(build, capture=capture)
        found.append([net.init(Seed(number)) for number in range(20)])
    for one, other in zip(*found, strict=True):
        assert all(torch.equal(one[n], other[n]) for n in one)


def test_first_values_of_a_pure_network_of_a_users_are_captured():
    net = Net(impure.Small)
    for number in range(20):
        net.init(Seed(number))
    assert net._cell["births"].captured_steps.bound > 0


def test_a_module_that_was_made_before_is_copied_as_it_is_now():
    module = impure.Small()
    net = Net(module)
    for number in range(20):
        module.head.bias.data.fill_(float(number))
        assert float(net.init(Seed(0))["head.bias"][0]) == number


def test_capture_can_be_forced_and_forbidden(monkeypatch: pytest.MonkeyPatch):
    assert played(impure.Printing, True)[1].captured_steps.bound > 0
    _, never = played(lambda: MLP(64, 10), False)
    assert never.captured_steps.bound == 0
    assert never._cell["births"].captured_steps.bound == 0
    monkeypatch.setenv("FEDQUILT_CAPTURE", "0")
    assert played(impure.Small, True)[1].captured_steps.bound == 0
    with pytest.raises(InputError, match="got 'sometimes'"):
        Net(impure.Small, capture="sometimes")  # type: ignore[arg-type]


def test_nothing_of_a_users_is_captured_while_somebody_traces(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    """A breakpoint in forward would be passed by. (A real trace function slows down everything else that runs.)"""
    net = Net(impure.Small)
    loss, weights = Objective(net, (cross_entropy,)), list(net.init(Seed(0)).values())
    with caplog.at_level(logging.INFO, "fedquilt"), monkeypatch.context() as patch:
        patch.setattr(sys, "gettrace", lambda: lambda *_: None)
        traced = net.captured_steps.update(loss, weights)
    assert traced.key is None
    assert [r.getMessage() for r in caplog.records if "its steps are" in r.getMessage()] == [
        "Small: its steps are not captured but made plainly: a debugger, or another trace function, is set, and may "
        "stop in them."
    ]
    assert net.captured_steps.update(loss, weights).key is not None


def test_forced_capture_is_still_compared():
    forced, _ = played(impure.Tempered, True)
    assert forced.digest() == played(impure.Tempered, False)[0].digest()


def test_hooks_for_all_modules_are_reached_also_in_the_librarys_networks():
    net = Net(lambda: MLP(64, 10))
    objective, params = Objective(net, (cross_entropy,)), net.init(Seed(0))
    trained(objective, params, rows(), batch_size=8, epochs=2)
    assert net.captured_steps.bound == 1
    heard: list[Any] = []
    hook = nn.modules.module.register_module_forward_hook(lambda module, given, out: heard.append(module))
    try:
        trained(objective, params, rows(), batch_size=8)
    finally:
        hook.remove()
    assert heard.count(net._resident().module) == 10
    trained(objective, params, rows(), batch_size=8)
    assert net.captured_steps.bound == 2


def test_containers_of_torch_are_captured_unless_somebody_listens():
    def build(listened: bool) -> nn.Module:
        module = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
        if listened:
            module[3].register_full_backward_hook(lambda *given: None)
        return module

    for listened in (False, True):
        net = Net(lambda listened=listened: build(listened))
        trained(Objective(net, (cross_entropy,)), net.init(Seed(0)), rows(), batch_size=8, epochs=2)
        assert (net.captured_steps.bound > 0) is not listened


def test_capturing_again_draws_nothing_more():
    """Dropout draws from torch's generator, in captured steps as in plain ones."""

    def build() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Dropout(0.5), nn.Linear(8, 10))

    found = []
    for capture in ("auto", False):
        net = Net(build, capture=capture)
        objective = Objective(net, (cross_entropy,))
        found.append(trained(objective, net.init(Seed(0)), rows(), batch_size=8, epochs=20, lr=0.1).params)
        assert (net.captured_steps.bound > 0) is (capture == "auto")
    assert all(torch.equal(found[0][n], found[1][n]) for n in found[0])


def test_the_setting_reaches_the_network_and_belongs_to_no_folder(tmp_path):
    data = digits(clients=2)
    methods = [FedAvg(objective=Net(impure.Small, capture=c), batch_size=8) for c in ("auto", False)]
    first = last(methods[0], data, rounds=2, folder=tmp_path)
    again = last(methods[1], data, rounds=3, folder=tmp_path)
    assert (first.round, again.round) == (2, 3)
    assert replace(methods[1].net, seed=1).capture is False
    assert again.digest() == last(methods[0], data, rounds=3).digest()
