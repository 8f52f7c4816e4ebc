"""The notebook runs from top to bottom, and prints what it was saved with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers.notebook import play, printed

NOTEBOOK = Path(__file__).parents[2] / "examples" / "podfcssv.ipynb"


def test_the_notebook_was_executed() -> None:
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert all(cell["outputs"] for cell in cells)


@pytest.mark.slow
def test_the_notebook_runs_and_learns(tmp_path: Path) -> None:
    """As many lines in every cell as it was saved with; other machines may print other last digits."""
    now, then = printed(play(NOTEBOOK, tmp_path)), printed(json.loads(NOTEBOOK.read_text()))
    assert [len(text.splitlines()) for text in now] == [len(text.splitlines()) for text in then]
    banks = [int(line.split("bank ")[1].split(",")[0]) for line in now[3].splitlines()]
    assert banks == sorted(banks)
    assert banks[-1] > 5
