"""The drawing of the house has its rooms, and the decisions are numbered, listed and speak of files that exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "fedquilt"
PAGES = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))


def test_the_drawing_has_the_rooms_of_the_source() -> None:
    drawn = re.findall(r'class="room"[^>]*>(\w+)<', (ROOT / "docs" / "house.svg").read_text())
    assert sorted(drawn) == sorted(path.parent.name for path in SOURCE.glob("*/__init__.py"))
    made = subprocess.run(
        [sys.executable, "-c", "import house; print(house.drawn(), end='')"],
        cwd=ROOT / "docs",
        capture_output=True,
        text=True,
        check=True,
    )
    assert made.stdout == (ROOT / "docs" / "house.svg").read_text(), "python docs/house.py draws it anew"


def test_decisions_are_numbered_and_listed_under_their_titles() -> None:
    titles = [page.read_text().splitlines()[0] for page in PAGES]
    assert [title.split(".")[0] for title in titles] == [f"# {number}" for number in range(1, len(PAGES) + 1)]
    listed = re.findall(
        r"^\| \[(\d+)\]\((.+)\) \| (.+) \|$", (ROOT / "docs" / "decisions" / "index.md").read_text(), re.M
    )
    shown = [(page.name[:4], page.name, title.split(". ", 1)[1]) for page, title in zip(PAGES, titles, strict=True)]
    assert listed == shown


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_decision_is_short_and_speaks_of_files_that_exist(page: Path) -> None:
    text = page.read_text()
    assert re.findall(r"^## (.+)$", text, re.M) == ["Context", "Decision", "Consequences"]
    assert len(text.splitlines()) <= 25
    assert all((SOURCE / path).exists() for path in re.findall(r"`([\w/]+\.py)`", text))
