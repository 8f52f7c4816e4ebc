"""The command line: every command, for people and for programs."""

from __future__ import annotations

import csv
import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest

import fedquilt as package
from fedquilt.cli import PANELS
from fedquilt.registry import METHODS
from helpers.command import fedquilt, lines, small

SOURCE = str(Path(package.__file__).parents[1])
COMMANDS = [command.__name__.replace("_", "-") for panel in PANELS.values() for command in panel]
HEAVY = ("torch", "numpy", "scipy", "sklearn", "pydantic", "matplotlib", "safetensors")


def python(*words: str) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter."""
    command = [sys.executable, "-W", "error", *words]
    return subprocess.run(command, capture_output=True, text=True, env={"PYTHONPATH": SOURCE}, timeout=60, check=False)


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """A small recipe that works."""
    return small(tmp_path)


def test_the_version() -> None:
    assert fedquilt("--version").out == f"fedquilt {package.__version__}\n"


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_and_version_need_no_heavy_library(option: str) -> None:
    program = (
        f"import sys\nsys.argv = ['fedquilt', {option!r}]\nfrom fedquilt import cli\n"
        "try:\n    cli.main()\nexcept SystemExit:\n    pass\n"
        f"print('HEAVY', [m for m in {HEAVY!r} if m in sys.modules])"
    )
    said = python("-c", program)
    assert said.returncode == 0, said.stderr
    assert said.stdout.splitlines()[-1] == "HEAVY []"


def test_help_lists_the_commands_and_begins_with_those_that_most_need() -> None:
    said = fedquilt("-h").out
    assert said == fedquilt("--help").out
    assert all(f"│ {command} " in said for command in COMMANDS)
    first, *groups = PANELS.values()
    assert len(first) <= 11
    for command in ("new", "run", "compare", "resume", "report", "watch", "recipes", "methods", "serve", "join"):
        assert said.index(f"│ {command} ") < said.index("Inspect data")
    assert sum(map(len, groups)) > len(first)


def test_importing_the_package_needs_no_heavy_library() -> None:
    said = python("-c", f"import fedquilt, sys; print([m for m in {HEAVY!r} if m in sys.modules])")
    assert said.stdout == "[]\n", said.stderr


def test_the_module_is_the_command() -> None:
    said = python("-m", "fedquilt", "methods", "--json")
    assert said.returncode == 0, said.stderr
    assert said.stderr == ""
    assert "fedavg" in [m["name"] for m in json.loads(said.stdout)]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("option", ["-h", "--help"])
def test_every_command_explains_itself_with_an_example(command: str, option: str) -> None:
    said = fedquilt(command, option)
    assert said.code == 0
    assert f"Example: fedquilt {command}" in " ".join(said.out.split())
    assert "--json" in said.out
    lines = said.out.partition("╭")[0].splitlines()
    for line, below in itertools.pairwise(lines):  # each is as long as it may be
        if line.strip() and below.strip():
            assert len(f"{line.rstrip()} {below.split()[0]}") >= 80, line


def test_no_command_and_an_unknown_command() -> None:
    said = fedquilt()
    assert (said.code, said.err) == (0, "")
    assert "fedquilt run quick" in said.out
    assert "fedquilt --help" in said.out
    said = fedquilt("frobnicate")
    assert said.code == 2
    assert "frobnicate" in said.err
    said = fedquilt("comapre", "--json")
    assert said.json["message"].count("Did you mean 'compare'?") == 1
    said = fedquilt("run", "quick", "--rounds", "5", "--json")
    assert "Settings are written KEY=VALUE: rounds=VALUE." in said.json["message"]


def test_methods() -> None:
    found = fedquilt("methods", "--json").json
    names = [m["name"] for m in found]
    assert names == list(METHODS)
    assert all(m["about"] for m in found)
    said = fedquilt("methods")
    assert said.code == 0
    assert all(name in said.out for name in names)


def test_datasets() -> None:
    found = {d["name"]: d for d in fedquilt("datasets", "--json").json}
    assert found["digits"]["present"] is True
    said = fedquilt("datasets")
    assert said.code == 0
    assert all(name in said.out for name in found)


def test_doctor() -> None:
    said = fedquilt("doctor", "--json")
    assert said.code == 0, said
    rows = {r["check"]: r for r in said.json}
    assert {r["state"] for r in rows.values()} == {"ok"}
    assert "digits" in rows["data"]["found"]
    assert rows["flower"]["found"].startswith(("flwr ", "not installed; real federations need it: pip install"))
    states = [rows[f"{kind} engine"]["found"].rpartition(" ")[2] for kind in ("local", "workers")]
    assert states[0] == states[1]


def test_doctor_says_when_something_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedquilt.analysis import doctor

    def broken(name: str) -> str:
        raise OSError("no processes today")

    monkeypatch.setattr(doctor, "_engine", broken)
    said = fedquilt("doctor")
    assert said.code == 5
    assert "fails" in said.out
    assert "no processes today" in said.out


# Partition


def test_partition_prints_and_draws(recipe: Path) -> None:
    picture = recipe.parent / "deep" / "split.png"
    said = fedquilt("partition", recipe, "--plot", picture, "--json")
    assert said.code == 0, said
    assert said.json["plot"] == str(picture)
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    with picture.with_suffix(".csv").open() as file:
        header, *rows = list(csv.reader(file))
    assert header == ["client", *(f"label {c}" for c in range(10))]
    table = {row[0]: [int(n) for n in row[1:]] for row in rows}
    assert table == said.json["labels"]
    assert len(table) == 4
    assert said.json["measures"].keys() == {"label_distance", "size_gini", "imbalance_factor", "label_entropy"}
    assert said.json["entropy"].keys() == table.keys()
    with picture.with_name("split-distances.csv").open() as file:
        header, *rows = list(csv.reader(file))
    assert header[1:] == [row[0] for row in rows] == list(table)
    assert 0.6 * 400 < sum(map(sum, table.values())) < 0.8 * 400  # 70 % of the rows are for training
    said = fedquilt("partition", recipe, "data.clients=35", "data.partition.minimum=2", "--plot", picture)
    assert said.code == 0, said
    assert "training samples of 35 clients by label" in said.out
    assert "and 5 more clients" in said.out
    assert "rows per client: least" in said.out
    for word in ("bits of label entropy", "label distance", "size Gini", "class imbalance ratio"):
        assert word in said.out


# Run and resume


def test_run_for_people(recipe: Path) -> None:
    said = fedquilt("run", recipe)
    assert said.code == 0, said
    assert said.err == ""
    folder = Path(said.out.splitlines()[-1].removeprefix("folder "))
    result = json.loads((folder / "result.json").read_text())
    assert f"state {result['digest']}" in said.out
    assert f"{folder.name}: 3/3 test accuracy" in said.out
    assert f"{100 * result['last']['test_accuracy']:.1f} ± " in said.out
    assert "3 rounds, " in said.out
    assert len(lines(folder / "metrics" / "rounds.jsonl")) == 3


def test_run_for_programs(recipe: Path) -> None:
    said = fedquilt("run", recipe, "rounds=2", "data.valid=0", "--json")
    assert (said.code, said.err) == (0, "")
    assert {"folder", "digest", "best", "last", "rounds", "bytes_up", "engine", "environment"} <= said.json.keys()
    assert (said.json["rounds"], said.json["notes"]) == (2, [])
    again = fedquilt("resume", said.json["folder"], "--json")
    assert again.json == said.json


def test_fresh_runs_again(recipe: Path) -> None:
    first = fedquilt("run", recipe, "--json").json
    mark = Path(first["folder"]) / "mark"
    mark.touch()
    assert fedquilt("run", recipe, "--json").json["digest"] == first["digest"]
    assert mark.exists()
    assert fedquilt("run", recipe, "--fresh", "--json").json["digest"] == first["digest"]
    assert not mark.exists()


def test_early_stop_is_told(recipe: Path) -> None:
    said = fedquilt("run", recipe, "rounds=60", "stop.patience=1", "train.optimizer.lr=0.5")
    assert said.code == 0
    assert "(stopped early)" in said.out


# Compare


def test_compare(recipe: Path) -> None:
    asked = ['compare.methods=["fedavg", "local_only"]', "compare.seeds=[0,1]", "rounds=2"]
    said = fedquilt("compare", recipe, *asked, "--json")
    assert (said.code, said.err) == (0, ""), said
    top = Path(said.json["folder"])
    fedavg, alone = said.json["rows"]
    assert [fedavg["method"], alone["method"]] == ["fedavg", "local_only"]
    assert len(set(fedavg["digests"])) == 2
    assert 0 < said.json["majority_class"] < 1
    assert 0 < fedavg["worst10"] <= fedavg["accuracy"] <= 1
    assert fedavg["megabytes_up"] > 10 * alone["megabytes_up"]
    assert fedavg["accuracy_half_95"] >= 0
    assert (top / "curves.png").read_bytes()[:4] == b"\x89PNG"
    with (top / "curves.csv").open() as file:
        points = list(csv.DictReader(file))
    assert [(p["method"], p["round"]) for p in points] == [(m, r) for m in ("fedavg", "local_only") for r in "12"]
    with (top / "table.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [r["method"] for r in table] == ["majority class", "fedavg", "local_only"]
    assert float(table[1]["accuracy"]) == fedavg["accuracy"]
    assert json.loads((top / "summary.json").read_text()) == said.json

    # The same again: nothing is run, and the table is the same. With one run lost: only that one is.
    results = {p: p.stat().st_mtime_ns for p in top.glob("*/result.json")}
    assert len(results) == 4
    again = fedquilt("compare", recipe, *asked)
    assert again.code == 0
    assert {p: p.stat().st_mtime_ns for p in top.glob("*/result.json")} == results
    assert "4 clients, 2 seeds; accuracy in %" in again.out
    assert "majority class" in again.out
    assert f"{100 * fedavg['accuracy']:.1f} ± {100 * fedavg['accuracy_half_95']:.1f}" in again.out
    assert f"curves {top}/curves.png" in again.out
    lost = sorted(results)[0]
    lost.unlink()
    assert fedquilt("compare", recipe, *asked, "--json").json["rows"][0]["digests"] == fedavg["digests"]
    assert [p for p in results if p.stat().st_mtime_ns != results[p]] == [lost]


def test_compare_with_one_seed_has_no_interval(recipe: Path) -> None:
    asked = ['compare.methods=["fedavg"]', "compare.seeds=[7]", "rounds=1"]
    said = fedquilt("compare", recipe, *asked, "--json")
    assert said.code == 0, said
    assert said.json["rows"][0]["accuracy_half_95"] is None
    again = fedquilt("compare", recipe, *asked)
    assert "One seed: no interval." in again.out
    line = next(line.split() for line in again.out.splitlines() if line.split()[:1] == ["FedAvg"])
    assert line[2] != "±"  # of the accuracy, over seeds; three other columns have that of their rows
    assert line.count("±") == 3


def test_a_comparison_that_cannot_work_is_refused_before_the_first_run(recipe: Path) -> None:
    said = fedquilt("compare", recipe, "model.kind=lenet5")
    assert said.code == 2
    assert "lenet5" in said.err
    assert not (recipe.parent / "runs").exists()
