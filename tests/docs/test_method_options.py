"""The cards of the methods: tables of hyperparameters, recipes, and the code that equations point to."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from fedquilt.config.config import parse
from fedquilt.registry import METHODS
from helpers.scripts import loaded

HOME = Path(__file__).resolve().parents[2]
CARDS = sorted(set((HOME / "docs/methods").glob("*.md")) - {HOME / "docs/methods/index.md"})
PLACES = ("benchmarks", "core", "examples", "methods", "pieces", "recipes", "tests")


@pytest.fixture(scope="module")
def script() -> Any:
    return loaded("docs/method_options.py")


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.stem)
def test_tables_are_up_to_date(script: Any, card: Path) -> None:
    page = card.read_text(encoding="utf-8")
    assert script.with_tables(page) == page, "run: python docs/method_options.py"


def test_every_method_has_its_table_in_one_card(script: Any) -> None:
    found = [name for card in CARDS for name in script.methods_of(card.read_text(encoding="utf-8"))]
    assert sorted(found) == sorted(METHODS)


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.stem)
def test_recipes_are_right(script: Any, card: Path) -> None:
    """Every recipe in a card can be read and is of a method of that card; every card of a method has one."""
    page = card.read_text(encoding="utf-8")
    kinds = {parse(tomllib.loads(block)).method.kind for block in re.findall(r"^```toml\n(.*?)^```", page, re.M | re.S)}
    names = script.methods_of(page)
    assert kinds <= set(names)
    assert bool(kinds) == bool(names)


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.stem)
def test_code_beside_equations_exists(card: Path, source: str) -> None:
    page = card.read_text(encoding="utf-8")
    for path in re.findall(rf"`((?:{'|'.join(PLACES)})/[\w/]+\.\w+)", page):
        assert (HOME / "src/fedquilt" / path).exists() or (HOME / path).exists(), path
    for row in re.findall(r"^\|.*\| (.*`.*) \|$", page.partition("## Equations")[2].partition("\n## ")[0], re.M):
        for name in re.findall(r"`([\w.]+)`", row):
            assert re.search(rf"\b{name.rpartition('.')[2]}\b", source), name


@pytest.fixture(scope="module")
def source() -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in (HOME / "src/fedquilt").rglob("*.py"))


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.stem)
def test_form(card: Path) -> None:
    """Lines fit, formulas are closed, and a table has no bar inside a formula."""
    page = card.read_text(encoding="utf-8")
    assert max(map(len, page.splitlines())) <= 120
    assert page.count("$$") % 2 == 0
    assert all(line.count(r"\(") == line.count(r"\)") for line in page.splitlines())
    for row in re.findall(r"^\|.*\|$", page, re.M):
        assert not any("|" in formula for formula in re.findall(r"\\\(.*?\\\)", row)), row
