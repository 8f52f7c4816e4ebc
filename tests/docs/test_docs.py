"""Every command and every piece of Python shown in the README and the docs is run, page by page, in order.

Blocks with a title are files or commands of several machines: tests/flower/test_deployment_page.py plays those.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.warm import Warm

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
STAYS = re.compile(r"fedquilt watch (?!.*--once)")
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
    environment = {**os.environ, "PATH": path, "PYTHONPATH": source}
    for block in blocks(page, "bash"):
        for line in block.strip().splitlines():
            run = interrupted if STAYS.match(line) else ended
            done = run(line, cwd=tmp_path, env=environment)
            assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"


def ended(line: str, **given: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(line, shell=True, capture_output=True, text=True, timeout=300, **given)


def interrupted(line: str, **given: Any) -> subprocess.CompletedProcess[str]:
    """A command that serves an address until Ctrl-C: it is asked once, and then interrupted."""
    with subprocess.Popen(
        [sys.executable, "-m", *shlex.split(line)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        **given,
    ) as process:
        assert process.stdout is not None
        said = []
        for text in process.stdout:
            said.append(text)
            if text.startswith("http://"):
                with urllib.request.urlopen(text.strip(), timeout=60) as answer:
                    assert answer.status == 200
                process.send_signal(signal.SIGINT)
    return subprocess.CompletedProcess(line, process.returncode, "".join(said), "")


@pytest.mark.parametrize("page", with_blocks("python"), ids=name)
def test_python(page: Path) -> None:
    module = type(sys)("page")
    sys.modules["page"] = module
    try:
        for block in blocks(page, "python"):
            exec(compile(block, str(page), "exec"), module.__dict__)
    finally:
        del sys.modules["page"]


@pytest.mark.parametrize("page", [p for p in with_blocks("toml") if p.parent != ROOT / "docs/methods"], ids=name)
def test_settings(page: Path) -> None:
    """The defaults shown in the docs are the defaults; tests/docs/test_method_options.py reads the methods' recipes."""
    import tomllib

    from fedquilt.config.config import Config, parse

    for block in blocks(page, "toml"):
        assert parse(tomllib.loads(block)) == Config()


def test_only_the_deployment_page_needs_several_machines() -> None:
    """Titled blocks, and the language shell, are not run here; they may be used on no page that nobody else plays."""
    others = [page for page in PAGES if re.search(r"^```(shell|\w+ title=)", page.read_text(), re.M)]
    assert others == [ROOT / "docs" / "deployment.md"]
    assert not re.search(r"^```(bash|python|toml|shell)\n", others[0].read_text(), re.M)


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    fenced = [body for page in PAGES for _, body in FENCE.findall(page.read_text())]
    shown = set(re.findall(r"^make ([\w-]+)", "\n".join(fenced), re.M))
    assert {"demo", "test"} <= shown
    for target in shown:
        assert re.search(rf"^{target}:", makefile, re.M), target


def test_links_lead_somewhere() -> None:
    for page in [*PAGES, ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            place = ROOT / target[1:] if target.startswith("/") else page.parent / target
            assert place.exists(), f"{page.name}: {target}"
