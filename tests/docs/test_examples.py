"""The examples run, and say what they claim."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

import fedquilt as fedquilt_
from fedquilt import FedAvg, FedProx, Net, run
from fedquilt.config.config import load
from fedquilt.errors import RoundError
from fedquilt.models import MLP
from helpers.command import fedquilt

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
OWN = sorted(EXAMPLES.glob("own_*.py"))
RECIPE = EXAMPLES / "own.toml"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def test_the_naive_loop_gives_the_same_weights() -> None:
    assert example("plain_fedavg").main() == 0.0


@pytest.mark.parametrize("file", OWN, ids=lambda file: file.stem)
def test_own_code_is_short(file: Path) -> None:
    assert len(file.read_text().splitlines()) <= 30
    assert file.stem.startswith("own_loop_") or f'"{file.name}:' in RECIPE.read_text()


def test_own_code_runs(tmp_path: Path) -> None:
    said = fedquilt("run", RECIPE, "--json", f"output.folder={tmp_path}")
    assert said.code == 0, said.out
    assert said.json["best"]["test_accuracy"] > 0.75
    assert 0.8 < said.json["best"]["test_auroc"] <= 1
    assert len(list(Path(said.json["folder"]).glob("code/own_*/own_*.py"))) == 6


def test_own_code_is_compared(tmp_path: Path) -> None:
    given = ("rounds=2", "compare.seeds=[0]", f"output.folder={tmp_path}", "engine.at_once=2")
    said = fedquilt("compare", RECIPE, "--json", *given)
    assert said.code == 0, said.out
    assert [row["method"] for row in said.json["rows"]] == ["fedavg", "ditto", "ServerMomentum", "Pulled"]
    assert all("test_auroc" in str(row) or row["auroc"] for row in said.json["rows"])
    (folder,) = tmp_path.glob("compare-*")
    pytest.importorskip("matplotlib")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["figures.py", str(folder)])
        example("figures")
    assert (folder / "curves.pdf").read_bytes().startswith(b"%PDF")
    assert "Pulled" in (folder / "table.tex").read_text()


def test_the_proximal_term_is_that_of_fedprox() -> None:
    clients = example("own_data").hospitals()
    net = Net.of(MLP, features=8, classes=2)
    own, known = (
        run(method, clients, rounds=2, engine="local", progress=False)
        for method in (example("own_prox").Pulled(net, mu=0.5), FedProx(net, mu=0.5))
    )
    plain = run(FedAvg(net), clients, rounds=2, engine="local", progress=False)
    losses = [[snapshot.metrics["test_loss"] for snapshot in played] for played in (own, known, plain)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert losses[0] != pytest.approx(losses[2], rel=1e-5)


def test_own_code_is_swept(tmp_path: Path) -> None:
    tried = ("--set", "model.width=4,16", "--set", "model.kind=own_model.py:Wide")
    said = fedquilt("sweep", RECIPE, *tried, "--json", "rounds=1", f"output.folder={tmp_path}")
    assert said.code == 0, said.out
    assert len(said.json["points"]) == 2


def test_own_code_is_compared_and_swept_from_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for slow in ("fedquilt.studies.compare._draw", "fedquilt.report.write_report"):
        monkeypatch.setattr(slow, lambda *_: None)
    loop = example("own_loop").train
    net = Net.of(example("own_model").Wide, features=8, classes=2, width=8)
    base = FedAvg(net, client_update=loop)
    methods = {
        "momentum": example("own_method").ServerMomentum(base=base, beta=0.3),
        "pulled": example("own_prox").Pulled(net, mu=0.2, client_update=loop),
    }
    how = {"federation": example("own_data").hospitals(), "rounds": 1, "engine": "local"}
    found = fedquilt_.compare(methods, seeds=[0], metrics=[example("own_metric").auroc], folder=tmp_path / "c", **how)
    assert [row["method"] for row in found.rows] == ["momentum", "pulled"]
    assert all(0 < run.rounds[-1]["test_auroc"] <= 1 for run in found.runs)
    tried = fedquilt_.sweep(lambda beta: replace(methods["momentum"], beta=beta), {"beta": [0.1, 0.9]}, **how)
    assert tried.best()["values"]["beta"] in (0.1, 0.9)


def test_own_code_is_served(tmp_path: Path) -> None:
    """As ``fedquilt serve`` plays it, on nodes in this process that trust these six files."""
    pytest.importorskip("flwr")
    from fedquilt.deploy.apps import play
    from helpers.nodes import grid

    names = re.findall(r'"(own_\w+\.py):', RECIPE.read_text())
    trusted = tuple(hashlib.sha256((EXAMPLES / name).read_bytes()).hexdigest() for name in names)
    config = load(RECIPE, ["rounds=2", "flower.classes=2", "flower.wait=5", "flower.ask=5", "flower.deadline=60"])
    sites = example("own_data").hospitals()
    folder = tmp_path / "trusted"
    folder.mkdir()
    play(grid(sites, trusted=(), trusted_code=trusted), config, folder)
    assert json.loads((folder / "result.json").read_text())["last"]["test_auroc"] > 0.5
    (tmp_path / "refused").mkdir()
    with pytest.raises(RoundError, match=r"Nothing of it was run"):
        play(grid(sites, trusted=(), trusted_code=trusted[:1]), config, tmp_path / "refused")


def test_data_may_be_dealt_by_the_recipe(tmp_path: Path) -> None:
    given = ("data.source=own_data.py:pooled", "data.by_user=false", "data.clients=3", "data.partition=iid", "rounds=1")
    said = fedquilt("run", RECIPE, *given, "--json", f"output.folder={tmp_path}")
    assert said.code == 0, said.out
    assert said.json["best"]["test_accuracy"] > 0.5


@pytest.mark.parametrize("library", ["transformers", "lightning"])
@pytest.mark.filterwarnings("ignore")
def test_trainers_of_other_libraries_are_loops(library: str, tmp_path: Path) -> None:
    pytest.importorskip(library)
    if library == "transformers":
        pytest.importorskip("accelerate")
    loop = f"train.loop={EXAMPLES}/own_loop_{library}.py:train"
    given = ("rounds=2", "method.kind=fedprox", "data.limit=300", "data.clients=3", f"output.folder={tmp_path}")
    said = fedquilt("run", ROOT / "recipes" / "quick.toml", loop, *given, "engine.kind=local", "--json")
    assert said.code == 0, said.out
    assert said.json["best"]["test_accuracy"] > 0.3


@pytest.mark.parametrize("library", ["transformers", "lightning"])
def test_the_page_on_loops_shows_these_trainers(library: str) -> None:
    code = (EXAMPLES / f"own_loop_{library}.py").read_text().partition("\n\n")[2]
    assert f"```py\n{code}```\n" in (ROOT / "docs" / "own-loop.md").read_text()


def test_the_page_on_own_code_runs(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "own-code.md").read_text()
    (tmp_path / "my.py").write_text("\n\n".join(re.findall(r"^```py\n(.*?)^```", page, re.M | re.S)))
    recipe = re.findall(r"^```text\n(name = .*?)^```", page, re.M | re.S)
    (tmp_path / "recipe.toml").write_text(*recipe)
    said = fedquilt("run", tmp_path / "recipe.toml", f"output.folder={tmp_path}/runs")
    assert said.code == 0, said.err
    assert "round 2 finished" in said.out + said.err
    rounds = next((tmp_path / "runs").glob("*/metrics/rounds.jsonl")).read_text()
    assert "test_brier" in rounds
    (numbers,) = (tmp_path / "runs").glob("*/numbers.csv")
    assert numbers.read_text().startswith("1,")
