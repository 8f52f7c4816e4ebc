"""The examples in docstrings are run, so that none of them is wrong for long."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import fedquilt

TOP = Path(fedquilt.__file__).parent
FILES = sorted(path for path in TOP.rglob("*.py") if "    >>> " in path.read_text(encoding="utf-8"))


def test_there_are_samples_and_most_of_them_run() -> None:
    """Those that need the folder of a run, or a network, are marked as not to be run."""
    lines = [line for path in FILES for line in path.read_text(encoding="utf-8").splitlines() if "    >>> " in line]
    assert sum("+SKIP" not in line for line in lines) > 30


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(TOP).as_posix())
def test_the_examples_of_a_module_do_what_they_say(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    parts = path.relative_to(TOP.parent).with_suffix("").parts
    module = importlib.import_module(".".join(parts).removesuffix(".__init__"))
    assert doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE).failed == 0
