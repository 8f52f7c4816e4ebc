"""Real SIGKILLs at random instants, then ``fedquilt resume``: the end is that of a run nobody disturbed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedquilt as package
from fedquilt.data import read
from helpers.command import SMALL, fedquilt, lines, small, untimed

ROUNDS = 120
PLAIN = [f"rounds={ROUNDS}", "data.clients=6"]
# Every client keeps a model of its own, so that each round writes client files too.
ALONE = ["method=local_only", *PLAIN]
TOGETHER = ["cohort.fraction=0.7", "evaluate.every=2", *PLAIN]


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """The small recipe, but with data from a file: processes then start without scikit-learn, in half the time."""
    arrays = read("digits")
    np.savez(tmp_path / "digits.npz", x=arrays.x, y=arrays.y)
    return small(tmp_path, SMALL.replace("[data]", f'[data]\npath = "{tmp_path}/digits.npz"'))


@dataclass
class Chain:
    """One run, killed and resumed again and again, each time as a process of its own."""

    recipe: Path
    settings: list[str]
    seed: int
    kills: int = 0

    def __post_init__(self) -> None:
        self.draw = random.Random(self.seed)
        self.top = self.recipe.parent / "runs"

    @property
    def folder(self) -> Path:
        """The folder of the run, once there is one."""
        (found,) = self.top.iterdir()
        return found

    def start(self) -> subprocess.Popen[str]:
        """Start the run, or go on with it."""
        begun = self.top.exists() and any((p / "config.toml").exists() for p in self.top.iterdir())
        words = ["resume", str(self.folder)] if begun else ["run", str(self.recipe), *self.settings]
        source = str(Path(package.__file__).parents[1])
        environment = {**os.environ, "PYTHONPATH": source, "PYTHONWARNINGS": "error"}
        command = [sys.executable, "-m", "fedquilt", *words, "--json"]
        # A shell that runs jobs in the background has them ignore SIGINT; the run must not inherit that here.
        return subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=self.recipe.parent,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def played(self) -> int:
        """How many rounds the log tells of."""
        return sum(path.read_bytes().count(b"\n") for path in self.top.glob("*/metrics/rounds.jsonl"))

    def opened(self) -> list[int]:
        """When the folder was taken hold of."""
        return [path.stat().st_mtime_ns for path in self.top.glob("*/.lock")]

    def wait(self, process: subprocess.Popen[str], least: int = 0) -> None:
        """Until the run has its folder (0) or has played some rounds, and then a moment more, shorter than a round."""
        more, opened, before = self.draw.randint(least, 8), self.opened(), self.played()
        while process.poll() is None and (self.played() < before + more if more else self.opened() == opened):
            time.sleep(0.002)
        time.sleep(self.draw.uniform(0.0, 0.03))

    def killed(self, kill: Callable[[subprocess.Popen[str]], None], least: int = 0) -> None:
        """Start, wait for a random moment, kill."""
        process = self.start()
        self.wait(process, least)
        assert process.poll() is None, process.communicate()
        kill(process)
        process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL
        self.kills += 1

    def finish(self) -> dict[str, Any]:
        """Go on to the end, in this process."""
        assert self.played() < ROUNDS, "the run was over too early: make it longer"
        said = fedquilt("resume", self.folder, "--json")
        assert said.code == 0, said
        assert said.json["notes"] == []
        found: dict[str, Any] = said.json
        return found


def sigkill(process: subprocess.Popen[str]) -> None:
    """The end."""
    process.kill()


def children(pid: int) -> list[int]:
    """The processes that this one started."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parts = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(parts[1]) == pid and parts[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def gone(pids: list[int], within: float) -> bool:
    """Whether all these processes end in time."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        if not any(Path(f"/proc/{pid}").exists() and "Z" not in _state(pid) for pid in pids):
            return True
        time.sleep(0.02)
    return False


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "Z"


def undisturbed(recipe: Path, settings: list[str]) -> tuple[dict[str, Any], Path]:
    """The result and the folder of the same run, made in one go in this process."""
    said = fedquilt("run", recipe, *settings, "snapshot.seconds=1000", f"output.folder={recipe.parent}/calm", "--json")
    assert said.code == 0, said
    return said.json, Path(said.json["folder"])


def assert_same(found: dict[str, Any], folder: Path, expected: dict[str, Any], calm: Path) -> None:
    """The same end, and logs in which every round is once, with the same numbers."""
    assert found["digest"] == expected["digest"]
    rows = lines(folder / "metrics" / "rounds.jsonl")
    assert [r["round"] for r in rows] == list(range(1, ROUNDS + 1))
    for log in ("rounds", "clients", "client_updates"):
        name = f"metrics/{log}.jsonl"
        assert untimed(lines(folder / name)) == untimed(lines(calm / name)), name
    for name in ("best_round", "bytes_up", "bytes_down", "quarantined", "data"):
        assert found[name] == expected[name], name
    assert untimed([found["best"], found["last"]]) == untimed([expected["best"], expected["last"]])
    models = {p.name: p.read_bytes() for p in calm.glob("models/*")}
    assert {p.name: p.read_bytes() for p in folder.glob("models/*")} == models
    assert len(list((folder / "snapshots").iterdir())) == 2  # and nothing half-written
    assert not list(folder.rglob("*.part"))


@pytest.mark.parametrize(("settings", "seed"), [(ALONE, 1), (TOGETHER, 2)], ids=["local_only", "fedavg"])
def test_local_runs_killed_at_random_instants_end_as_if_nothing_had_happened(
    recipe: Path, settings: list[str], seed: int
) -> None:
    chain = Chain(recipe, settings, seed)
    for _ in range(5):
        chain.killed(sigkill)
    assert_same(chain.finish(), chain.folder, *undisturbed(recipe, settings))


def test_runs_on_workers_killed_at_random_instants_leave_no_processes_behind(recipe: Path) -> None:
    chain = Chain(recipe, [*ALONE, "engine.kind=workers", "engine.processes=2"], seed=3)

    def orphan(process: subprocess.Popen[str]) -> None:
        workers = children(process.pid)
        process.kill()
        process.wait()
        assert len(workers) == 2
        assert gone(workers, within=5)

    for _ in range(3):
        chain.killed(orphan, least=1)
    assert_same(chain.finish(), chain.folder, *undisturbed(recipe, ALONE))


def test_killed_workers_are_replaced_and_change_nothing(recipe: Path) -> None:
    chain = Chain(recipe, [*ALONE, "engine.kind=workers", "engine.processes=2"], seed=4)
    process = chain.start()
    for _ in range(3):
        chain.wait(process, least=1)
        os.kill(chain.draw.choice(children(process.pid)), signal.SIGKILL)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, (out, err)
    found = json.loads(out)
    assert found["quarantined"] == 0
    assert_same(found, chain.folder, *undisturbed(recipe, ALONE))


def test_an_interrupt_says_how_to_go_on(recipe: Path) -> None:
    chain = Chain(recipe, [*PLAIN, "rounds=100000", "evaluate.every=100000"], seed=5)  # never done before the signal
    process = chain.start()
    chain.wait(process, least=1)
    process.send_signal(signal.SIGINT)
    try:
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert json.loads(out)["error"] == "Interrupted"
    assert "fedquilt resume" in json.loads(out)["message"]
