"""What serve and join say: sites by name, "stopped" on SIGTERM, and Flower's noise in a file without colours."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest

from fedquilt.config.config import dump, parse
from fedquilt.deploy import join, serve
from fedquilt.deploy.flower_command import Address, keep_output
from fedquilt.deploy.join import Membership
from fedquilt.deploy.serve import FederationServer
from fedquilt.deploy.site import settings_of
from fedquilt.deploy.told import NODES, SITE, telling
from fedquilt.errors import FrameError
from fedquilt.watch.board import Board

CONFIG = parse({"rounds": 3, "method": "fedavg", "model": {"kind": "mlp", "hidden": [8]}, "flower": {"nodes": 1}})
ROW = {"round": 2, "bytes_up": 1, "bytes_down": 1, "seconds": 0.5, "clients": 2}


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A server whose SuperLink and app are only said to be there; it ends as it is told after a few looks."""
    folder = tmp_path / "run"
    (folder / "metrics").mkdir(parents=True)
    (folder / "config.toml").write_text(dump(CONFIG))
    (folder / "metrics" / "rounds.jsonl").write_text(json.dumps(ROW) + "\n")
    (folder / NODES).write_text("2026-01-01 00:00:00 said before\n")
    monkeypatch.setattr(serve, "call", lambda *given: json.dumps({"run-id": "1"}))
    monkeypatch.setattr(serve, "wait_for", lambda *given: None)

    def follow(end: BaseException) -> list[str]:
        looks, notes = [0], list[str]()

        def sleep(seconds: float) -> None:
            looks[0] += 1
            with (folder / NODES).open("a") as file:
                file.write(f"2026-01-01 00:00:0{looks[0]} site 'oslo' is away, look {looks[0]}\n")
            if looks[0] == 3:
                raise end

        monkeypatch.setattr(serve.time, "sleep", sleep)
        server = FederationServer(folder, Address("127.0.0.1", 1), attach=True)
        with pytest.raises(type(end)):
            server.follow(CONFIG, lambda *row: None, notes.append)
        monkeypatch.undo()
        return notes

    return folder, follow


@pytest.mark.parametrize(("end", "by"), [(SystemExit(143), "SIGTERM"), (KeyboardInterrupt(), "Ctrl-C")])
def test_a_server_that_is_stopped_says_so(served: Any, end: BaseException, by: str) -> None:
    folder, follow = served
    notes = follow(end)
    words = f"stopped by {by} after round 2; the same command goes on from there"
    assert notes[-1] == words
    assert (folder / NODES).read_text().splitlines()[-1].endswith(words)
    said = [json.loads(line) for line in (folder / "messages.jsonl").read_text().splitlines()]
    assert (said[-1]["kind"], said[-1]["round"], said[-1]["text"]) == ("stopped", 2, f"by {by}")
    (line,) = Board(folder).lines()
    assert line["state"] == "stopped"


def test_the_terminal_shows_what_is_said_of_sites(served: Any) -> None:
    """What the log of nodes had before is not said again."""
    _, follow = served
    notes = follow(SystemExit(143))
    assert [note[20:] for note in notes[:-1]] == ["site 'oslo' is away, look 1", "site 'oslo' is away, look 2"]


def test_sigterm_becomes_an_exit_code_and_a_word() -> None:
    from fedquilt import cli
    from helpers.command import fedquilt

    def stopped(*given: Any, **options: Any) -> NoReturn:
        sys.exit(143)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cli.app, "__call__", stopped, raising=False)
        patch.setattr("fedquilt.analysis.doctor.checks", stopped)
        plain, as_json = fedquilt("doctor"), fedquilt("doctor", "--json")
    assert (plain.code, "Stopped" in plain.err) == (143, True)
    assert as_json.json["exit_code"] == 143


def member(tmp_path: Path) -> Membership:
    (tmp_path / "oslo.npz").touch()
    given = {"data": str(tmp_path / "oslo.npz"), "name": "oslo", "state": str(tmp_path / "state")}
    return Membership(Address("127.0.0.1", 1), settings_of(given, "join", "--"))


@pytest.mark.parametrize(("end", "by"), [(SystemExit(0), "SIGTERM"), (KeyboardInterrupt(), "Ctrl-C")])
def test_a_node_that_is_stopped_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: BaseException, by: str
) -> None:
    def stay(self: Membership, note: Any) -> NoReturn:
        raise end

    monkeypatch.setattr(Membership, "_stay", stay)
    monkeypatch.setattr(join.signal, "signal", lambda *given: None)
    notes: list[str] = []
    with pytest.raises(type(end)):
        member(tmp_path).run(notes.append)
    assert notes == [f"site 'oslo' stopped, by {by}; clients' states are kept in {tmp_path / 'state'}"]
    assert (tmp_path / "state" / SITE).read_text().strip().endswith(notes[0])


def test_what_flower_says_is_kept_without_colours(tmp_path: Path) -> None:
    words = (
        "print('\\x1b[92mINFO \\x1b[0m:      \\x1b[1mready\\x1b[0m'); import sys; sys.stderr.write('\\x1b[31mno\\n')"
    )
    for _ in range(2):
        process = subprocess.Popen([sys.executable, "-c", words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        keep_output(process, tmp_path / "flower" / "debug.log").join(20)
        process.wait()
    said = (tmp_path / "flower" / "debug.log").read_text()
    assert sorted(said.splitlines()) == ["INFO :      ready"] * 2 + ["no"] * 2


def test_a_long_log_is_put_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedquilt.deploy.flower_command._LONGEST_LOG", 3)
    log = tmp_path / "debug.log"
    log.write_text("long ago\n")
    process = subprocess.Popen([sys.executable, "-c", "print('now')"], stdout=subprocess.PIPE)
    keep_output(process, log).join(20)
    process.wait()
    assert (log.read_text(), (tmp_path / "debug.log.old").read_text()) == ("now\n", "long ago\n")


def test_a_site_tells_of_its_messages() -> None:
    said: list[str] = []

    def answer(kind: str, frames: dict[str, bytes]) -> dict[str, bytes]:
        if kind == "train.bad":
            raise FrameError("no such method")
        if kind == "train.worse":
            raise KeyError("x")
        return frames

    spoken = telling(answer, said.append)
    for kind in ("query.here", "query.here", "query.busy", "train.train"):
        assert spoken(kind, {"a": b"b"}) == {"a": b"b"}
    for kind, error in (("train.bad", FrameError), ("train.worse", KeyError)):
        with pytest.raises(error):
            spoken(kind, {})
    assert said[0] == "the server has asked who is here"
    assert said[1].startswith("train.train: answered in ")
    assert said[2:] == ["train.bad: refused: no such method", "train.worse: failed (KeyError: 'x')"]
