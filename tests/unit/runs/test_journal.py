"""What runs say of themselves while they go on: how they began and ended, notes, and the phase of a round."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import fedquilt as package
from fedquilt.config.config import load
from fedquilt.engines.local import Local
from fedquilt.runs.build import run_of
from fedquilt.runs.play import Run
from fedquilt.storage.journal import Journal
from fedquilt.watch.board import Board
from helpers.command import SMALL, fedquilt, lines, small


def made(tmp_path: Path, *settings: str, engine: Any = None) -> Run:
    return run_of(load(small(tmp_path), list(settings)), engine or Local(), tmp_path / "run")


def said(tmp_path: Path) -> list[tuple[str, int]]:
    return [(row["kind"], row["round"]) for row in lines(tmp_path / "run" / "messages.jsonl")]


def test_a_run_says_when_it_begins_stops_goes_on_and_finishes(tmp_path: Path) -> None:
    before = time.time()
    played = iter(made(tmp_path))
    next(played)
    played.close()  # what Ctrl-C comes to
    assert said(tmp_path) == [("begun", 0), ("stopped", 1)]
    for _ in made(tmp_path):
        pass
    assert said(tmp_path) == [("begun", 0), ("stopped", 1), ("resumed", 1), ("finished", 3)]
    times = [row["time"] for row in lines(tmp_path / "run" / "messages.jsonl")]
    assert before - 1 < times[0] <= times[-1] < time.time() + 1
    assert times == sorted(times)


def test_a_run_that_is_left_after_its_last_round_was_not_stopped(tmp_path: Path) -> None:
    played = iter(made(tmp_path))
    for _ in range(3):
        next(played)
    played.close()
    assert said(tmp_path) == [("begun", 0), ("finished", 3)]


def test_a_run_says_why_it_failed(tmp_path: Path) -> None:
    run = made(tmp_path)
    played = iter(run)
    next(played)

    def fail(*_: Any) -> Any:
        raise MemoryError("no more")

    run.energy.play = fail  # type: ignore[method-assign]
    with pytest.raises(MemoryError):
        next(played)
    assert said(tmp_path) == [("begun", 0), ("failed", 1)]
    assert lines(tmp_path / "run" / "messages.jsonl")[-1]["text"] == "MemoryError: no more"


def test_a_run_whose_engine_does_not_start_has_failed(tmp_path: Path) -> None:
    class Lame(Local):
        def begin(self, *given: Any) -> None:
            raise OSError("no more processes")

    with pytest.raises(OSError, match="no more processes"):
        next(iter(made(tmp_path, engine=Lame())))
    assert said(tmp_path) == [("begun", 0), ("failed", 0)]


def test_notes_are_kept(tmp_path: Path) -> None:
    played = iter(made(tmp_path))
    next(played), next(played)
    played.close()
    newest = max((tmp_path / "run" / "snapshots").iterdir())
    newest.write_bytes(newest.read_bytes()[:-10])
    for _ in made(tmp_path):
        pass
    notes = [row for row in lines(tmp_path / "run" / "messages.jsonl") if row["kind"] == "note"]
    assert [row["round"] for row in notes] == [1]
    assert "cannot be used: truncated or damaged" in notes[0]["text"]


def test_a_fresh_start_forgets(tmp_path: Path) -> None:
    recipe = small(tmp_path)
    folder = Path(fedquilt("run", recipe, "rounds=1", "--json").json["folder"])
    fedquilt("run", recipe, "rounds=1", "--json", "--fresh")
    assert [row["kind"] for row in lines(folder / "messages.jsonl")] == ["begun", "finished"]


@pytest.mark.parametrize("engine", ["local", "workers"])
def test_the_phase_of_a_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_worker: Any, engine: str) -> None:
    monkeypatch.setattr("fedquilt.storage.journal._EVERY", 0.0)
    heard: list[tuple[int, str, int, int]] = []
    run = made(tmp_path, "rounds=2", engine=one_worker if engine == "workers" else None)
    run.journal.hear = lambda *given: heard.append(given)
    for _ in run:
        pass
    assert heard == [(r, phase, n, 4) for r in (1, 2) for phase in ("train", "evaluate") for n in (1, 2, 3, 4)]
    now = json.loads((tmp_path / "run" / "now.json").read_text())
    assert {k: now[k] for k in ("round", "phase", "done", "of")} == {
        "round": 2,
        "phase": "evaluate",
        "done": 4,
        "of": 4,
    }


def test_the_phase_is_told_now_and_then_only(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(10.0, 0.1)
    monkeypatch.setattr("fedquilt.storage.journal.time.monotonic", lambda: next(clock))
    heard: list[int] = []
    journal = Journal(None, lambda round, phase, done, of: heard.append(done))
    for done in range(1, 21):
        journal.step(1, "train", done, 20)
    assert len(heard) == 4
    assert heard[0] == 1


def test_the_phase_is_overwritten_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedquilt.storage.journal._EVERY", 0.0)
    journal = Journal(tmp_path)
    for phase in ("\N{GREEK SMALL LETTER ALPHA}" * 1000, "up"):  # a long one, then a short one
        journal.step(1, phase, 1, 2)
        assert json.loads((tmp_path / "now.json").read_text())["phase"] == phase[:60]
    journal.close()


def test_a_folder_that_takes_no_more_words_is_no_error(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "gone")
    journal.say("begun", 0)
    journal.step(1, "train", 1, 2)
    assert not (tmp_path / "gone").exists()


STOPPABLE = SMALL + '[compare]\nmethods = ["fedavg"]\nseeds = [0]\n'


def stopped_by_sigterm(tmp_path: Path, command: str, kind: str) -> Path:
    """Start the command, wait until a run has said this and played a round more, send the signal; the run's folder."""
    recipe, source = small(tmp_path, STOPPABLE), str(Path(package.__file__).parents[1])
    process = subprocess.Popen(
        [sys.executable, "-m", "fedquilt", command, str(recipe), "rounds=100000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": source},
    )

    def begun() -> Path | None:
        found = next((tmp_path / "runs").rglob("messages.jsonl"), None)
        said = [] if found is None else [line for line in lines(found) if line["kind"] != "note"]
        last = (said or [{}])[-1]
        if found is None or last.get("kind") != kind:
            return None
        return found.parent if played(found.parent) > last["round"] else None

    end = time.monotonic() + 120
    while (folder := begun()) is None:
        assert time.monotonic() < end
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.terminate()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 143, err
    assert "Stopped. Finished work is saved; run the same command again to continue." in err
    return folder


def played(folder: Path) -> int:
    log = folder / "metrics" / "rounds.jsonl"
    return log.read_bytes().count(b"\n") if log.exists() else 0


@pytest.mark.parametrize("command", ["run", "compare"])
def test_a_run_that_is_stopped_by_sigterm_says_so_and_goes_on(tmp_path: Path, command: str) -> None:
    folder = stopped_by_sigterm(tmp_path, command, "begun")
    (_, stopped) = lines(folder / "messages.jsonl")
    assert stopped["kind"] == "stopped"
    assert stopped["round"] - 1 <= played(folder) <= stopped["round"]
    assert not (folder / "result.json").exists()
    assert [line["state"] for line in Board(folder).lines()] == ["stopped"]
    if command == "run":
        stopped_by_sigterm(tmp_path, command, "resumed")
        kinds = [(row["kind"], row["round"]) for row in lines(folder / "messages.jsonl")]
        assert [kind for kind, _ in kinds] == ["begun", "stopped", "resumed", "stopped"]
        assert stopped["round"] - 1 <= kinds[2][1] <= min(stopped["round"], kinds[3][1])
