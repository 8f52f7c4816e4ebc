"""What is left when commands are killed, and what the next one makes of it; nodes that end are started again."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from fedquilt.config.config import parse
from fedquilt.deploy import join as joining
from fedquilt.deploy.apps import play
from fedquilt.deploy.flower_command import Address, free_port
from fedquilt.deploy.join import Membership
from fedquilt.deploy.processes import alive, clear, held, wait_gone, write_down
from fedquilt.deploy.serve import FederationServer
from fedquilt.deploy.site import SiteSettings
from fedquilt.engines.local import Local
from fedquilt.errors import InputError
from fedquilt.runs.build import method_of
from helpers.deployed import nobody
from helpers.nodes import grid
from helpers.toy import digits, last


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "60"])


def test_a_process_is_known_by_its_number_and_its_start(tmp_path):
    place = tmp_path / "pid"
    assert alive(place) is None
    process = sleeper()
    write_down(place, process.pid)
    assert alive(place) is True
    number, began = place.read_text().split()
    place.write_text(f"{number} {int(began) - 1}")  # another process had the number before
    assert alive(place) is False
    assert clear(place) is False
    assert process.poll() is None
    write_down(place, process.pid)
    assert clear(place) is True
    assert process.wait(5) == -signal.SIGTERM
    assert (alive(place), clear(place)) == (False, False)
    place.write_text("garbage")
    assert (alive(place), clear(place)) == (None, False)


# A node


@pytest.fixture
def member(tmp_path: Path) -> Membership:
    np.savez(tmp_path / "rows.npz", x=np.zeros((8, 2), "float32"), y=np.arange(8) % 2)
    settings = SiteSettings(data=str(tmp_path / "rows.npz"), name="oslo", state=str(tmp_path / "state"))
    return Membership(Address("127.0.0.1", 1), settings)


def test_a_node_that_ends_is_started_again_after_growing_pauses(member, tmp_path, monkeypatch):
    """Flower's program is one that ends at once, and the fourth time somebody presses Ctrl-C."""
    began = tmp_path / "began"
    program = f"import sys; print('x', file=open({str(began)!r}, 'a')); sys.exit(7)"
    residents: list[Any] = []

    def settle(self: Membership, surroundings: dict[str, str]) -> Any:
        residents.append(SimpleNamespace(poll=lambda: 1 if len(residents) == 1 else None))  # the first one dies
        return residents[-1]

    said: list[str] = []

    def note(text: str) -> None:
        said.append(text)
        if "started again in 10 seconds" in text:
            raise KeyboardInterrupt

    slept: list[float] = []
    monkeypatch.setattr(Membership, "command", lambda self: [sys.executable, "-c", program])
    monkeypatch.setattr(Membership, "_settle", settle)
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda s: slept.append(s) or time.sleep(min(s, 0.02)))
    monkeypatch.setattr(joining, "time", clock)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        member.run(note)
    signal.signal(signal.SIGTERM, before)
    assert [s for s in slept if s != 0.5] == [3.0, 4.5, 6.75]
    assert "ended with exit code 7; it is started again in 3 seconds" in "".join(said)
    assert "The process that holds the data ended; it is started again." in said
    assert (len(residents), began.read_text().count("x")) == (2, 4)
    (device,) = [text for text in said if text.startswith("note: ")]
    assert "has 1 CUDA device, and clients train on the CPU" in device


def test_a_state_folder_is_one_nodes_and_a_run_one_servers(member, tmp_path):
    taken = r"Another node uses '.*state'\. Stop it, or give this one another --state"
    with member.alone(), pytest.raises(InputError, match=taken), member.alone():
        pytest.fail("two at once")
    with member.alone():
        pass
    server = FederationServer(tmp_path / "run", Address("127.0.0.1", 1))
    with held(server.home / ".lock", ""), pytest.raises(InputError, match="Another 'fedquilt serve' plays the run in"):
        server.follow(config(1), nobody, print)


def test_data_that_cannot_be_loaded_end_the_node_at_once(member, tmp_path, capfd):
    (tmp_path / "rows.npz").write_bytes(b"garbage")
    with pytest.raises(InputError, match="could not be loaded; the reason is above"):
        member.run(print)
    said = capfd.readouterr().err
    assert "cannot be read as .npz" in said
    assert "Traceback" not in said


# The server app

TOY = digits(clients=4)


def config(nodes: int, **flower: Any) -> Any:
    return parse(
        {
            "rounds": 2,
            "method": "fedper",
            "model": {"kind": "mlp", "hidden": [8]},
            "train": {"batch_size": 16},
            "flower": {"nodes": nodes, **flower},
            "snapshot": {"seconds": 0.0},
            "evaluate": {"every": 2},
        }
    )


def back(run: Path) -> None:
    """The run as it was before its last round."""
    (run / "result.json").unlink()
    max((run / "snapshots").iterdir()).unlink()


def test_the_server_app_plays_the_run_and_goes_on_with_its_own_clients(tmp_path):
    settings = config(2)
    over = grid(TOY, 4, tmp_path / "nodes")
    late = {number: over.nodes.pop(number) for number in (13, 14)}
    play(over, settings, tmp_path / "run")
    over.nodes.update(late)  # new clients to this run
    back(tmp_path / "run")
    play(over, settings, tmp_path / "run")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    part = type(TOY).from_clients({c: {"train": _pair(c)} for c in list(TOY.ids)[:2]}, classes=10)
    alone = last(method_of(settings, part), part, 2, Local(), seed=settings.seed)
    assert result["digest"] == alone.digest()
    assert not (tmp_path / "run" / "failure.json").exists()


def _pair(client: Any) -> Any:
    whole = TOY.site(client, 0).train.whole()
    return whole.x, whole.y


def test_what_ends_the_server_app_is_written_down(tmp_path):
    with pytest.raises(InputError, match="2 of 3 nodes came"):
        play(grid(TOY), config(3, wait=0.1), tmp_path)
    failure = json.loads((tmp_path / "failure.json").read_text())
    assert failure["exit_code"] == 2
    assert "2 of 3 nodes came within 0.1 seconds. Start the others (fedquilt join)" in failure["error"]


def test_a_run_whose_clients_do_not_come_back_says_who_is_missing(tmp_path):
    over = grid(TOY)
    play(over, config(2), tmp_path)
    back(tmp_path)
    del over.nodes[12]
    with pytest.raises(InputError, match="client 1, 3 of this run did not come"):
        play(over, config(2, wait=0.1), tmp_path)


# The server, for real


RECIPE = """
name = "killed"
rounds = 1
[model]
kind = "logistic"
[flower]
nodes = 1
"""


class Serving:
    """The command, started again and again for one run."""

    def __init__(self, folder: Path) -> None:
        (folder / "recipe.toml").write_text(f'{RECIPE}\n[output]\nfolder = "{folder}/runs"\n')
        self.folder, self.port = folder, free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self.seen = ""

    def start(self) -> Path:
        """Start it and wait for its server app; the file that names that process."""
        words = ["fedquilt", "serve", "recipe.toml", "--insecure", "--port", str(self.port)]
        with (self.folder / "said.txt").open("ab") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *words], cwd=self.folder, stdout=said, stderr=said, start_new_session=True
            )
        end = time.monotonic() + 300
        while not (found := [p for p in self.folder.glob("runs/*/server.pid") if alive(p) and self._new(p)]):
            if self.process.poll() is not None or time.monotonic() > end:
                pytest.fail((self.folder / "said.txt").read_text())
            time.sleep(0.1)
        return found[0]

    def _new(self, place: Path) -> bool:
        with suppress(FileNotFoundError):
            before, self.seen = self.seen, place.read_text()
            return before != self.seen
        return False

    def end(self, sign: int) -> int:
        """Send it a signal; its exit code."""
        assert self.process is not None
        self.process.send_signal(sign)
        return self.process.wait(60)


@pytest.mark.flower
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_server_that_is_killed_leaves_nothing_behind_that_stops_the_next(tmp_path):
    serving = Serving(tmp_path)
    try:
        place = serving.start()
        link = place.parent / "flower" / "superlink.pid"
        assert alive(link)
        serving.end(signal.SIGKILL)
        assert wait_gone(link, 60), "the SuperLink outlived its server"
        assert serving.start() == place  # at once, while the old server app may still be there
        assert serving.end(signal.SIGTERM) == 143
        assert wait_gone(link, 30)
        assert wait_gone(place, 60)
        words = "stopped by SIGTERM after round 0; the same command goes on from there"
        assert (place.parent / "nodes.log").read_text().splitlines()[-1].endswith(words)
        assert words in (tmp_path / "said.txt").read_text()
        assert '"kind": "stopped"' in (place.parent / "messages.jsonl").read_text().splitlines()[-1]
        assert "\x1b" not in (place.parent / "flower" / "superlink.log").read_text(errors="replace")
    finally:
        if serving.process is not None and serving.process.poll() is None:
            serving.end(signal.SIGKILL)
