"""Recipes that come with the package have names, and a name will do wherever a recipe is asked for."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from fedquilt.config.config import load
from fedquilt.config.recipes import find, recipes
from fedquilt.errors import InputError
from helpers.command import SMALL, fedquilt

ROOT = Path(__file__).parents[3]


def test_every_recipe_of_the_repository_has_a_name_and_says_what_one_asks_before_running_it() -> None:
    files = {p.relative_to(ROOT / "recipes").with_suffix("").as_posix() for p in (ROOT / "recipes").rglob("*.toml")}
    assert set(recipes()) == files
    assert list(recipes())[:3] == ["compressed", "demo", "pretrain_mae"]
    for recipe in recipes().values():
        row = recipe.row
        assert row["command"] in ("run", "compare", "pretrain-mae"), recipe.name
        assert row["data"], recipe.name
        assert row["takes"], f"{recipe.name}: no line '# Takes ... .'"
        assert row["methods"] or row["command"] == "pretrain-mae", recipe.name
    rows = {recipe.name: recipe.row for recipe in recipes().values()}
    assert rows["quick"] | {"takes": ""} == {
        "name": "quick",
        "command": "run",
        "data": "digits",
        "takes": "",
        "methods": "fedavg",
    }
    assert rows["podfcssv/mnist_fashion"]["data"] == "mnist, fashion_mnist, emnist_letters"
    assert rows["podfcssv/two_clients"]["data"] == "eurosat, cifar10, dtd, svhn, cifar100"


@pytest.mark.parametrize("name", ["quick", "quick.toml", "recipes/quick.toml", Path("recipes/quick")])
def test_a_name_will_do_for_a_recipe(name: str | Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find(name) == ROOT / "recipes" / "quick.toml"
    assert load(name, ["rounds=3"]).rounds == 3


def test_a_path_on_the_disk_wins_and_a_folder_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("quick").mkdir()
    assert find("quick") == ROOT / "recipes" / "quick.toml"
    Path("demo").write_text(SMALL)
    assert load("demo").name == "small"
    Path("mine.toml").write_text(SMALL)
    for asked, said in {
        "qiuck": "Did you mean 'quick'?",
        "digits_groups": "Did you mean 'clustered/digits_groups'?",
        "mine.tml": "Did you mean 'mine.toml'?",
        ".": "'.' is a folder.",
    }.items():
        with pytest.raises(InputError) as error:
            find(asked)
        assert said in str(error.value)


def test_the_folder_of_a_run_is_no_recipe(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(SMALL)
    with pytest.raises(InputError, match=f"fedquilt resume {tmp_path}"):
        find(tmp_path)


def test_a_wrong_recipe_is_named_as_it_was_asked_for() -> None:
    said = fedquilt("run", "quick", "roundz=3")
    assert said.code == 2
    assert said.err.startswith("fedquilt: quick: 1 problem\n")


def test_the_command_lists_reads_and_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    listed = fedquilt("recipes", "--json").json
    assert [row["name"] for row in listed] == list(recipes())
    said = fedquilt("recipes")
    assert all(name in said.out for name in recipes())
    text = (ROOT / "recipes/stitch/digits.toml").read_text()
    assert fedquilt("recipes", "stitch/digits").out.rstrip() == text.rstrip()
    said = fedquilt("recipes", "stitch/digits", "--copy")
    assert said.out == "Written: digits.toml. Run it with: fedquilt compare digits.toml\n"
    assert Path("digits.toml").read_text() == text
    again = fedquilt("recipes", "stitch/digits", "--copy", "--json")
    assert again.code == 2
    assert "already exists here" in json.loads(again.out)["message"]
    assert "fedquilt recipes NAME --copy" in fedquilt("recipes", "--copy").err
    assert "Did you mean 'demo'" in fedquilt("recipes", "dmeo").err


def test_the_wheel_takes_them_along() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["force-include"]["recipes"] == "fedquilt/recipes"
