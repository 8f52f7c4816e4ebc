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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from helpers.command import fedquilt, lines, small, untimed

import fedquilt as package

ROUNDS = 36
PLAIN = [f"rounds={ROUNDS}", "data.clients=6"]
# Every client keeps a model of its own, so that each round writes client files too.
ALONE = ["method=local_only", *PLAIN]
TOGETHER = ["cohort.fraction=0.7", "evaluate.every=2", *PLAIN]


@dataclass
class Chain:
    """One run, killed and resumed again and again, each time as a process of its own."""

    recipe: Path
    settings: list[str]
    seed: int
    kills: int = 0
    survivors: list[int] = field(default_factory=list)

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
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=self.recipe.parent
        )

    def progress(self) -> tuple[int, int]:
        """A sign of life: it changes with every round and every snapshot."""
        found = [p.stat() for p in self.top.rglob("*") if p.is_file()] if self.top.exists() else []
        return len(found), sum(s.st_size for s in found)

    def killed(self, kill: Callable[[subprocess.Popen[str]], None]) -> bool:
        """Start, wait until it works, then a random moment, then kill; False if it was finished before."""
        process = self.start()
        before, patience = self.progress(), time.monotonic() + 60
        while process.poll() is None and self.progress() == before and time.monotonic() < patience:
            time.sleep(0.005)
        time.sleep(self.draw.uniform(0.0, 0.35))
        alive = process.poll() is None
        if alive:
            kill(process)
            self.kills += 1
        out, err = process.communicate(timeout=60)
        assert process.returncode == (-signal.SIGKILL if alive else 0), (out, err)
        return alive

    def finish(self) -> dict[str, Any]:
        """Go on to the end."""
        process = self.start()
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, (out, err)
        found: dict[str, Any] = json.loads(out)
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


def undisturbed(tmp_path: Path, settings: list[str]) -> tuple[dict[str, Any], Path]:
    """The result and the folder of the same run, made in one go in this process."""
    calm = tmp_path / "calm"
    calm.mkdir()
    said = fedquilt("run", small(calm), *settings, "snapshot.seconds=1000", "--json")
    assert said.code == 0, said
    return said.json, Path(said.json["folder"])


def assert_same(found: dict[str, Any], folder: Path, expected: dict[str, Any], calm: Path) -> None:
    """The same end, and logs in which every round is once, with the same numbers."""
    assert found["digest"] == expected["digest"]
    rows = lines(folder / "metrics" / "rounds.jsonl")
    assert [r["round"] for r in rows] == list(range(1, ROUNDS + 1))
    for log in ("rounds", "clients", "visits"):
        name = f"metrics/{log}.jsonl"
        assert untimed(lines(folder / name)) == untimed(lines(calm / name)), name
    for name in ("best", "last", "best_round", "bytes_up", "bytes_down", "quarantined"):
        a, b = ({"x": x[name]} for x in (found, expected))
        assert untimed([a["x"] if isinstance(a["x"], dict) else a]) == untimed(
            [b["x"] if isinstance(b["x"], dict) else b]
        )
    for model in ("best", "global"):
        path = Path("models") / f"{model}.safetensors"
        assert (folder / path).exists() == (calm / path).exists()
        if (calm / path).exists():
            assert (folder / path).read_bytes() == (calm / path).read_bytes()
    needed = len(list((folder / "snapshots").iterdir()))
    assert needed == 2, "no half-written snapshots are left"
    assert not list(folder.rglob("*.part"))


@pytest.mark.parametrize(("settings", "seed"), [(ALONE, 1), (TOGETHER, 2)], ids=["local_only", "fedavg"])
def test_local_runs_killed_at_random_instants_end_as_if_nothing_had_happened(
    tmp_path: Path, settings: list[str], seed: int
) -> None:
    chain = Chain(small(tmp_path), settings, seed)
    while chain.kills < 9 and chain.killed(sigkill):
        pass
    found = chain.finish()
    assert chain.kills >= 7, "the run was over too early: make it longer"
    assert_same(found, chain.folder, *undisturbed(tmp_path, settings))


def test_runs_on_workers_killed_at_random_instants_leave_no_processes_behind(tmp_path: Path) -> None:
    settings = [*ALONE, "engine.kind=workers", "engine.processes=2"]
    chain = Chain(small(tmp_path), settings, seed=3)

    def orphan(process: subprocess.Popen[str]) -> None:
        workers = children(process.pid)
        process.kill()
        process.wait()
        chain.survivors += [] if gone(workers, within=5) else workers
        assert len(workers) == 2

    while chain.kills < 5 and chain.killed(orphan):
        pass
    assert chain.kills >= 4
    assert chain.survivors == []
    assert_same(chain.finish(), chain.folder, *undisturbed(tmp_path, ALONE))


def test_killed_workers_are_replaced_and_change_nothing(tmp_path: Path) -> None:
    settings = [*ALONE, "engine.kind=workers", "engine.processes=2"]
    chain = Chain(small(tmp_path), settings, seed=4)
    process = chain.start()
    killed: set[int] = set()
    while process.poll() is None and len(killed) < 3:
        rows = chain.top.exists() and list(chain.top.glob("*/metrics/rounds.jsonl"))
        if rows and len(rows[0].read_text().splitlines()) > 4 * (len(killed) + 1):
            worker = chain.draw.choice(children(process.pid))
            os.kill(worker, signal.SIGKILL)
            killed.add(worker)
        time.sleep(0.01)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, (out, err)
    assert len(killed) == 3
    found = json.loads(out)
    assert found["quarantined"] == 0
    assert_same(found, chain.folder, *undisturbed(tmp_path, ALONE))


def test_an_interrupt_says_how_to_go_on(tmp_path: Path) -> None:
    chain = Chain(small(tmp_path), PLAIN, seed=5)
    process = chain.start()
    while not list(chain.top.glob("*/snapshots/round-*")):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert json.loads(out)["error"] == "Interrupted"
    assert "fedquilt resume" in json.loads(out)["message"]
    assert_same(chain.finish(), chain.folder, *undisturbed(tmp_path, PLAIN))
