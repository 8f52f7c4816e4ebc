"""Nodes, the server and the SuperLink are killed at random moments: the run ends as an undisturbed one does."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from fedquilt.deploy import serve
from helpers.deployed import SITES, Sites, at_home, nobody, ready, recipe

pytestmark = [pytest.mark.flower, pytest.mark.slow]
ROUNDS = 10


class Killer(threading.Thread):
    """Kills one thing after another, each a random moment after another round has begun."""

    def __init__(self, folder: Path, sites: Sites, victims: list[str], seed: int) -> None:
        super().__init__(daemon=True)
        self.folder, self.sites, self.victims = folder, sites, victims
        self.draw = random.Random(seed)
        self.done: list[str] = []
        self.link: serve._Link | None = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            for number, victim in enumerate(self.victims):
                self._wait(number + 1)
                time.sleep(self.draw.uniform(0.0, 3.0))
                self.kill(victim)
                self.done.append(victim)
        except BaseException as error:
            self.error = error

    def _wait(self, rounds: int) -> None:
        log = self.folder / "metrics" / "rounds.jsonl"
        while not log.exists() or log.read_text().count("\n") < rounds:
            time.sleep(0.05)

    def kill(self, victim: str) -> None:
        """A site (which is started again), the process that holds its data, the server app, or the SuperLink."""
        if victim in SITES:
            self.sites.kill(victim)
            self.sites.join(victim)
        elif victim.startswith("data of "):
            self.sites.kill_resident(victim.removeprefix("data of "))
        elif victim == "server":
            os.kill(int((self.folder / "server.pid").read_text().split()[0]), signal.SIGKILL)
        else:
            assert self.link is not None
            assert self.link.process is not None
            self.link.process.kill()


@pytest.mark.parametrize(
    ("method", "victims"),
    [
        ("fedper", ["bergen", "server", "data of oslo", "server", "data of bergen", "server"]),
        ("scaffold", ["link", "data of oslo", "server", "link", "oslo"]),
    ],
)
@pytest.mark.timeout(3600)
def test_kills(method, victims, tmp_path, monkeypatch):
    config = recipe(method, ROUNDS, ask=10.0)
    address, keys = ready(tmp_path)
    sites = Sites(tmp_path, address, keys)
    killer = Killer(tmp_path / "run", sites, victims, seed=len(victims))
    made = serve._Link.__init__

    def remembered(link, served):
        made(link, served)
        killer.link = link

    monkeypatch.setattr(serve._Link, "__init__", remembered)
    notes = []
    try:
        for site in SITES:
            sites.join(site)
        killer.start()
        result = serve.FederationServer(tmp_path / "run", address, keys, restarts=20).follow(
            config, nobody, notes.append
        )
    finally:
        sites.close()
    assert killer.error is None
    assert killer.done == victims
    assert result["quarantined"] == 0, (tmp_path / "run" / "dropped.jsonl").read_text()
    assert result["digest"] == at_home(config)
