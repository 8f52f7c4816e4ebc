"""``fedquilt new``: a project that runs as it is."""

from __future__ import annotations

import json
import shlex
import tomllib
from pathlib import Path

import pytest

from fedquilt.config.config import load
from fedquilt.config.data import federation_of
from helpers.command import fedquilt


@pytest.mark.parametrize("data", ["digits", "csv", "images"])
def test_a_new_project_runs(data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = fedquilt("new", "my project", "--data", data)
    assert said.code == 0, said
    folder = tmp_path / "my project"
    assert said.out.splitlines()[-1] == "  fedquilt run recipe.toml"
    recipe = tomllib.loads((folder / "recipe.toml").read_text())
    assert recipe["name"] == "my-project"
    assert recipe["model"]["kind"] == f"my_model.py:{'MyMLP' if data == 'csv' else 'MyCNN'}"
    assert "PROJECT" not in (folder / "README.md").read_text()
    monkeypatch.chdir(folder)
    found = fedquilt("run", "recipe.toml", "rounds=3", "--json")
    assert found.code == 0, found
    assert found.json["last"]["test_accuracy"] > 0.25
    if data == "csv":
        assert "labels: 0 benign, 1 malignant" in fedquilt("partition", "recipe.toml").out
    if data != "digits":
        return
    compared = fedquilt("compare", "recipe.toml", "rounds=1", "compare.seeds=[0]", "engine.at_once=1", "--json")
    assert compared.code == 0, compared
    methods = [row["method"] for row in compared.json["rows"]]
    assert methods == ["fedavg", "ditto", "MyMethod", "local_only", "centralised"]


def test_a_project_says_what_is_in_it_and_how_to_go_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    told = fedquilt("new", "a b", "--data", "csv").out.splitlines()
    assert [word.strip("'\"") for word in shlex.split(told[-2], posix=True)] == ["cd", "a b"]
    folder = tmp_path / "a b"
    files = [
        line.split("`")[1].rstrip("/") for line in (folder / "README.md").read_text().splitlines() if "| `" in line
    ]
    assert sorted([*files, "README.md"]) == sorted(path.name for path in folder.iterdir())
    said = fedquilt("run", "a b")
    assert said.code == 2
    assert f"'a b' is a folder. Give the path of a recipe, such as '{Path('a b') / 'recipe.toml'}'." in said.err
    table = (folder / "data.csv").read_text().splitlines()
    wide = [f"{line},{'clinic' if not i else 'abc'[i % 3]}" for i, line in enumerate(table)]
    (folder / "data.csv").write_text("\n".join(wide) + "\n")
    recipe = (folder / "recipe.toml").read_text()
    assert '\n# user = "clinic"' in recipe
    left = [line for line in recipe.splitlines() if not line.startswith(("clients", "partition"))]
    config = load(write(folder / "natural.toml", "\n".join(left).replace('# user = "clinic"', 'user = "clinic"')))
    monkeypatch.chdir(folder)
    assert federation_of(config).ids == ("a", "b", "c")


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_folder_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    assert fedquilt("new", tmp_path / "mine", "--json").json["files"] == [
        "README.md",
        "my_method.py",
        "my_model.py",
        "recipe.toml",
    ]
    before = (tmp_path / "mine" / "recipe.toml").read_text()
    said = fedquilt("new", tmp_path / "mine", "--json")
    assert said.code == 2
    assert "already exists and is not empty" in json.loads(said.out)["message"]
    assert (tmp_path / "mine" / "recipe.toml").read_text() == before
    assert "is not a valid project name" in fedquilt("new", tmp_path / "...").err


def test_a_run_that_is_not_there_is_told_by_its_likeness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "quick-1a2b3c4d").mkdir(parents=True)
    (tmp_path / "runs" / "quick-1a2b3c4d" / "config.toml").touch()
    assert "did you mean 'runs/quick-1a2b3c4d'?" in fedquilt("resume", "runs/quick").err
    assert "There is no folder 'elsewhere/x'. " in fedquilt("resume", "elsewhere/x").err
