"""A federation of real processes on this machine: Flower's SuperLink and SuperNodes, with TLS and node keys."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from fedquilt.data import Federation
from fedquilt.deploy.flower_command import Address, free_port
from fedquilt.deploy.keys import Keys, make
from fedquilt.deploy.serve import Server
from fedquilt.engines.local import Local
from fedquilt.runs.build import method_of
from fedquilt.runs.config import Config, parse
from fedquilt.runs.play import Run

SITES = ("bergen", "oslo")


def rows(site: str) -> tuple[Any, Any]:
    """A site's rows: every second digit, not the same at the two sites."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    place = SITES.index(site)
    part = slice(place, 400 + 100 * place, len(SITES))
    return (x[part] / 16).astype(np.float32).reshape(-1, 1, 8, 8), y[part]


def recipe(method: str | Mapping[str, Any], rounds: int = 2, **settings: Any) -> Config:
    """A short run of a method."""
    return parse({
        "name": "deployed", "rounds": rounds, "method": method,
        "model": {"kind": "mlp", "hidden": [16]}, "train": {"batch_size": 16},
        "flower": {"nodes": len(SITES), "ask": 10.0, "deadline": 600.0, "wait": 300.0},
        "snapshot": {"seconds": 0.0}, "evaluate": {"every": rounds}, **settings,
    })  # fmt: skip


def at_home(config: Config) -> str:
    """The digest of the same run on the local engine."""
    federation = Federation.from_clients({site: rows(site) for site in SITES}, classes=10)
    run = Run(method_of(config, federation), federation, rounds=config.rounds, seed=config.seed, engine=Local(),
              evaluation=config.evaluate)  # fmt: skip
    return [snapshot.digest() for snapshot in run][-1]


class Sites:
    """The nodes: one process group per site, started with the command that a site would use."""

    def __init__(self, folder: Path, address: Address, keys: Keys) -> None:
        self.folder, self.address, self.keys = folder, address, keys
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        for site in SITES:
            x, y = rows(site)
            np.savez(folder / f"{site}.npz", x=x, y=y)

    def command(self, site: str) -> list[str]:
        """What the site runs."""
        return [
            sys.executable, "-m", "fedquilt", "join", "--superlink", str(self.address), "--ca", str(self.keys.ca),
            "--key", str(self.keys.node(site)), "--data", str(self.folder / f"{site}.npz"), "--name", site,
            "--classes", "10", "--state", str(self.folder / f"state-{site}"),
        ]  # fmt: skip

    def join(self, site: str) -> None:
        """Start a site."""
        with (self.folder / f"{site}.log").open("ab") as log:
            self.processes[site] = subprocess.Popen(
                self.command(site), stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )

    def kill(self, site: str) -> None:
        """End a site's processes without a warning; what they started ends with them."""
        process = self.processes.pop(site)
        process.kill()
        process.wait()
        deadline = time.monotonic() + 10
        while group(process.pid) and time.monotonic() < deadline:
            time.sleep(0.1)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    def kill_resident(self, site: str) -> None:
        """End the process that holds a site's data; the site starts another."""
        for number in group(self.processes[site].pid):
            with suppress(OSError):
                if b"fedquilt.deploy.resident" in Path(f"/proc/{number}/cmdline").read_bytes():
                    os.kill(number, signal.SIGKILL)

    def close(self) -> None:
        """End all."""
        for site in list(self.processes):
            self.kill(site)


def group(number: int) -> list[int]:
    """The processes of a session that still run."""
    found = []
    for place in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = place.read_text().rpartition(")")[2].split()
            if int(fields[3]) == number and fields[0] != "Z":
                found.append(int(place.parent.name))
    return found


def ready(folder: Path) -> tuple[Address, Keys]:
    """Keys and a free port."""
    make(folder / "keys", ["localhost"], SITES)
    return Address("127.0.0.1", free_port()), Keys(folder / "keys")


def server(folder: Path, address: Address, keys: Keys, **settings: Any) -> Server:
    """The server of one run."""
    return Server(folder, address, keys, **settings)
