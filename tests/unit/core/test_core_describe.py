"""Describing objects as data and building them again."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from fedquilt.core.describe import build, describe, find
from fedquilt.core.exchange import at_random, fraction
from fedquilt.core.net import Net
from fedquilt.core.params import Parts, everything_but, under
from fedquilt.core.seed import Seed
from fedquilt.errors import InputError
from fedquilt.methods.averaging.centralised import Centralised
from fedquilt.methods.averaging.fedavg_noise import FedAvgNoise
from fedquilt.methods.averaging.fedprox import FedProx
from fedquilt.pieces.aggregators import uniform_mean
from fedquilt.pieces.optimizers import AdamW
from fedquilt.pieces.schedules import cosine
from fedquilt.records.record import pack, unpack
from helpers.sketches import IFCA
from helpers.toy import Normed, fedavg, linear


class Factory:
    @classmethod
    def pretrained(cls, width: int = 3) -> nn.Module:
        return nn.Linear(width, 2)

    @staticmethod
    def plain() -> nn.Module:
        return nn.Linear(1, 1)

    def bound(self) -> None: ...


@dataclass(frozen=True)
class Choice:
    rule: Any
    extra: Any = None


def through_the_wire(value: Any) -> Any:
    return build(unpack(pack(describe(value))))


HEAD = Parts(shared=everything_but(under("head")), private=under("head"))
METHODS = {
    "fedavg": fedavg(parts=HEAD, optimizer=AdamW(0.1), schedule=cosine(5), cohort=fraction(0.5), clip=1.0),
    "fedprox": FedProx(linear(), mu=0.3, steps=4),
    "noise": FedAvgNoise(linear(), noise=0.1, cohort=at_random(2)),
    "centralised": Centralised(objective=linear(), epochs=3),
    "ifca": IFCA(base=fedavg(), clusters=3),
}


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_a_method_is_rebuilt_equal(method):
    """Equal settings, all the way down; nets compare by what they are built from."""
    again = through_the_wire(method)
    assert type(again) is type(method)
    assert describe(again) == describe(method)
    assert repr(again) == repr(method)


def test_a_net_is_rebuilt_with_all_its_settings():
    net = Net(partial(Normed, width=3), frozen=under("bn"), channels_last=False, inputs=("z",), seed=4)
    again = through_the_wire(net)
    assert (again.frozen, again.channels_last, again.inputs, again.seed) == (under("bn"), False, ("z",), 4)
    assert again.names == net.names
    assert torch.equal(again.init(Seed(0))["first.weight"], net.init(Seed(0))["first.weight"])


def test_partials_classmethods_staticmethods_and_values():
    value = {
        "p": partial(nn.Linear, 3, out_features=2),
        "c": Factory.pretrained,
        "s": Factory.plain,
        "f": uniform_mean,
        "k": nn.Linear,
        ("t", 1): [1, 2.5, None, True, b"x", (1, [2])],
        3: {"make": "text", "name": "text"},
    }
    again = through_the_wire(value)
    assert (again["p"].func, again["p"].args, again["p"].keywords) == (nn.Linear, (3,), {"out_features": 2})
    assert again["c"](width=7).in_features == 7
    assert again["s"] is Factory.plain
    assert (again["f"], again["k"]) == (uniform_mean, nn.Linear)
    assert again[("t", 1)] == value[("t", 1)]
    assert again[3] == value[3]


def test_a_tensor_travels_as_it_is():
    t = torch.arange(3)
    assert torch.equal(through_the_wire(Choice(len, t)).extra, t)


def closure() -> Any:
    def inner() -> None: ...

    return inner


@pytest.mark.parametrize(
    ("value", "path", "what"),
    [
        (fedavg(cohort=lambda state, ids, seed: ids), r"method\.cohort", "'<lambda>'"),
        (fedavg(schedule=closure()), r"method\.schedule", r"closure\.<locals>\.inner"),
        (fedavg(parts=Parts(shared=everything_but(closure()))), r"method\.parts\.shared\.other", "inner"),
        (Choice((len, [closure()])), r"method\.rule\[1\]\[0\]", "inner"),
        (Choice({"a": closure()}), r"method\.rule\['a'\]", "inner"),
        (Choice(partial(len, key=closure())), r"method\.rule\.key", "inner"),
        (Choice(Factory().bound), r"method\.rule", "bound"),
        (Choice(object()), r"method\.rule", "is a object, which another process cannot rebuild"),
    ],
)
def test_what_cannot_be_described_is_named_by_its_path(value, path, what):
    with pytest.raises(InputError, match=f"^{path} is .*") as caught:
        describe(value)
    assert caught.match(what)
    assert "engine='local'" in str(caught.value)


def test_a_ready_made_module_says_what_to_do_instead():
    with pytest.raises(InputError, match=r"ready-made module.*Net\(MyModule\)"):
        describe(fedavg(objective=Net(nn.Linear(2, 2))))


def test_find_walks_qualified_names():
    assert find(f"{__name__}:Factory.plain") is Factory.plain
    with pytest.raises(ImportError):
        find("no.such.module:x")
