"""Data sets that installed packages bring by entry points; here the entry points are made up."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from fedquilt import registry
from fedquilt.data import Federation, available, read
from fedquilt.errors import InputError
from helpers.command import fedquilt, small
from helpers.plugged import picture_bytes


@pytest.fixture
def brings(monkeypatch, tmp_path):
    """Let entry points of these names and values exist."""
    monkeypatch.setenv("FEDQUILT_DATA", str(tmp_path))

    def make(**values):
        points = [EntryPoint(name, value, "fedquilt.datasets") for name, value in values.items()]
        monkeypatch.setattr(registry, "entry_points", lambda group: points if group == "fedquilt.datasets" else [])
        registry._installed.cache_clear()
        return tmp_path

    yield make
    registry._installed.cache_clear()


def row(name):
    return next(r for r in available() if r["name"] == name)


def test_a_function_is_a_data_set(brings):
    brings(waves="helpers.plugged:waves")
    assert row("waves")["present"] is True
    found = read("waves")
    assert (found.name, found.licence, found.source) == ("waves", "CC0", "made here")
    assert len(Federation.from_source("waves", natural=True, test=0, valid=0).ids) == 2


def test_an_entry_is_a_data_set_with_files(brings):
    folder = brings(snaps="helpers.plugged:PICTURES")
    assert row("snaps")["present"] is False
    with pytest.raises(InputError, match=r"(?s)snaps is not here.*pictures\.zip from http"):
        read("snaps")
    (folder / "snaps").mkdir()
    (folder / "snaps" / "pictures.bin").write_bytes(picture_bytes())
    assert row("snaps")["shape"] == (3, 6, 5)
    assert read("snaps").y.tolist() == [0, 1, 2, 0, 1, 2]


def test_a_recipe_and_the_command_find_it(brings, tmp_path):
    brings(waves="helpers.plugged:waves")
    assert "waves" in fedquilt("datasets").out
    said = fedquilt(
        "partition",
        small(tmp_path),
        "data.source=waves",
        "data.clients=2",
        "data.limit=12",
        "data.partition.minimum=1",
        "--json",
        "--plot",
        tmp_path / "p.png",
    )
    assert said.code == 0, said
    assert said.json["clients"] == 2


def test_broken_ones_are_listed_with_the_reason_and_harm_nobody(brings):
    brings(absent="no_such_package:x", number="helpers.plugged:NOT_A_DATA_SET", odd="helpers.plugged:nothing")
    assert read("digits").classes == 10
    assert "cannot be imported: No module named 'no_such_package'" in row("absent")["where"]
    assert row("absent")["present"] is False
    with pytest.raises(InputError, match=r"'number' of .* is int\. It must be a function"):
        read("number")
    with pytest.raises(InputError, match="The reader of odd gave int"):
        read("odd")
    with pytest.raises(InputError, match="Did you mean 'absent'"):
        read("absnt")


def test_names_of_this_package_win(brings):
    brings(digits="helpers.plugged:waves")
    assert len(read("digits").y) == 1797
    assert [r["name"] for r in available()].count("digits") == 1
