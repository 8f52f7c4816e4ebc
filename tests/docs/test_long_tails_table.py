"""The tables of the page about long tails: made from kept numbers, and only where there is headroom."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from helpers.scripts import HOME, loaded


@pytest.fixture(scope="module")
def script() -> Any:
    before = list(sys.path)
    module = loaded("docs/long_tails_table.py")
    sys.path[:] = before
    return module


def run(chosen: str, accuracy: float, mine: float, **others: float) -> dict[str, Any]:
    """What is kept of a run: the same number in all groups."""
    scores = {chosen: accuracy, **others}
    return {
        "chosen": chosen,
        "common": {mode: dict.fromkeys(("accuracy", "head", "middle", "tail"), v) for mode, v in scores.items()},
        "own": {"deployed": {"accuracy": mine, "masked": mine + 0.1, "worst": mine - 0.1}},
    }


FOUND = {
    "upper": {"0": 0.60, "1": 0.64},
    "methods": {
        "FedAvg": {"0": run("global", 0.30, 0.5), "1": run("adjusted", 0.38, 0.5, **{"global": 0.32})},
        "FedLoGe, balanced": {"0": run("universal", 0.40, 0.6), "1": run("universal", 0.46, 0.8)},
    },
}


def test_cells_and_tests_by_hand(script: Any) -> None:
    """Chosen modes: FedAvg 30 and 38, so 34 ± sqrt(32) = 5.7; differences 10 and 8: 9 ± t(.975, 1) = 12.706 times
    sqrt(2) / sqrt(2), so 12.7; the t-test of 9 / 1 with one degree of freedom has p = 2 / pi arctan(1 / 9) = .070."""
    told = script.tables(FOUND)
    assert (
        "FedAvg 31.0 ± 1.4 %, all rows at one place with balanced softmax 62.0 ± 2.8 %: 31.0 points, 11 times" in told
    )
    assert "| FedAvg, **chosen on validation** (global or adjusted) | 34.0 ± 5.7 | 34.0 ± 5.7 |" in told
    assert "| FedLoGe, balanced, universal | 43.0 ± 4.2 |" in told
    assert "| FedLoGe, balanced, deployed | 70.0 ± 14.1 | 80.0 ± 14.1 | 60.0 ± 14.1 |" in told
    assert "| FedAvg | +9.0 ± 12.7 | 0.070 | +20.0 ± 127.1 | 0.295 |" in told
    page = f"before\n{script.BEGIN}\nold\n{script.END}\nafter\n"
    assert script.with_tables(page, FOUND) == f"before\n{script.BEGIN}\n\n{told}\n\n{script.END}\nafter\n"


def test_without_headroom_there_is_no_table(script: Any) -> None:
    with pytest.raises(SystemExit, match=r"No headroom: 4\.0 points, and seeds differ by 2\.8"):
        script.tables({**FOUND, "upper": {"0": 0.33, "1": 0.37}})


def test_the_page_shows_the_kept_numbers(script: Any) -> None:
    """Three seeds at least; without numbers there is nothing between the marks."""
    page, kept = (HOME / "docs/long-tails.md").read_text(encoding="utf-8"), HOME / "docs/long_tails.json"
    if not kept.exists():
        assert f"{script.BEGIN}\n{script.END}" in page
        return
    found = json.loads(kept.read_text(encoding="utf-8"))
    assert script.with_tables(page, found) == page, "run: python docs/long_tails_table.py"
    assert all(len(runs) >= 3 for runs in (found["upper"], *found["methods"].values()))
