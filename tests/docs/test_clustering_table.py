"""The page about clusters shows the simulated federations as they were measured."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

HOME = Path(__file__).resolve().parents[2]


def test_the_page_shows_the_numbers() -> None:
    spec = importlib.util.spec_from_file_location("clustering_table", HOME / "docs/clustering_table.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    told = json.loads(script.NUMBERS.read_text(encoding="utf-8"))
    page = script.PAGE.read_text(encoding="utf-8")
    assert script.with_table(page, told) == page, "run: python docs/clustering_table.py"
    assert len(told) == 200
    assert sum(row["auto"]["verdict"] != "wrong" for row in told) >= 0.95 * len(told)
