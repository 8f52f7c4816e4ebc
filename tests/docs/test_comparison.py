"""The page How it compares: written from its data, every cell has a source, and what it says of us is so."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from helpers.command import fedquilt
from helpers.scripts import loaded

HOME = Path(__file__).resolve().parents[2]
FRAMES = {"local_only", "centralised", "single_model", "mae_alone", "mae_pooled"}
VARIANTS = {
    "fedper_finetune",
    "perfedavg_hf",
    "fedrod_hyper",
    "fedgroup_params",
    "fedper_grouped",
    "ifca_gradient",
    "cgpfl_moreau",
    "stitch_once",
}
AVERAGING = {"fedavg", "fedprox", "fedavg_noise", "fedavgm", "fedadam", "fedadagrad", "fedyogi"} | {
    "scaffold",
    "fednova",
    "feddyn",
    "moon",
}
WORDS = {"yes", "in part", "no", "not found", "not checked", "not run", "none", "documented", "reported"}


@pytest.fixture(scope="module")
def script() -> Any:
    return loaded("docs/comparison_table.py")


@pytest.fixture(scope="module")
def data(script: Any) -> dict[str, Any]:
    return dict(script.load())


def test_the_page_shows_the_data(script: Any, data: dict[str, Any]) -> None:
    page = script.PAGE.read_text(encoding="utf-8")
    assert script.with_table(page, data) == page, "run: python docs/comparison_table.py"
    assert max(len(line) for line in page.splitlines()) <= 120


def test_every_cell_has_a_source_and_every_source_a_cell(script: Any, data: dict[str, Any]) -> None:
    for row in data["rows"]:
        assert len(row["cells"]) == len(data["columns"]), row["what"]
        assert all(word.isdigit() or word in WORDS for word, _ in row["cells"]), row["what"]
    jobs = script.jobs(data)
    assert all(len(cells) == len(data["lines"]["columns"]) for _, cells in jobs)
    cells = [cell for row in data["rows"] for cell in row["cells"]] + [cell for _, row in jobs for cell in row]
    assert {source for _, source in cells} == set(data["sources"])


def test_lines_are_statements(script: Any) -> None:
    code = '''
"""Said."""
import os  # why
from a import (
    b,
)

@b
def f(
    x,
):
    """Said."""
    # so
    return g(
        x,
    )

"text".join(x)
'''
    assert script.logical(code) == (4, 2)


def test_our_lines_name_what_there_is(script: Any) -> None:
    with pytest.raises(KeyError, match="wdith"):
        script.our_lines({"files": [], "keys": ["model.wdith"], "source": "la"})
    assert script.our_lines({"files": [], "keys": ["model.width"], "commands": 2, "source": "la"})[0] == "3 + 0"


def counted(data: dict[str, Any], column: int) -> list[int]:
    return [int(row["cells"][column][0]) for row in data["rows"] if row["cells"][column][0].isdigit()]


def test_our_methods_are_so_many(data: dict[str, Any]) -> None:
    names = {method["name"] for method in fedquilt("methods", "--json").json}
    assert names >= FRAMES | VARIANTS
    assert f"lists {len(names)} names" in data["sources"]["q1"]
    whole, *kinds = counted(data, 0)
    assert whole == len(names - FRAMES - VARIANTS)
    assert sum(kinds) + len(AVERAGING) == whole
    assert names >= AVERAGING


def test_flower_has_so_many_strategies(data: dict[str, Any]) -> None:
    strategy = pytest.importorskip("flwr.serverapp.strategy")
    if importlib.import_module("importlib.metadata").version("flwr") != "1.41.0":
        pytest.skip("the page is about flwr 1.41.0")
    names = {name for name in strategy.__all__ if not name.startswith(("DifferentialPrivacy", "FedXgb"))}
    assert counted(data, 1)[0] == len(names - {"Result", "Strategy"})
