"""A federation of real processes on this machine: Flower's SuperLink and SuperNodes, with TLS and node keys."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from fedquilt.config.config import Config, dump, parse
from fedquilt.core.exchange import Method
from fedquilt.data import Federation
from fedquilt.deploy.flower_command import Address, call, free_port
from fedquilt.deploy.keys import Keys, make
from fedquilt.deploy.serve import CONNECTION, FederationServer, _Link
from fedquilt.engines.local import Local
from fedquilt.rounds.client import one_thread
from fedquilt.runs.build import method_of
from fedquilt.runs.play import Run
from fedquilt.storage.finished import result_of

SITES = ("bergen", "oslo")
STRANGER = "trondheim"  # it has a key of its own, and joins only where a test says so
PEOPLE = {"bergen": 3, "oslo": 3, STRANGER: 4}  # how many clients each has


def rows(site: str) -> dict[str, Any]:
    """A site's rows, each of somebody: digits, fewer of the large ones, and not the same at all sites."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    place = (*SITES, STRANGER).index(site)
    part = np.arange(place, 480 + 60 * place, 3)
    part = part[np.arange(len(part)) % 10 >= y[part] // 2]
    people = np.array([f"{site}-{number % PEOPLE[site]}" for number in range(len(part))])
    return {"x": (x[part] / 16).astype(np.float32).reshape(-1, 1, 8, 8), "y": y[part], "user": people}


def federation(sites: Sequence[str] = SITES) -> Federation:
    """The clients of all sites in one place, each with its rows as its own site splits them."""
    clients = {}
    for site in sites:
        own = rows(site)
        here = Federation.from_arrays(own["x"], own["y"], user=own["user"], classes=10)
        for client in here.ids:
            tables = {"train": here.site(client, 0).train, **{s: here.evaluation(client, s) for s in ("valid", "test")}}
            wholes = {split: table.whole() for split, table in tables.items() if table is not None}
            clients[client] = {split: (whole.x, whole.y) for split, whole in wholes.items()}
    return Federation.from_clients(clients, classes=10)


MLP = {"kind": "mlp", "hidden": [16]}
MAE = {"kind": "mae", "patch": 4, "width": 16, "depth": 1, "heads": 2, "decoder_width": 16, "bottleneck": 4}


def recipe(method: str | Mapping[str, Any], rounds: int = 2, nodes: int = len(SITES), ask: float = 60.0) -> Config:
    """A short run of a method."""
    kind = method if isinstance(method, str) else method["kind"]
    return parse(
        {
            "name": "deployed",
            "rounds": rounds,
            "method": method,
            "model": MAE if kind == "podfcssv" else MLP,
            "train": {"batch_size": 16},
            "flower": {"nodes": nodes, "ask": ask, "deadline": 600.0, "wait": 300.0},
            "snapshot": {"seconds": 0.0},
            "evaluate": {"every": rounds},
        }
    )


def at_home(
    config: Config, sites: Sequence[str] = SITES, change: Callable[[Method], Method] = lambda method: method
) -> str:
    """The digest of the same run on the local engine."""
    source = federation(sites)
    with one_thread():
        run = Run(
            change(method_of(config, source)),
            source,
            rounds=config.rounds,
            seed=config.seed,
            engine=Local(),
            evaluation=config.evaluate,
        )
        return [snapshot.digest() for snapshot in run][-1]


class Sites:
    """The nodes: one process group per site, started with the command that a site would use."""

    def __init__(self, folder: Path, address: Address, keys: Keys) -> None:
        self.folder, self.address, self.keys = folder, address, keys
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        for site in (*SITES, STRANGER):
            np.savez(folder / f"{site}.npz", **rows(site))

    def command(self, site: str, **other: object) -> list[str]:
        """What the site runs."""
        usual = {
            "superlink": self.address,
            "ca": self.keys.ca,
            "key": self.keys.node(site),
            "classes": 10,
            "data": self.folder / f"{site}.npz",
            "user": "user",
            "state": self.folder / f"state-{site}",
        }
        options = [word for name, value in {**usual, **other}.items() for word in (f"--{name}", str(value))]
        return [sys.executable, "-m", "fedquilt", "join", *options]

    def join(self, site: str, **other: object) -> None:
        """Start a site."""
        self.start(site, self.command(site, **other))

    def start(self, name: str, command: Sequence[str], surroundings: dict[str, str] | None = None) -> None:
        """Start what a site runs; what it says goes into its log."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True, env=surroundings
            )

    def all_said(self, names: Sequence[str], words: str, seconds: float) -> dict[str, str]:
        """What each of these had said when it had said these words; each is ended at once then."""
        end, told = time.monotonic() + seconds, {}
        while len(told) < len(names):
            for name in [n for n in names if n not in told]:
                text = (self.folder / f"{name}.log").read_text(errors="replace")
                if words in text:
                    told[name] = text
                    self.kill(name)
                assert time.monotonic() < end, f"{name} did not say {words!r}:\n{text}"
            time.sleep(0.2)
        return told

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
    make(folder / "keys", ["localhost"], [*SITES, STRANGER])
    return Address("127.0.0.1", free_port()), Keys(folder / "keys")


class Standing:
    """A SuperLink and its sites, which serve one run after another, or several at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address, self.keys = ready(folder)
        first = FederationServer(folder / "link", self.address, self.keys)
        first._connection()
        self.link = _Link(first)
        self.link.revive()
        self.sites = Sites(folder, self.address, self.keys)
        self.known = Keys(folder / "known")  # without the nodes' keys: they are registered, and that takes seconds
        self.known.folder.mkdir()
        for file in (self.keys.ca, *self.keys.server):
            shutil.copy(file, self.known.folder)

    def run(self, name: str, config: Config) -> dict[str, Any]:
        """The result of one more run."""
        link = self.link.server.link  # behind the front
        return FederationServer(self.folder / name, link, self.known, attach=True).follow(config, nobody, print)

    def run_exported(self, name: str, config: Config) -> dict[str, Any]:
        """The same by Flower's own command, on the app folder that ``fedquilt export`` writes."""
        app, recipe = self.folder / f"{name}-app", self.folder / f"{name}.toml"
        recipe.write_text(dump(config))
        subprocess.run([sys.executable, "-m", "fedquilt", "export", str(recipe), "--flower", str(app)], check=True)
        home, folder = self.link.server.home, self.folder / name
        call(["flwr", "run", str(app), CONNECTION, "--run-config", f'folder="{folder}"'], home)
        end = time.monotonic() + 600
        while (result := result_of(folder)) is None:
            assert not (folder / "failure.json").exists(), (folder / "failure.json").read_text()
            assert time.monotonic() < end, (home / "superlink.log").read_text()
            time.sleep(0.5)
        return result

    def close(self) -> None:
        """Nodes first, then the SuperLink."""
        self.sites.close()
        self.link.end()


def nobody(number: int, metrics: dict[str, Any]) -> None:
    """Hears of rounds and does nothing."""
