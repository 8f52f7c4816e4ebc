"""The page *The walk*: its links lead where they say, and a real run goes that way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from helpers.scripts import loaded

HOME = Path(__file__).resolve().parents[2]
PAGE = (HOME / "docs/walk.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def script() -> Any:
    return loaded("docs/walk_links.py")


def test_every_link_leads_to_the_line_where_its_name_is_defined(script: Any) -> None:
    assert len(script.links(PAGE)) == PAGE.count("](/src/")
    assert script.updated(PAGE) == PAGE, "run: python docs/walk_links.py"


def test_a_run_crosses_every_file_that_is_named(script: Any, tmp_path: Path) -> None:
    recipe = HOME / "recipes/quick.toml"
    settings = ("rounds=1", "data.limit=200", "engine.kind=local", f"output.folder={tmp_path}")
    command = [sys.executable, str(HOME / "tests/helpers/crossed.py"), "run", str(recipe), *settings]
    path = os.pathsep.join([str(HOME / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": path})
    parts: dict[str, list[str]] = json.loads(done.stdout)
    crossed = set().union(*parts.values())
    named = {file for _, file, _ in script.links(PAGE)}
    print({part: len(files) for part, files in parts.items()}, "in all", len(crossed), "of which named", len(named))
    assert parts.keys() == {"begin", "round", "client", "record", "end"}, "crossed.py names a function that is gone"
    assert len(named) <= 45
    assert named <= crossed, f"not crossed: {sorted(named - crossed)}"
