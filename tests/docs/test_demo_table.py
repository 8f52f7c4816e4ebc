"""The README's table of the demo: written from numbers of a run, and those are what a fresh run gives."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from fedquilt.runs.outputs import environment, same_kind
from helpers.command import fedquilt

HOME = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def script() -> Any:
    spec = importlib.util.spec_from_file_location("demo_table", HOME / "docs/demo_table.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def numbers() -> dict[str, Any]:
    return dict(json.loads((HOME / "docs/demo.json").read_text(encoding="utf-8")))


def test_the_readme_shows_the_numbers(script: Any, numbers: dict[str, Any]) -> None:
    page = (HOME / "README.md").read_text(encoding="utf-8")
    assert script.with_table(page, numbers) == page, "run: python docs/demo_table.py"


@pytest.mark.parametrize(("method", "seed"), [("centralised", 2), ("fedavg", 0)])
def test_the_numbers_are_those_of_a_fresh_run(numbers: dict[str, Any], tmp_path: Path, method: str, seed: int) -> None:
    """A frame, of the seed whose number differs between kinds of CPU, and a federation.

    On the kind of CPU of the table to the last digit; on another one, where nothing more is promised, within the
    intervals of seeds and test samples."""
    pytest.importorskip("mlxtend")
    given = (f"method={method}", f"seed={seed}", f"output.folder={tmp_path}", "--json")
    said = fedquilt("run", HOME / "recipes/demo.toml", *given)
    assert said.code == 0, said.err
    found, told = said.json["best"]["test_accuracy"], numbers["accuracies"][method][numbers["seeds"].index(seed)]
    if same_kind(environment(), numbers["environment"]):
        assert found == pytest.approx(told, abs=1e-9), "the demo gives other numbers: run python docs/demo_table.py"
        return
    print("another kind of CPU or version of torch than the table's: compared within intervals only")
    row = next(row for row in numbers["rows"] if row["method"] == method)
    assert abs(found - told) <= 2 * row["accuracy_half_95"] + 2 * said.json["best"]["test_accuracy_rows_half_95"]


def test_every_row_of_the_recipe_is_in_the_table(script: Any, numbers: dict[str, Any]) -> None:
    from fedquilt.config.config import load
    from fedquilt.studies.compare import cells

    config = load(HOME / "recipes/demo.toml")
    labels = list(dict.fromkeys(cell.label for cell in cells(config)[1]))
    assert [row["method"] for row in numbers["rows"]] == labels
    assert {label: len(found) for label, found in numbers["accuracies"].items()} == dict.fromkeys(labels, 3)
    assert (numbers["rounds"], numbers["seeds"]) == (config.rounds, config.compare.seeds)
    lines = script.table(numbers).splitlines()
    assert len([line for line in lines if line.startswith("|")]) == len(labels) + 3
