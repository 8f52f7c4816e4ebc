"""Every command and every piece of Python shown in the README and the docs is run, page by page, in order.

Blocks with a title are files or commands of several machines: tests/flower/test_deployment_page.py plays those.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.warm import Warm

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.M | re.S)


def blocks(page: Path, language: str) -> list[str]:
    return [body for kind, body in FENCE.findall(page.read_text()) if kind == language]


def with_blocks(language: str) -> list[Path]:
    return [page for page in PAGES if blocks(page, language)]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    """Who answers the commands of all pages."""
    with Warm(tmp_path_factory.mktemp("warm"), ROOT / "src") as found:
        yield found


@pytest.mark.parametrize("page", with_blocks("bash"), ids=name)
def test_commands(page: Path, tmp_path: Path, warm: Warm) -> None:
    shutil.copytree(ROOT / "recipes", tmp_path / "recipes")
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    warm.caller(tmp_path / "bin" / "fedquilt")
    path = os.pathsep.join([str(tmp_path / "bin"), os.environ["PATH"]])
    source = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    for block in blocks(page, "bash"):
        for line in block.strip().splitlines():
            done = subprocess.run(
                line, shell=True, cwd=tmp_path, capture_output=True, text=True, timeout=300,
                env={**os.environ, "PATH": path, "PYTHONPATH": source},
            )  # fmt: skip
            assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("page", with_blocks("python"), ids=name)
def test_python(page: Path) -> None:
    module = type(sys)("page")
    sys.modules["page"] = module
    try:
        for block in blocks(page, "python"):
            exec(compile(block, str(page), "exec"), module.__dict__)
    finally:
        del sys.modules["page"]


@pytest.mark.parametrize("page", with_blocks("toml"), ids=name)
def test_settings(page: Path) -> None:
    """The defaults shown in the docs are the defaults."""
    import tomllib

    from fedquilt.runs.config import Config, parse

    for block in blocks(page, "toml"):
        assert parse(tomllib.loads(block)) == Config()


def test_only_the_deployment_page_needs_several_machines() -> None:
    """Titled blocks, and the language shell, are not run here; they may be used on no page that nobody else plays."""
    others = [page for page in PAGES if re.search(r"^```(shell|\w+ title=)", page.read_text(), re.M)]
    assert others == [ROOT / "docs" / "deployment.md"]
    assert not re.search(r"^```(bash|python|toml|shell)\n", others[0].read_text(), re.M)


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    shown = set(re.findall(r"^make (\w+)", "\n".join(p.read_text() for p in PAGES), re.M))
    assert {"demo", "test"} <= shown
    for target in shown:
        assert re.search(rf"^{target}:", makefile, re.M), target


def test_links_lead_somewhere() -> None:
    for page in [*PAGES, ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
