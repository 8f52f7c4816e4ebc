"""The engine ``local``, comparisons and reports on a pretended Windows (tests/helpers/pretended_windows.py): with the
same numbers as here."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from fedquilt.storage import files
from helpers.command import Said, fedquilt, small

TESTS = Path(__file__).parents[1]


def there(commands: Sequence[Sequence[object]], folder: Path) -> list[Said]:
    """These commands on a pretended Windows."""
    done = subprocess.run(
        [sys.executable, "-X", "warn_default_encoding", str(TESTS / "helpers/pretended_windows.py")],
        input=json.dumps([list(map(str, words)) for words in commands]),
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS.parent / "src"), str(TESTS)])},
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [Said(*said) for said in json.loads(done.stdout)]


def test_what_works_and_what_is_refused(tmp_path: Path) -> None:
    recipe = small(tmp_path)
    recipe.write_text(recipe.read_text().replace('kind = "local"', 'kind = "auto"'))
    here = fedquilt("run", recipe, f"output.folder={tmp_path}/here", "--json").json
    folder, top = tmp_path / "runs" / Path(here["folder"]).name, tmp_path / "runs"
    works = (
        ("run", recipe, "--json"),
        ("run", recipe, "--fresh"),  # removes the folder, and shows a table
        ("resume", folder),
        ("compare", recipe, 'compare.methods=["fedavg","fedper"]', "compare.seeds=[0]", "rounds=1"),
        ("report", folder, "--to", tmp_path / "own.html"),
        ("watch", top, "--once"),
        ("traffic", folder),
        ("partition", recipe),
        ("recipes", "quick", "--copy"),
        ("new", "mine"),
        ("compare", "mine/recipe.toml", "rounds=1", "compare.seeds=0", "compare.frame=false"),  # files of one's own
    )
    refused = (("run", recipe, "engine.kind=workers", "rounds=9"), ("serve", "quick", "--insecure", "--json"))
    found = there([*works, *refused], tmp_path)
    for words, said in zip(works, found, strict=False):
        assert said.code == 0, (words, said)
    assert found[0].json["digest"] == here["digest"]
    assert here["digest"] in found[1].out
    assert "±" in found[1].out
    (compared,) = top.glob("compare-small-*")
    assert {"report.html", "curves.png", "table.csv"} <= {path.name for path in compared.iterdir()}
    workers, serve = found[len(works) :]
    assert (workers.code, serve.code) == (2, 2)
    assert "The engine 'workers' needs Linux or macOS" in workers.err
    assert "engine.kind = 'local'" in workers.err
    assert "WSL" in serve.json["message"]


def test_a_file_that_somebody_reads_is_replaced_a_moment_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows refuses to replace it meanwhile."""
    tried = []

    def replace(part: Path, path: Path) -> None:
        tried.append(part)
        if len(tried) < 3:
            raise PermissionError(errno.EACCES, "it is being used")
        os.replace(part, path)

    monkeypatch.setattr(Path, "replace", replace)
    files.write_atomic(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"
    assert len(tried) == 3
    monkeypatch.setattr(Path, "replace", lambda part, path: (_ for _ in ()).throw(PermissionError(13, "never")))
    with pytest.raises(files.StorageError, match="No permission"):
        files.write_atomic(tmp_path / "file", b"newer")
    assert (tmp_path / "file").read_bytes() == b"new"
