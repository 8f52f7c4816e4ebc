"""A package of one's own, really installed by pip, used by the command in a process of its own."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import fedquilt

PACKAGE = Path(__file__).parents[2] / "helpers" / "plugin_package"
PAGE = Path(__file__).parents[3] / "docs" / "plugins.md"
RECIPE = """
name = "plugged"
rounds = 2

[data]
source = "two_moons"
clients = 3
partition = "in_order"
transforms = ["jitter"]

[model]
kind = "wave"
rate = 2.0

[method]
kind = "fedavg_half"
step = 0.25
"""
pytestmark = pytest.mark.skipif(importlib.util.find_spec("setuptools") is None, reason="pip builds with setuptools")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the package is installed: a folder that only these processes see."""
    top = tmp_path_factory.mktemp("plugins")
    shutil.copytree(PACKAGE, top / "source", ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check", "--quiet"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(top / "site"), str(top / "source")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return top / "site"


def told(site: Path) -> dict[str, str]:
    """An environment with the package on its path."""
    paths = [str(Path(fedquilt.__file__).parents[1]), str(site)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONWARNINGS": "error"}


def asked(site: Path, *words: str) -> Any:
    """What the command says with the package on its path."""
    command = [sys.executable, "-m", "fedquilt", *words, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env=told(site), cwd=site, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_what_it_brings_is_listed(site: Path) -> None:
    methods = {row["name"]: row for row in asked(site, "methods")}
    assert methods["fedavg_half"]["about"] == "from quilt-extras"
    assert {"fedavg", "fedavg_half"} <= methods.keys()
    assert "two_moons" in {row["name"] for row in asked(site, "datasets")}
    models = {row["name"]: row for row in asked(site, "models")}
    assert models["wave"]["description"] == "from quilt-extras"
    assert asked(site, "models", "wave", "rate=3.0", "--shape", "2", "--classes", "2")["parameters"] == 6


def test_a_recipe_uses_it_on_every_engine(site: Path) -> None:
    (site / "plugged.toml").write_text(RECIPE)
    found = {
        kind: asked(site, "run", "plugged.toml", f"engine.kind={kind}", f"output.folder={kind}", "engine.processes=1")
        for kind in ("local", "workers", "counting")
    }
    assert all(f["engine"]["engine"] == kind for kind, f in found.items())
    assert found["local"]["digest"] == found["workers"]["digest"] == found["counting"]["digest"]


def test_its_method_and_its_engine_keep_every_promise(site: Path) -> None:
    """Both as they are installed, checked as whoever wrote them would."""
    code = (
        "from fedquilt.testing import check_engine, check_method, network\n"
        "from fedquilt.testing.toy import WORK\n"
        "from quilt_extras import Counting, Damped\n"
        "if __name__ == '__main__':\n"
        "    print(check_method(Damped(network(), step=0.8, **WORK)))\n"
        "    print(check_engine(Counting()))\n"
    )
    (site / "checked.py").write_text(code)
    done = subprocess.run([sys.executable, "checked.py"], capture_output=True, text=True, env=told(site), cwd=site)
    assert done.returncode == 0, done.stdout + done.stderr
    found = dict(line.split()[1::-1] for line in done.stdout.splitlines() if not line.startswith(" "))
    assert [name for name, how in found.items() if how != "passed"] == ["tells_of_lost_clients"]  # it cannot lose any
    assert {"learns", "resumes", "same_as_local"} <= found.keys()


def test_the_page_shows_this_package() -> None:
    """The two files on the page are the ones installed here."""
    shown = re.findall(r"^```(?:text|py)\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    assert (PACKAGE / "pyproject.toml").read_text() in shown
    assert (PACKAGE / "src" / "quilt_extras" / "__init__.py").read_text() in shown
    assert RECIPE.lstrip() in shown
