"""``fedquilt demo``: a scene played in short, from the command to its page."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path

import pytest

from fedquilt.config.config import parse
from fedquilt.demo.play import config_of
from fedquilt.demo.scenes import SCENES
from fedquilt.studies.compare import cells
from helpers.command import fedquilt

SHORT = ("--set", "rounds=2", "--set", "evaluate.every=1", "--set", "compare.seeds=[0,1]", "--set", "engine.kind=local")


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scene of rare classes, in two rounds and two seeds."""
    top = tmp_path_factory.mktemp("demo")
    said = fedquilt("demo", "rare", "--to", top, *SHORT)
    assert said.code == 0, said.err
    first, told, *_, last = said.out.strip().splitlines()
    assert first == "rare: Rare classes (6 runs)"
    assert told.startswith("rare: On a balanced test set FedLoGe's global model reaches ")
    assert last == f"page {top / 'rare.html'}"
    return top


def test_the_page_says_what_the_terminal_and_the_numbers_say(played: Path) -> None:
    [row] = json.loads((played / "rare.json").read_text())
    text = (played / "rare.html").read_text()
    assert escape(row["sentence"]) in text
    assert [value["method"] for value in row["values"]] == ["FedAvg", "FedLoGe"]
    folder = Path(row["report"]).parent
    assert Path(row["report"]).is_file()
    assert f'href="{folder.name}/report.html"' in text
    results = [json.loads((folder / f"fedavg-seed{seed}/result.json").read_text()) for seed in (0, 1)]
    mean = sum(result["best"]["common_test_accuracy"] for result in results) / 2
    assert row["values"][0]["value"] == pytest.approx(mean, abs=1e-9)


def test_a_finished_scene_is_not_played_again(played: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in played.rglob("rounds.jsonl")}
    said = fedquilt("demo", "rare", "--to", played, *SHORT, "--json")
    assert (said.code, said.json["page"]) == (0, str(played / "rare.html"))
    assert [scene["scene"] for scene in said.json["scenes"]] == ["rare"]
    assert {path: path.stat().st_mtime_ns for path in played.rglob("rounds.jsonl")} == before
    assert len(before) == 6


def test_what_cannot_be_played_is_refused(tmp_path: Path) -> None:
    said = fedquilt("demo", "grops", "--to", tmp_path)
    assert (said.code, "did you mean 'groups'?" in said.err) == (2, True)
    said = fedquilt("demo", "rare", "--to", tmp_path, "--set", "round=2")
    assert (said.code, "rounds" in said.err) == (2, True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", SCENES)
def test_a_recipe_has_what_its_scene_tells_of(name: str, tmp_path: Path) -> None:
    """Its system beside FedAvg and local training, in three seeds; and it can be written down and read again."""
    config = config_of(SCENES[name], tmp_path)
    methods = {cell.display for cell in cells(config)[1]}
    assert {"FedAvg", "local training", SCENES[name].system} <= methods
    assert len(config.compare.seeds) == 3
    assert parse(config.model_dump(mode="json", exclude_none=True)) == config
