"""Code that a recipe names, on a real federation: a site runs it only if it trusts its hash."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

pytest.importorskip("flwr")

from fedquilt import FedAvg, Federation, own_code
from fedquilt.config.config import load
from fedquilt.core.seed import Seed
from fedquilt.data import Dirichlet
from fedquilt.deploy.dry_run import leaving
from fedquilt.deploy.flower_command import free_port
from fedquilt.deploy.site import settings_of
from fedquilt.engines.flower.engine import Flower
from fedquilt.engines.flower.jobs import RunTerms
from fedquilt.engines.local import Local
from fedquilt.errors import ConfigError, InputError, RoundError
from fedquilt.metrics.scoring import score_of
from fedquilt.own_code.files import KNOWN, PACKAGE
from fedquilt.records.record import pack
from fedquilt.rounds.rounds import Rounds
from fedquilt.runs.build import method_of
from fedquilt.testing import network
from helpers.nodes import flower, grid

CODE = """
from dataclasses import dataclass, replace
from pathlib import Path

from torch import nn

import helper
from fedquilt import FedAvg, OnBase
from fedquilt.core.params import add, scale, sub

with Path(MARKER).open("a") as marker:
    marker.write("run ")


class Net(nn.Module):
    def __init__(self, features, classes):
        super().__init__()
        self.last = nn.Linear(features, classes)

    def forward(self, x):
        return helper.act(self.last(x.flatten(1)))


def brier(scores, labels):
    return (scores.softmax(1).gather(1, labels[:, None]) - 1).square().mean()


def train(model, data_loader, context):
    for x, y in data_loader:
        context.loss(model, x, y).backward()
    for p in model.parameters():
        p.data -= 0.01 * p.grad
"""
RECIPE = """
metrics = ["my.py:brier"]

[model]
kind = "my.py:Net"

[train]
loop = "my.py:train"
"""
Forget = Callable[[], None]


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    (tmp_path / "my.py").write_text(CODE.replace("MARKER", repr(str(tmp_path / "marker"))))
    (tmp_path / "helper.py").write_text("def act(x):\n    return x\n")
    (tmp_path / "recipe.toml").write_text(RECIPE)
    return tmp_path / "recipe.toml"


@pytest.fixture
def federation() -> Federation:
    return Federation.from_source("digits", partition=Dirichlet(1.0), clients=4, seed=1)


@pytest.fixture
def forget(monkeypatch: pytest.MonkeyPatch) -> Forget:
    """Let this process be another one: it knows no code, and has imported none."""

    def forget() -> None:
        KNOWN.clear()
        for name in [name for name in sys.modules if name.startswith(PACKAGE)]:
            del sys.modules[name]

    return forget


def prints(recipe: Path) -> tuple[str, ...]:
    """As sha256sum gives them."""
    return tuple(hashlib.sha256((recipe.parent / name).read_bytes()).hexdigest() for name in ("my.py", "helper.py"))


def rounds(recipe: Path, federation: Federation, engine: Flower | Local) -> Rounds:
    method = method_of(load(recipe), federation)
    source = engine.gather(2) if isinstance(engine, Flower) else federation
    return Rounds(method, source, engine, Seed(3), score=score_of(method))


def test_a_site_runs_code_that_it_trusts(recipe: Path, federation: Federation) -> None:
    here = rounds(recipe, federation, Local())
    there = rounds(recipe, federation, flower(grid(federation, trusted=(), trusted_code=prints(recipe))))
    logs = [played.play() for played in (here, there)]
    assert not logs[1].quarantined
    assert here.digest() == there.digest()
    found = there.evaluate(list(federation.evaluated))
    assert repr(found) == repr(here.evaluate(list(federation.evaluated)))
    assert all("brier" in e["deployed"]["test"].sums for e in found.values())


@pytest.mark.parametrize("trusted", [(), (1,)], ids=["nothing", "half of it"])
def test_nothing_of_untrusted_code_runs(
    recipe: Path, federation: Federation, forget: Forget, trusted: tuple[int, ...], tmp_path: Path
) -> None:
    known = tuple(prints(recipe)[n] for n in trusted)
    engine = flower(grid(federation, 2, tmp_path / "sites", trusted=(), trusted_code=known))
    played = rounds(recipe, federation, engine)
    before = (tmp_path / "marker").read_text()
    forget()  # the sites are processes of their own
    with pytest.raises(RoundError, match=rf"my\.py \(sha256 {prints(recipe)[0]}\).*Nothing of it was run") as refused:
        played.play()
    assert f"--trust-code {prints(recipe)[0]}" in str(refused.value)
    assert (f"--trust-code {prints(recipe)[1]}" in str(refused.value)) is (not known)
    assert (tmp_path / "marker").read_text() == before
    (copy,) = (tmp_path / "sites" / "node-11" / "refused").glob("*/my.py.txt")  # to be looked at
    assert copy.read_bytes() == (recipe.parent / "my.py").read_bytes()


def test_a_name_alone_opens_nothing(recipe: Path, federation: Federation, forget: Forget, tmp_path: Path) -> None:
    """A server that names code without sending it, or sends other code than it names."""
    engine = flower(grid(federation, trusted=(), trusted_code=prints(recipe)[1:]))
    played = rounds(recipe, federation, engine)
    for code in (
        None,
        pack([["", "helper.py", {"helper.py": (recipe.parent / "helper.py").read_bytes()}]], compact=True),
    ):
        forget()
        engine._terms = {"begin": engine._terms["begin"], **({} if code is None else {"code": code})}
        (tmp_path / "marker").unlink(missing_ok=True)
        with pytest.raises(RoundError, match=r"not among the trusted packages|is not here"):
            played.play()
        assert not (tmp_path / "marker").exists()


@pytest.mark.parametrize(
    "frame",
    [
        7,
        [["", "my.py"]],
        [["", "my.py", {"other.py": b""}]],
        [["", "../my.py", {"../my.py": b""}]],
        [["", "/my.py", {"/my.py": b""}]],
        [["", "my.py", {"my.py": "text"}]],
        [["", "my.py", {"my.py": b"#" * 2**20, "more.py": b"#"}]],
    ],
    ids=range(7),
)
def test_malformed_code_is_refused(frame: object) -> None:
    with pytest.raises(InputError, match="malformed code"):
        own_code.received(frame)


@pytest.mark.parametrize("model", ["my.py:Net", "os:system", "subprocess:run"])
def test_a_dry_run_of_somebody_elses_recipe_runs_nothing(recipe: Path, model: str, tmp_path: Path) -> None:
    recipe.write_text(
        f'[model]\nkind = "{model}"\n' + (f'command = "touch {tmp_path}/marker"' if model[0] == "o" else "")
    )
    given = {"data": "digits.npz", "state": str(tmp_path), "trusted_code": prints(recipe)[1:]}
    with pytest.raises(ConfigError, match=r"--trust(-code [0-9a-f]{64}| os| subprocess)"):
        leaving(settings_of(given, "join"), recipe)
    assert not (tmp_path / "marker").exists()


@pytest.mark.parametrize(
    "call",
    [
        'make = "fedquilt.models.registry:make"\nargs = ["my.py:Net", {list = [5]}, 2]',
        'make = "fedquilt.data.federation:Federation.from_source"\nargs = ["my.py:brier"]',
    ],
    ids=["model", "data"],
)
def test_a_dry_run_of_somebody_elses_script_runs_nothing(
    recipe: Path, call: str, forget: Forget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(recipe.parent)
    forget()
    np.savez("own.npz", x=np.ones((20, 5), np.float32), y=np.arange(20) % 2)
    recipe.write_text(f'[script]\nkind = "a"\n[script.method]\n{call}\nkwargs = {{}}\n')
    with pytest.raises(InputError, match=r"--trust-code [0-9a-f]{64}"):
        leaving(settings_of({"data": "own.npz", "name": "oslo", "state": "."}, "join"), recipe)
    assert not Path("marker").exists()


@pytest.mark.parametrize("late", [False, True], ids=["at once", "in a job"])
def test_a_trusted_reader_of_files_runs_no_code(federation: Federation, late: bool, tmp_path: Path) -> None:
    """A site that lets the server name files to start from does not let it name programs."""
    call = {"args": ["os:system", {"list": [64]}, 10], "kwargs": {"command": f"touch {tmp_path}/marker"}}
    made = {"make": "fedquilt.models.registry:make", **call}
    if late:
        build = {"partial": {"name": "fedquilt.models.registry:make"}, **call}
        net = {"make": "fedquilt.core.net:Net", "args": [build], "kwargs": {}}
        made = {"make": "fedquilt.methods.fedavg:FedAvg", "args": [net], "kwargs": {}}
    engine = flower(grid(federation, trusted=("fedquilt.models.registry",)))
    played = Rounds(FedAvg(network()), engine.gather(2), engine, Seed(3))
    engine._terms = {"begin": pack(RunTerms(engine.run, made, None, 3), compact=True)}
    with pytest.raises(RoundError, match=r"names 'os', which this site does not trust|failed in 'unpack' \(InputError"):
        played.play()
    assert not (tmp_path / "marker").exists()


def test_a_hash_must_be_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--trusted_code\.0"):
        settings_of({"data": "x.npz", "state": str(tmp_path), "trusted_code": ["abc"]}, "join", "--")


@pytest.mark.flower
def test_real_sites_run_what_they_trust(recipe: Path, tmp_path: Path) -> None:
    """As people do it: sha256sum, serve and join, on this machine; the site that does not trust it refuses."""
    port, trust = free_port(), [word for print_ in prints(recipe) for word in ("--trust-code", print_)]
    x, y = load_digits(return_X_y=True)
    command, sites = [sys.executable, "-m", "fedquilt"], {"bergen": trust, "oslo": trust, "bodo": trust[:2]}
    settings = ["rounds=1", "flower.classes=10", "cohort.min_replies=2", f"output.folder={tmp_path}/runs"]
    with ExitStack() as started:
        processes = []
        for place, (site, options) in enumerate(sites.items()):
            np.savez(tmp_path / f"{site}.npz", x=(x[place::9] / 16).astype(np.float32), y=y[place::9])
            given = ["--data", tmp_path / f"{site}.npz", "--name", site, "--state", tmp_path / site, *options]
            join = [*command, "join", "--superlink", f"127.0.0.1:{port}", "--insecure", "--classes", "10", *given]
            processes.append(started.enter_context(subprocess.Popen([str(word) for word in join])))
        serve = [*command, "serve", str(recipe), *settings, "--insecure", "--port", str(port), "--nodes", "3", "--json"]
        try:
            done = subprocess.run(serve, capture_output=True, text=True, timeout=300, check=False)
        finally:
            for process in processes:
                process.terminate()
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["quarantined"] == 1
    assert list((tmp_path / "bodo" / "refused-code").glob("*/my.py.txt"))
    assert (tmp_path / "marker").read_text().count("run") >= 3  # the server, and two sites
