"""What is read in a user's code, and what is seen of the values that it can reach."""

from __future__ import annotations

import collections
import itertools
import logging
import random
import time
from functools import partial
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedquilt.core.capture.marks import Marker
from fedquilt.core.capture.purity import own
from fedquilt.core.capture.reach import Reach
from fedquilt.core.net import Net
from fedquilt.core.objective import Objective
from fedquilt.core.seed import Seed
from fedquilt.models import MLP, FedAvgCNN
from fedquilt.pieces.objectives import cross_entropy, prox
from helpers import impure
from helpers.toy import site_of, trained

log = logging.getLogger(__name__)
COUNT = 0
STEPS = itertools.count()


def counts(out: Tensor, *_: Any) -> Tensor:
    global COUNT
    COUNT += 1
    return out.sum()


def stops(out: Tensor, *_: Any) -> Tensor:
    breakpoint()
    return out.sum()


def times(out: Tensor, *_: Any) -> Tensor:
    return out.sum() * time.time()


def times_by_name(out: Tensor, *_: Any) -> Tensor:
    return out.sum() * perf_counter()


def logs(out: Tensor, *_: Any) -> Tensor:
    log.info("%s", out.shape)
    return out.sum()


def hides(out: Tensor, *_: Any) -> Tensor:
    import random as hidden

    return out.sum() * hidden.random()


def listens(out: Tensor, *_: Any) -> Tensor:
    out.register_hook(print)
    return out.sum()


def inner(out: Tensor, *_: Any) -> Tensor:
    return sum((lambda t: print("x") or t)(t) for t in out)


def through(out: Tensor, *_: Any) -> Tensor:
    return stops(out)


def around() -> Any:
    seen = 0

    def term(out: Tensor, *_: Any) -> Tensor:
        nonlocal seen
        seen += 1
        return out.sum()

    return term


class Called:
    """An object that is a term."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, out: Tensor, *_: Any) -> Tensor:
        return self.note(out)

    def note(self, out: Tensor) -> Tensor:
        self.calls += 1
        return out.sum()


@pytest.mark.parametrize(
    ("term", "why"),
    [
        (counts, "counts sets 'COUNT'"),
        (stops, "stops calls breakpoint"),
        (times, "times uses time"),
        (times_by_name, "times_by_name uses time"),
        (logs, "uses logging"),
        (hides, "hides imports random"),
        (listens, "listens calls register_hook"),
        (inner, "inner calls print"),
        (through, "stops calls breakpoint"),
        (around(), "term sets 'seen'"),
        (Called(), "Called.note sets 'calls'"),
        (partial(through, 1), "stops calls breakpoint"),
        (Called().note, "Called.note sets 'calls'"),
    ],
    ids=lambda v: getattr(v, "__name__", type(v).__name__) if callable(v) else "",
)
def test_code_that_does_more_than_compute_is_known_by_its_text(term: Any, why: str):
    reach = Reach.of_loss(Objective(Net.of(nn.Linear, 2, 2), (cross_entropy, term)))
    assert reach.foreign
    assert why in (reach.refusal or "")


def computes(out: Tensor, *_: Any) -> Tensor:
    """Writes into what it made itself, and into attributes of locals."""
    made = torch.zeros_like(out)
    made[:, 0] = out[:, 0]
    held = SimpleNamespace()
    held.out = made
    return F.relu(held.out).sum() + np.pi * Halved.apply(out).sum()


class Halved(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.by = 0.5
        return x / 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * ctx.by


def test_code_that_only_computes_is_let_pass():
    reach = Reach.of_loss(Objective(Net.of(nn.Linear, 2, 2), (computes, impure.pure)))
    assert reach.foreign
    assert reach.refusal is None
    for module in (impure.Small(), nn.LSTM(3, 4), nn.TransformerEncoderLayer(8, 2, 16)):
        assert Reach.of_module(module).refusal is None


def test_the_librarys_own_is_known():
    net = Net.of(MLP, features=4, classes=2)
    assert not Reach.of_loss(Objective(net, (cross_entropy, prox(0.1)))).foreign
    assert own(FedAvgCNN())
    assert not own(nn.Sequential(nn.Linear(2, 2)))
    assert not own(impure.Small())
    patched = MLP(4, 2)
    patched.forward = lambda x: x  # type: ignore[method-assign]
    assert not own(patched)


def slotted() -> Any:
    class Slotted:
        __slots__ = ("value",)

    made = Slotted()
    made.value = 1
    return made


CHANGES: list[tuple[str, Any, Any]] = [
    ("a list", [1, 2], lambda v: v.append(3)),
    ("a dict", {"a": [1]}, lambda v: v["a"].append(2)),
    ("a set", {1, 2}, lambda v: v.add(3)),
    ("a deque", collections.deque([1], maxlen=1), lambda v: v.append(2)),
    ("an array", np.zeros(3), lambda v: v.__setitem__(0, 1.0)),
    ("a tensor", torch.zeros(3), lambda v: v.add_(1)),
    ("a tensor's data", torch.zeros(3), lambda v: v.data.add_(1)),
    ("a tensor by numpy", torch.zeros(3), lambda v: v.numpy().__setitem__(0, 1.0)),
    ("an object", SimpleNamespace(a=SimpleNamespace(b=1)), lambda v: setattr(v.a, "b", 2)),
    ("slots", slotted(), lambda v: setattr(v, "value", 2)),
    ("python's generator", random.Random(0), lambda v: v.random()),
    ("numpy's generator", np.random.default_rng(0), lambda v: v.random()),
    ("numpy's old generator", np.random.RandomState(0), lambda v: v.rand()),
    ("torch's generator", torch.Generator(), lambda v: torch.rand(1, generator=v)),
    ("a count", [itertools.count()], lambda v: next(v[0])),
    ("not a number", [float("nan")], lambda v: v.append(float("nan"))),
    ("a module aside", [nn.Linear(2, 2)], lambda v: v[0].weight.data.add_(1)),
    ("a cycle", (lambda loop: loop.append(loop) or loop)([]), lambda v: v.append(1)),
]


@pytest.mark.parametrize(("value", "change"), [c[1:] for c in CHANGES], ids=[c[0] for c in CHANGES])
def test_marks_are_equal_until_something_changes(value: Any, change: Any):
    before = Marker().mark(value)
    assert Marker().mark(value) == before
    change(value)
    assert Marker().mark(value) != before


def test_what_cannot_be_looked_into_is_noted():
    for value in (impure.CALLS, memoryview(b"abc")):
        marker = Marker()
        marker.mark([value])
        assert marker.opaque
    marker = Marker()
    marker.mark({"it": iter([1, 2])})
    assert marker.moves
    marker = Marker()
    marker.mark(list(range(50_000)))
    assert marker.full


class Constant(impure.Small):
    """Holds a plain tensor, an array and settings, none of which changes."""

    def __init__(self) -> None:
        super().__init__()
        self.shift, self.table, self.settings = torch.linspace(0, 1, 10), np.ones(3), {"by": [0.5, 2]}

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.settings["by"][1] + self.shift


class Stepped(impure.Small):
    """Asks an iterator of its module's file."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1 if next(STEPS) < 7 else 2)


class Holding(impure.Small):
    """Holds something that nobody can look into."""

    def __init__(self) -> None:
        super().__init__()
        self.view = memoryview(b"abc")


class Guided(impure.Small):
    """Its dropout fades with every call."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        layer = self.drop
        layer.p = layer.p * 0.9
        return layer(super().forward(x))


@pytest.mark.parametrize(
    ("build", "captured"),
    [(Constant, True), (Stepped, False), (Holding, False), (Guided, False), (lambda: nn.Sequential(Constant()), True)],
)
def test_only_what_stays_as_it_is_is_captured_and_all_give_the_same(build: Any, captured: bool):
    found = []
    for capture in ("auto", False):
        globals()["STEPS"] = itertools.count()
        net = Net(build, capture=capture)
        rows = site_of(x=torch.randn(80, 64, generator=torch.Generator().manual_seed(0)), y=torch.arange(80) % 10)
        found.append(trained(Objective(net, (cross_entropy,)), net.init(Seed(0)), rows, batch_size=8, epochs=2, lr=0.1))
        assert (net.captured_steps.bound > 0) is (captured and capture == "auto")
    assert all(torch.equal(found[0].params[n], found[1].params[n]) for n in found[0].params)


class Taught:
    """Draws class scores towards another network's, which has its own way of changing."""

    def __init__(self, teacher: Net) -> None:
        self.teacher, self.values = teacher, teacher.init(Seed(1))

    def __call__(self, out: Tensor, params: Any, fixed: Any, batch: Any) -> Tensor:
        with torch.no_grad():
            wanted = self.teacher(self.values, batch)
        return (out - wanted).square().mean()


@pytest.mark.parametrize(("teacher", "captured"), [(impure.Small, True), (impure.Tempered, False)])
def test_other_networks_that_a_loss_calls_are_watched_too(teacher: Any, captured: bool):
    net = Net.of(MLP, features=64, classes=10)
    rows = site_of(x=torch.randn(80, 64, generator=torch.Generator().manual_seed(0)), y=torch.arange(80) % 10)
    objective = Objective(net, (cross_entropy, Taught(Net(teacher))))
    trained(objective, net.init(Seed(0)), rows, batch_size=8, epochs=2, lr=0.1)
    assert (net.captured_steps.bound > 0) is captured
