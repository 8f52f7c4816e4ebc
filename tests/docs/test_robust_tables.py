"""The tables of the page Malicious clients are those that the benchmark writes from its numbers."""

from __future__ import annotations

import importlib.util
from pathlib import Path

HOME = Path(__file__).resolve().parents[2]


def test_the_page_shows_what_was_measured() -> None:
    spec = importlib.util.spec_from_file_location("robust_benchmark", HOME / "benchmarks/robust.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    page = script.PAGE.read_text(encoding="utf-8")
    found = script.known()
    assert script.tables(found).keys() == {"rules", "worst", "cost", "flower"}
    assert script.written(page, found) == page, "run: python benchmarks/robust.py write"
    before = script.written(page, {})  # nothing stands above a table that is not there
    assert "**Time.**" in page
    assert "**Time.**" not in before
    assert script.written(before, found) == page
