"""Runs below a folder: which there are, how they are doing, when they will be done, and what a page is told of them."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fedquilt.errors import InputError
from fedquilt.storage.folder import RunFolder, is_held
from fedquilt.watch import board
from fedquilt.watch.board import Board
from fedquilt.watch.find import check_folder, places
from fedquilt.watch.follow import Followed, point
from helpers.made_runs import METHODS, made_comparison


@pytest.fixture(autouse=True)
def no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board, "_REST", 0.0)


@pytest.fixture
def top(tmp_path: Path) -> Path:
    return made_comparison(tmp_path / "compare-c", clients=3, rounds=4, seeds=1, unfinished=["ditto"])


@contextmanager
def held(folder: Path) -> Iterator[None]:
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def followed(folder: Path) -> Followed:
    (place,) = places(folder)
    run = Followed(place)
    run.look(1)
    return run


def say(folder: Path, kind: str, text: str = "") -> None:
    with (folder / "messages.jsonl").open("a") as file:
        file.write(json.dumps({"time": 1.0, "kind": kind, "round": 2, "text": text}) + "\n")


def test_runs_are_found_wherever_they_are(top: Path, tmp_path: Path) -> None:
    shutil.copytree(top / "fedavg-seed0", tmp_path / "alone-1a2b")
    shutil.rmtree(top / "fedrep-seed0")  # planned, not begun
    (tmp_path / "notes").mkdir()
    (tmp_path / ".hidden" / "run").mkdir(parents=True)
    shutil.copy(top / "fedavg-seed0" / "config.toml", tmp_path / ".hidden" / "run")
    found = places(tmp_path)
    assert [(p.label, p.group) for p in found] == [("alone-1a2b", ""), *((label, "compare-c") for label in METHODS)]
    assert {(p.seed, p.rounds) for p in found[1:]} == {(0, 4)}
    assert len({p.key for p in found}) == len(found)
    assert [p.folder for p in places(top)] == [p.folder for p in found[1:]]
    assert [p.folder for p in places(top / "ditto-seed0")] == [top / "ditto-seed0"]


def test_a_plan_leads_nowhere_else(top: Path) -> None:
    plan = json.loads((top / "comparison.json").read_text())
    plan["cells"][0]["folder"] = "../../etc"
    (top / "comparison.json").write_text(json.dumps(plan))
    assert len(places(top)) == len(METHODS) - 1


def test_folders_without_runs(tmp_path: Path, top: Path) -> None:
    assert check_folder(top)
    with pytest.raises(InputError, match="does not exist"):
        check_folder(tmp_path / "nowhere")
    with pytest.raises(InputError, match="is a file"):
        check_folder(top / "comparison.json")
    with pytest.raises(InputError, match="is not the folder of a run"):
        check_folder(top / "ditto-seed0" / "metrics")
    (tmp_path / "empty").mkdir()
    assert not check_folder(tmp_path / "empty")  # they may come


def test_states(top: Path) -> None:
    assert followed(top / "fedavg-seed0").state == "done"
    half = top / "ditto-seed0"
    assert followed(half).state == "killed"
    with held(half):
        assert followed(half).state == "running"
    say(half, "begun")
    assert followed(half).state == "killed"
    say(half, "stopped")
    assert followed(half).state == "stopped"
    say(half, "resumed")
    assert followed(half).state == "killed"
    say(half, "failed", "RoundError: no")
    assert (followed(half).state, followed(half).line()["said"]["text"]) == ("failed", "RoundError: no")
    (half / "messages.jsonl").unlink()
    (half / "metrics" / "rounds.jsonl").unlink()
    assert followed(half).state == "waiting"


def test_a_finished_run_that_was_given_more_rounds_is_not_done(top: Path) -> None:
    folder = top / "fedavg-seed0"
    row = json.loads((folder / "metrics" / "rounds.jsonl").read_text().splitlines()[-1])
    with (folder / "metrics" / "rounds.jsonl").open("a") as file:
        file.write(json.dumps({**row, "round": 5}) + "\n")
    assert followed(folder).state == "killed"


def test_looking_does_not_keep_a_run_from_its_folder(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    assert not is_held(run.path)
    run.open()
    assert is_held(run.path)
    run.close()
    assert not is_held(run.path)
    with (run.path / ".lock").open() as lock:  # someone looks just now, and is done a moment later
        fcntl.flock(lock, fcntl.LOCK_SH)
        tries = []

        def flock(*given: Any, real: Any = fcntl.flock) -> None:
            tries.append(given)
            if len(tries) == 3:
                real(lock, fcntl.LOCK_UN)
            real(*given)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fcntl, "flock", flock)
            run.open()
    assert len(tries) == 3
    run.close()


def test_a_run_in_a_line(top: Path) -> None:
    half = top / "ditto-seed0"
    (half / "now.json").write_text('{"round": 3, "phase": "train", "done": 1, "of": 3}')
    with held(half):
        line = followed(half).line()
    rows = [json.loads(text) for text in (half / "metrics" / "rounds.jsonl").read_text().splitlines()]
    assert (line["state"], line["round"], line["rounds"]) == ("running", 2, 4)
    assert (line["accuracy"], line["loss"]) == (rows[1]["test_accuracy"], rows[1]["test_loss"])
    assert line["up"] == pytest.approx(2 * 3 * 4100 / 1e6)
    assert (line["dropped"], line["phase"]["phase"]) == (1, "train")
    assert line["pace"] == 0.5  # as the run says
    assert 0.4 < line["left"] <= 1.0  # two rounds, one of them begun
    line = followed(half).line()
    assert (line["left"], line["phase"]) == (None, {})  # nobody works on it
    assert followed(top / "fedavg-seed0").line()["left"] is None


def test_the_pace_is_what_is_seen_from_here(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    half, now = top / "ditto-seed0", [1000.0]
    monkeypatch.setattr("fedquilt.watch.follow.time.time", lambda: now[0])
    run = followed(half)
    row = json.loads((half / "metrics" / "rounds.jsonl").read_text().splitlines()[-1])
    now[0] += 8
    with (half / "metrics" / "rounds.jsonl").open("a") as file:
        file.write(json.dumps({**row, "round": 3, "seconds": 0.1}) + "\n")
    run.look(2)
    assert run.pace == 8  # snapshots and logs take time too
    with held(half):
        run.look(3)
        now[0] += 3
        assert run.left() == 5
        now[0] += 100
        assert run.left() == 0


def test_a_page_is_told_only_what_is_new(top: Path) -> None:
    watched = Board(top)
    key = next(p.key for p in places(top) if p.label == "ditto")
    first = watched.told(0, key, 0)
    assert first["point"] == point()
    assert {k: len(c["rows"]) for k, c in first["curves"].items()} == {
        p.key: 2 if p.label == "ditto" else 4 for p in places(top)
    }
    assert len(first["run"]["clients"]["rows"]) == 3
    assert [row["reason"] for row in first["run"]["dropped"]["rows"]] == ["not finite"]
    again = watched.told(first["look"], key, first["look"])
    assert again["curves"] == {}
    assert again["run"]["clients"] == {"anew": False, "rows": []}
    log = top / "ditto-seed0" / "metrics" / "rounds.jsonl"
    before = log.read_text().splitlines(keepends=True)
    log.write_text("".join(before) + before[-1].replace('"round": 2', '"round": 3'))
    new = watched.told(again["look"])
    assert "run" not in new
    assert list(new["curves"]) == [key]
    assert (new["curves"][key]["anew"], [p[0] for p in new["curves"][key]["rows"]]) == (False, [3])
    os.truncate(log, len(before[0]))  # killed, resumed: back to the snapshot after round 1
    back = watched.told(new["look"])
    assert (back["curves"][key]["anew"], [p[0] for p in back["curves"][key]["rows"]]) == (True, [1])
    assert watched.told(0, "../../etc")["runs"] == watched.told(0, "0")["runs"]  # keys are looked up, not followed
    assert "run" not in watched.told(0, "../../etc")


def test_runs_that_come_and_go(top: Path) -> None:
    watched = Board(top.parent)
    assert len(watched.lines()) == len(METHODS)
    shutil.copytree(top / "fedavg-seed0", top.parent / "new-1a2b")
    assert len(watched.lines()) == len(METHODS) + 1
    shutil.rmtree(top)
    assert [line["label"] for line in watched.lines()] == ["new-1a2b"]


def test_all_runs_as_one(top: Path) -> None:
    lines = Board(top).lines()
    found = board.whole(lines)
    assert found["states"] == {"done": 5, "killed": 1}
    assert (found["done"], found["planned"], found["left"]) == (22, 24, None)
    lines[0] |= {"state": "running", "round": 2, "left": 3.0}
    lines[1] |= {"state": "waiting", "round": 0, "pace": None}
    found = board.whole(lines)
    assert (found["done"], found["planned"]) == (16, 24)
    assert found["left"] == pytest.approx(3.0 + 4 * 0.5)  # the other one begins after it
    assert board.whole([])["planned"] == 0
