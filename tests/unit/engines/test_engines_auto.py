"""``auto`` may choose lanes only where it need not be exact, and never fails because of them."""

from __future__ import annotations

import pytest
import torch

from fedquilt import FedAvg, Net, run
from fedquilt.core.seed import Seed
from fedquilt.engines import lanes
from fedquilt.engines.auto import Auto
from fedquilt.errors import InputError
from fedquilt.models import MLP
from fedquilt.runs.engines import make_engine
from helpers.toy import Normed, digits


def method(net: Net | None = None) -> FedAvg:
    return FedAvg(objective=net or Net.of(MLP, features=64, classes=10, hidden=(8,)), batch_size=10)


def model(engine: Auto, used: FedAvg) -> dict[str, torch.Tensor]:
    return [s.state.shared for s in run(used, digits(), rounds=2, engine=engine, score=None)][-1]


def test_exact_is_the_default_and_is_local():
    engine = Auto()
    found, expected = model(engine, method()), model(make_engine("local"), method())
    assert engine.facts()["engine"] == "local"
    assert all(torch.equal(found[n], expected[n]) for n in expected)


def test_not_exact_takes_lanes_where_they_are_found_faster(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lanes, "_seconds", lambda descents, device: 1.0)  # four at once take as long as one
    engine = Auto(exact=False)
    found, expected = model(engine, method()), model(make_engine("local"), method())
    assert engine.facts()["engine"] == "lanes"
    assert engine.facts()["width"] == 4
    assert all(torch.allclose(found[n], expected[n], rtol=1e-4, atol=1e-5) for n in expected)


def test_not_exact_stays_local_where_lanes_are_no_faster(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lanes, "_seconds", lambda descents, device: float(len(descents)))
    engine = Auto(exact=False)
    model(engine, method())
    assert engine.facts()["engine"] == "local"


def test_what_lanes_refuse_goes_one_by_one():
    engine = Auto(exact=False)
    normed = Net(Normed)
    with pytest.raises(InputError, match="statistics"):
        lanes.refuse(method(normed))
    engine.begin(method(normed), digits(), Seed(0), None)
    assert engine.facts()["engine"] == "local"


def test_exact_is_for_auto():
    with pytest.raises(InputError, match="exact"):
        make_engine("workers", exact=False)
