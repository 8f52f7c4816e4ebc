"""A server follows its run: what Flower gave up before it began is submitted again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedquilt.config.config import parse
from fedquilt.deploy import serve
from fedquilt.deploy.flower_command import Address, FlowerError
from fedquilt.deploy.serve import FederationServer

CONFIG = {"rounds": 1, "method": "fedavg", "model": {"kind": "mlp", "hidden": [8]}, "flower": {"nodes": 1}}


class Flower:
    """Stands for Flower's command and the SuperLink behind it; each run ends as the next of ``fates`` says."""

    def __init__(self, folder: Path, *fates: str) -> None:
        self.folder, self.fates = folder, list(fates)
        self.submitted = self.asked = 0

    def __call__(self, words: list[str], home: Path, timeout: float = 0.0) -> str:
        if words[:2] == ["flwr", "run"]:
            self.submitted += 1
            if self.fates[0] == "played":
                (self.folder / "result.json").write_text(json.dumps({"rounds": 1}))
                (self.folder / "server.pid").write_text("999999999 0")  # it has ended
            return json.dumps({"success": True, "run-id": str(self.submitted)})
        if words[:2] == ["flwr", "list"]:
            self.asked += 1
            assert words[words.index("--run-id") + 1] == str(self.submitted)
            fate = self.fates.pop(0) if len(self.fates) > 1 else self.fates[0]
            if fate == "silent":
                raise FlowerError("no answer")
            return json.dumps({"success": True, "runs": [{"status": fate}]})
        return ""


@pytest.fixture
def follow(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    folder.mkdir()
    monkeypatch.setattr(serve, "_ASK", 0.0)
    monkeypatch.setattr(serve, "wait_for", lambda *given: None)

    def follow(*fates: str, notes: list[str] | None = None) -> tuple[Any, Flower]:
        flower = Flower(folder, *fates)
        monkeypatch.setattr(serve, "call", flower)
        server = FederationServer(folder, Address("127.0.0.1", 1), attach=True, restarts=2)
        heard = [] if notes is None else notes
        return server.follow(parse(CONFIG), lambda *row: None, heard.append), flower

    return follow


def test_a_run_that_flower_gave_up_before_it_began_is_submitted_again(follow):
    notes: list[str] = []
    result, flower = follow("pending", "silent", "starting", "finished:failed", "played", notes=notes)
    assert (result, flower.submitted, flower.asked) == ({"rounds": 1}, 2, 4)
    assert notes == ["the server was stopped; it continues from the last snapshot"]


def test_but_not_for_ever(follow):
    with pytest.raises(FlowerError, match="ended 3 times after round 0 without completing another"):
        follow("finished:failed")


def test_an_app_that_never_starts_is_told_of(follow, monkeypatch):
    monkeypatch.setattr(serve, "_START", 0.5)
    with pytest.raises(FlowerError, match="did not start within"):
        follow("running")
