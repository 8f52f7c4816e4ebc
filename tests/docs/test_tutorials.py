"""Every tutorial runs and says what it was saved with; its page is its cells and outputs, and nothing else.

Numbers are compared on the kind of machine that made them; elsewhere it is the number of lines that is.
"""

from __future__ import annotations

import json
import re
from difflib import unified_diff
from pathlib import Path
from typing import Any

import pytest

from fedquilt.runs.outputs import environment, same_kind
from helpers.notebook import play
from helpers.scripts import loaded

ROOT = Path(__file__).parents[2]
HOME = ROOT / "docs" / "tutorials"
TIMES = re.compile(
    r"<td>(?:<strong>)?[\d.]+(?:</strong>)?</td>(?=</tr>)|\b[\d.]+ (?:s|sec|seconds|MB of memory)\b|\d+:\d\d"
)
PROGRESS = re.compile(r"^\S+: \d+/\d+\b.*\n", re.M)  # a line every few seconds: more of them where it is slow
tutorials = loaded("docs/tutorials.py")


def saved(name: str) -> dict[str, Any]:
    return dict(json.loads((HOME / f"{name}.ipynb").read_text(encoding="utf-8")))


def outputs(notebook: dict[str, Any]) -> list[list[tuple[str, str]]]:
    """What each cell showed: kinds and texts, without times and progress; of pictures only that there is one."""
    return [
        [
            (kind, "" if kind == "image/png" else TIMES.sub("#", PROGRESS.sub("", tutorials.text_of(text))))
            for output in cell["outputs"]
            for kind, text in output.get("data", {"stream": output.get("text", "")}).items()
        ]
        for cell in notebook["cells"]
        if cell["cell_type"] == "code"
    ]


def texts(shown: list[list[tuple[str, str]]]) -> list[str]:
    return [line for cell in shown for _, text in cell for line in text.splitlines()]


def lines(shown: list[list[tuple[str, str]]]) -> list[list[tuple[str, int]]]:
    return [[(kind, text.count("\n")) for kind, text in cell] for cell in shown]


def test_every_tutorial_has_its_place() -> None:
    """The quick start first, then the tutorials in the order of the script."""
    pages = re.findall(r": (quickstart\.md|tutorials/.*\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M)
    assert pages == ["quickstart.md", *(f"tutorials/{name}.md" for name in tutorials.NAMES)]
    assert sorted(path.stem for path in HOME.glob("*.ipynb")) == sorted(tutorials.NAMES)


@pytest.mark.parametrize("name", tutorials.NAMES)
def test_a_page_is_its_notebook(name: str) -> None:
    files = tutorials.page(name, saved(name))
    for file, content in files.items():
        assert (HOME / file).read_bytes() == content, f"run: python docs/tutorials.py --pages {name}"
    assert {path.name for path in HOME.glob(f"{name}-[0-9].png")} == files.keys() - {f"{name}.md"}


@pytest.mark.parametrize("name", tutorials.NAMES)
def test_a_tutorial_is_short_and_was_run(name: str) -> None:
    notebook = saved(name)
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert len(code) <= 12
    assert "## Where to go next" in "".join(notebook["cells"][-1]["source"])


@pytest.mark.parametrize("name", tutorials.NAMES)
def test_a_tutorial_runs(name: str, tmp_path: Path) -> None:
    if name == "three-hospitals":
        pytest.importorskip("flwr")
    kept = saved(name)
    now, then = outputs(play(HOME / f"{name}.ipynb", tmp_path)), outputs(kept)
    assert lines(now) == lines(then), "\n".join(unified_diff(*map(texts, (then, now)), lineterm=""))
    if same_kind(environment(), kept["metadata"]["made_with"]):
        assert now == then, f"other numbers: run python docs/tutorials.py {name}, and read its prose again"
