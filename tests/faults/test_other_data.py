"""A finished run is not shown for other data, and a comparison survives one method's trouble."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from helpers.command import fedquilt

RECIPE = """
rounds = 1
[data]
path = "{path}"
clients = 3
partition = {{ kind = "iid" }}
[model]
kind = "logistic"
"""


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "data.npz", 0)
    file = tmp_path / "recipe.toml"
    file.write_text(RECIPE.format(path=tmp_path / "data.npz"))
    return file


def write(path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    np.savez(path, x=rng.normal(size=(60, 4)).astype(np.float32), y=rng.integers(0, 2, 60))


@pytest.mark.parametrize("command", ["run", "compare"])
def test_a_finished_run_on_other_data_is_refused(recipe: Path, command: str) -> None:
    told = [command, str(recipe), "compare.seeds=[0]", 'compare.methods=["fedavg"]']
    assert fedquilt(*told).code == 0
    write(recipe.parent / "data.npz", 1)
    said = fedquilt(*told)
    assert said.code == 2
    assert "on other data" in said.err


def test_fresh_keeps_the_old_run_when_the_new_one_cannot_start(recipe: Path) -> None:
    first = fedquilt("run", str(recipe), "--json")
    folder = Path(json.loads(first.out)["folder"])
    (recipe.parent / "data.npz").unlink()
    assert fedquilt("run", str(recipe), "--fresh").code == 2
    assert (folder / "result.json").exists()


def test_one_diverging_method_does_not_stop_a_comparison(recipe: Path) -> None:
    methods = 'compare.methods=["fedavg", {kind="fedavg_noise", noise=1e38}]'
    said = fedquilt("compare", str(recipe), "rounds=2", "compare.seeds=[0]", methods)
    assert said.code == 3
    assert "FAILED FedAvg + noise (noise 1e+38), seed 0: round" in said.out
    assert "FedAvg " in said.out
