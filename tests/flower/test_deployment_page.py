"""The page on deployment, played for real on loopback: each machine is a folder, and every command shown is run.

Differences to the page: server.example.org is 127.0.0.1 with a free port, scp copies between the folders, and one
round is enough.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

pytestmark = [pytest.mark.flower, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "deployment.md").read_text()
BLOCK = re.compile(r'^```(\w+) title="([^"]+)"\n(.*?)^```', re.M | re.S)
COPY = """#!/bin/sh
# scp -p FILE... HOST.example.org: copies into the folder of that machine
shift
for target; do :; done
while [ $# -gt 1 ]; do cp -p "$1" "MACHINES/${target%%.*}/" || exit 1; shift; done
"""


def blocks(kind: str) -> list[tuple[str, str]]:
    return [(title, body) for language, title, body in BLOCK.findall(PAGE) if language == kind]


def commands() -> list[tuple[str, str]]:
    return [(machine, line) for machine, body in blocks("shell") for line in body.strip().splitlines()]


def the(start: str) -> str:
    """The one command that begins so."""
    (found,) = {line for _, line in commands() if line.startswith(start) and "--json" not in line}
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Machines:
    """Folders that stand for machines, and what runs on them."""

    place: Path
    port: int = field(default_factory=free_port)
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        tools = self.place / "bin"
        tools.mkdir()
        for name, text in (
            ("fedquilt", f'#!/bin/sh\nexec "{sys.executable}" -m fedquilt "$@"\n'),
            ("python", f'#!/bin/sh\nexec "{sys.executable}" "$@"\n'),
            ("scp", COPY.replace("MACHINES", str(self.place))),
        ):
            (tools / name).write_text(text)
            (tools / name).chmod(0o755)
        for machine in {machine for machine, _ in commands()}:
            (self.place / machine).mkdir()
            for name, text in [*blocks("toml"), *blocks("python")]:
                if (name == "recipe.toml") == (machine == "server"):
                    (self.place / machine / name).write_text(text.replace("rounds = 20\n", "rounds = 1\n"))
        shutil.copytree(ROOT / "recipes", self.place / "cluster" / "recipes")

    def start(self, machine: str, line: str) -> subprocess.Popen[bytes]:
        """Start a command of the page on a machine."""
        words = line.replace("server.example.org:8000", f"127.0.0.1:{self.port}")
        words = words.replace("--host 0.0.0.0 --port 8000", f"--host 127.0.0.1 --port {self.port}")
        home = self.place / machine
        path = os.pathsep.join([str(self.place / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
        source = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
        with (home / "said.txt").open("wb") as said:
            process = subprocess.Popen(
                shlex.split(words),
                cwd=home,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "PATH": path, "HOME": str(home), "PYTHONPATH": source},
            )
        self.running.append(process)
        return process

    def run(self, machine: str, line: str, seconds: float = 400) -> str:
        """What a command says; it must succeed."""
        code = self.start(machine, line).wait(seconds)
        said = (self.place / machine / "said.txt").read_text(errors="replace")
        assert code == 0, f"{machine}: {line}\n{said}"
        return said

    def close(self) -> None:
        """End what still runs, nodes first."""
        for process in self.running:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(15)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    made = Machines(tmp_path)
    yield made
    made.close()


def expected(place: Path) -> dict[str, Any]:
    """The same run, in this process: both sites as two clients of one federation."""
    from fedquilt.config.config import load as settings
    from fedquilt.data import Federation
    from fedquilt.data.npz import load
    from fedquilt.engines.local import Local
    from fedquilt.runs.build import method_of
    from fedquilt.runs.runner import run

    config = settings(place / "server" / "recipe.toml")
    arrays = {name: load(place / name / f"{name}.npz") for name in ("oslo", "bergen")}
    federation = Federation.from_clients({n: (a["x"], a["y"]) for n, a in arrays.items()}, classes=10)
    *_, end = run(method_of(config, federation), federation, rounds=config.rounds, engine=Local(), seed=config.seed)
    return {"digest": end.digest(), "bytes_up": end.metrics["bytes_up"] * config.rounds}


def test_three_machines_from_nothing(machines: Machines) -> None:
    todo = [(machine, line) for machine, line in commands() if machine != "cluster"]
    said: dict[str, str] = {}
    for machine, line in todo:
        if line.startswith("fedquilt join --superlink"):
            machines.start(machine, line)  # stays
            time.sleep(0.5)
        else:
            if "--json" in line:
                machines.port = free_port()  # not needed any more: the run is finished
            said[line] = machines.run(machine, line)
    place = machines.place
    result = json.loads(said[the("fedquilt serve") + " --json"])
    home = expected(place)
    assert (result["digest"], result["bytes_up"], result["quarantined"]) == (home["digest"], home["bytes_up"], 0)
    assert "weight" in said[the("fedquilt join --data")]
    assert (place / "oslo" / "oslo").stat().st_mode & 0o077 == 0
    assert (place / "oslo" / "state-backup.tar.gz").stat().st_size > 0
    assert (place / "server" / "keys" / "nodes" / "trondheim.pub").exists()
    assert (place / "server" / "clinics-app" / "pyproject.toml").exists()
    nodes = Path(result["folder"], "nodes.log").read_text()
    assert all(f"site '{name}' is there, with 1 client" in nodes for name in ("oslo", "bergen"))
    assert "site 'oslo' is there" in said[the("fedquilt serve")]
    machines.close()
    log = (place / "oslo" / "state" / "node.log").read_text()
    assert "train.train: answered in" in log
    assert "site 'oslo' stopped, by SIGTERM" in log
    noise = (place / "oslo" / "state" / "flower.log").read_text(errors="replace")
    assert noise
    assert "\x1b" not in noise


def test_a_simulation_as_the_page_shows_it(machines: Machines) -> None:
    pytest.importorskip("ray")
    ((machine, line),) = [found for found in commands() if found[0] == "cluster"]
    assert "flower-simulation" in machines.run(machine, line + " --json")


@pytest.mark.parametrize(("unit", "text"), blocks("ini"))
def test_units_run_the_commands_of_the_page(unit: str, text: str, tmp_path: Path) -> None:
    (line,) = re.findall(r"^ExecStart=/opt/fedquilt/bin/(.*)$", text, re.M)
    assert line in {shown for _, shown in commands()}
    if shutil.which("systemd-analyze") is None:
        return
    here = text.replace("/opt/fedquilt/bin/fedquilt", "/bin/true").replace("User=fedquilt\n", "")
    (tmp_path / Path(unit).name).write_text(here.replace("/var/lib/fedquilt", "/var/lib"))
    verify = ["systemd-analyze", "verify", "--recursive-errors=no", str(tmp_path / Path(unit).name)]
    done = subprocess.run(verify, capture_output=True, text=True, check=False)
    assert Path(unit).name not in done.stderr, done.stderr


def test_the_recipe_of_the_page_is_one() -> None:
    import tomllib

    from fedquilt.config.config import parse

    ((name, text),) = blocks("toml")
    config = parse(tomllib.loads(text), name)
    assert (config.flower.nodes, config.cohort.min_replies) == (2, 2)
