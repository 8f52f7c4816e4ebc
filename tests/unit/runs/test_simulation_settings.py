"""What a recipe may say about a simulation, and what is said where Flower or Ray are missing."""

from __future__ import annotations

import sys

import pytest

from fedquilt.config.config import parse
from fedquilt.errors import InputError
from fedquilt.runs.build import engine_of
from fedquilt.runs.engines import make_engine


def test_nodes_belong_to_the_simulation() -> None:
    assert parse({"engine": {"kind": "flower-simulation", "nodes": 3}}).engine.nodes == 3
    with pytest.raises(InputError, match="nodes is for kind = 'flower-simulation', not 'workers'"):
        engine_of(parse({"engine": {"kind": "workers", "nodes": 3}}))


def test_a_simulation_takes_no_devices() -> None:
    with pytest.raises(InputError, match="devices is for 'local' and 'workers'"):
        make_engine("flower-simulation", devices=["cpu"])


def test_the_engine_does_not_change_what_a_run_is() -> None:
    assert parse({"engine": {"kind": "flower-simulation"}}).identity() == parse({}).identity()


@pytest.mark.parametrize("missing", ["flwr", "ray"])
def test_a_missing_package_is_named_with_its_extra(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("flwr")
    if missing == "flwr":
        for name in [n for n in sys.modules if n.startswith("fedquilt.engines.flower.simulation")]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, "flwr.simulation", None)
    else:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r'pip install "fedquilt\[simulation\]"'):
        make_engine("flower-simulation")
