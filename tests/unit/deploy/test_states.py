"""What a site keeps of its runs: shown, and let go of only when asked for."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from fedquilt.engines.flower.keep import Keep, OnDisk
from helpers.command import fedquilt

OLD, NEW = "0a" * 16, "1b" * 16


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Two runs: an old one of two clients, and one of today; and what else a node has in its folder."""
    for run in (OLD, NEW):
        keep = Keep(OnDisk(tmp_path / run))
        for client in ("a", "b"):
            first = keep.put(client, b"first" + client.encode(), 1, None)
            keep.put(client, b"second" + client.encode(), 2, first)
    for file in (tmp_path / OLD).iterdir():
        os.utime(file, (time.time() - 100 * 86400,) * 2)
    (tmp_path / "flower").mkdir()
    (tmp_path / "site.toml").write_text("")
    return tmp_path


def test_runs_are_listed_the_newest_first(state):
    said = fedquilt("states", state, "--json").json
    assert [(k["run"], k["clients"], k["round"]) for k in said["kept"]] == [(NEW, 2, 2), (OLD, 2, 2)]
    assert said["kept"][0]["bytes"] == 2 * (6 + 7)
    assert [round(k["days"]) for k in said["kept"]] == [0, 100]
    assert OLD in fedquilt("states", state).out


@pytest.mark.parametrize("how", [("--older", 90), ("--forget", OLD)], ids=str)
def test_only_what_was_named_is_forgotten(state, how):
    said = fedquilt("states", state, *how, "--json").json
    assert [k["run"] for k in said["forgotten"]] == [OLD]
    assert sorted(p.name for p in state.iterdir()) == sorted([NEW, "flower", "site.toml"])
    assert Keep(OnDisk(state / NEW)).shelf.names()
    assert "Forgotten" not in fedquilt("states", state, "--older", 90).out


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (("--forget", "flower"), "keeps nothing of a run 'flower'"),
        (("--forget", "../x"), "keeps nothing"),
        (("--older", 0), "days, more than 0, got 0"),
        (("--older", "nan"), "got nan"),
    ],
    ids=str,
)
def test_what_is_not_there_is_not_forgotten(state, how, words):
    said = fedquilt("states", state, "--forget", OLD, *how)
    assert said.code == 2
    assert words in said.err
    assert (state / OLD).exists()
    assert (state / "flower").exists()


def test_no_such_folder_and_nothing_in_it(tmp_path):
    assert "There is no folder" in fedquilt("states", tmp_path / "none").err
    assert "No states" in fedquilt("states", tmp_path).out
