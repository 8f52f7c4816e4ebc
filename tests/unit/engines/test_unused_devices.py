"""A GPU that is there while clients train on the CPU is said: once, and with what to do."""

import logging

import pytest
import torch

from fedquilt.config.config import parse
from fedquilt.runs import engines
from fedquilt.studies.player import Player
from helpers.toy import digits


@pytest.fixture
def two_gpus(monkeypatch):
    """A machine that counts two CUDA devices."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(engines, "_told", set())


@pytest.mark.parametrize("kind", ["auto", "local", "workers", "lanes"])
def test_unused_devices_are_said_once(two_gpus, caplog, kind):
    with caplog.at_level(logging.WARNING, "fedquilt"):
        for _ in range(2):
            engines.make_engine(kind, processes=1).close()
    assert [r.getMessage() for r in caplog.records] == [
        "note: This machine has 2 CUDA devices, and clients train on the CPU. To use the first, say "
        "engine.devices=['cuda:0'] in a recipe or on the command line, devices=['cuda:0'] in Python."
    ]


def test_several_runs_say_it_in_the_process_that_starts_them(two_gpus, caplog):
    with caplog.at_level(logging.WARNING, "fedquilt"):
        Player(parse({}), {0: digits(clients=2)}, None)
    assert "2 CUDA devices" in caplog.text


def test_nothing_is_said_where_devices_are_used_or_missing(two_gpus, caplog, monkeypatch):
    with caplog.at_level(logging.WARNING, "fedquilt"):
        engines.make_engine("local", devices=["cpu"]).close()
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
        engines.make_engine("local").close()
    assert not caplog.records


def test_a_simulation_says_it_too(two_gpus, caplog, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)  # as if Ray were there
    with caplog.at_level(logging.WARNING, "fedquilt"):
        engines.make_engine("flower-simulation")
    (record,) = caplog.records
    assert "2 CUDA devices" in record.getMessage()
    assert "engine.kind = 'workers'" in record.getMessage()
