"""Sweeps: what is tried, how it is chosen, and that an interrupted one goes on."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedquilt.config.config import Config, load, parse
from fedquilt.config.space import Range, Sweep, read_set
from fedquilt.errors import ConfigError, InputError
from fedquilt.results.ranking import ranking
from fedquilt.studies.listening import Listener, Nobody
from fedquilt.studies.player import NoAudience, PlannedRun
from fedquilt.studies.points import asker, inside
from fedquilt.studies.sweep import folder_of, sweep
from fedquilt.watch.board import Board
from helpers.command import fedquilt, lines, small


def recipe(folder: Path, space: dict[str, Any], **more: Any) -> Config:
    return parse(
        {
            "name": "s",
            "rounds": 2,
            "data": {"clients": 2, "limit": 300, "valid": 0.2},
            "model": "logistic",
            "engine": {"kind": "local"},
            "output": {"folder": str(folder)},
            "sweep": {"space": space, **more},
        }
    )


def tried(plan: Sweep, score: Any = lambda values: 0.5) -> list[dict[str, Any]]:
    """All points of a plan."""
    search, done = asker(plan), list[tuple[dict[str, Any], float | None]]()
    while (values := search.ask(done)) is not None:
        done.append((values, score(values)))
    return [values for values, _ in done]


# What is tried


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a.b=1,2", ("a.b", [1, 2])),
        ("a=0.1, 1e-3", ("a", [0.1, 0.001])),
        ("a=x,y", ("a", ["x", "y"])),
        ("a=true,false", ("a", [True, False])),
        ("a=[1, 2],[3]", ("a", [[1, 2], [3]])),
        ("m={kind='fedprox', mu=1},{kind='fedavg'}", ("m", [{"kind": "fedprox", "mu": 1}, {"kind": "fedavg"}])),
        ("a=1..5", ("a", {"low": 1, "high": 5})),
        ("a=-0.5..1.5", ("a", {"low": -0.5, "high": 1.5})),
        ("a=log:1e-3..1", ("a", {"low": 0.001, "high": 1, "log": True})),
    ],
)
def test_what_the_command_line_says(text: str, found: tuple[str, Any]) -> None:
    assert read_set(text) == found


def test_a_grid_is_every_combination() -> None:
    plan = parse({"sweep": {"space": {"method.mu": [1, 2], "train": {"epochs": [3, 4]}}}}).sweep
    pairs = [(v["method.mu"], v["train.epochs"]) for v in tried(plan)]
    assert pairs == [(1, 3), (1, 4), (2, 3), (2, 4)]


def test_numbers_through_a_range() -> None:
    """log 1..100: half way is 10. Integers 1..3 have a third each: 0.5..1.5, 1.5..2.5, 2.5..3.5."""
    assert inside(Range(1.0, 100.0, log=True), 0.5) == pytest.approx(10.0)
    assert inside(Range(-1.0, 1.0), 0.75) == pytest.approx(0.5)
    assert [inside(Range(1, 3), share) for share in (0.0, 0.3, 0.35, 0.65, 0.68, 0.999)] == [1, 1, 2, 2, 3, 3]
    assert inside(Range(0.1, 0.2), 1.0) == 0.2


def test_random_points_are_seeded_different_and_a_longer_search_begins_with_the_shorter() -> None:
    space = {"a": {"low": 1e-3, "high": 1.0, "log": True}, "b": {"low": 1, "high": 4}, "c": ["x", "y"]}
    many = tried(Sweep(search="random", points=200, seed=3, space=space))
    assert tried(Sweep(search="random", points=5, seed=3, space=space)) == many[:5]
    assert tried(Sweep(search="random", points=5, seed=4, space=space)) != many[:5]
    powers = np.log10([v["a"] for v in many])
    assert powers.min() >= -3
    assert powers.max() <= 0
    assert powers.mean() == pytest.approx(-1.5, abs=0.25)  # 4 standard errors of a uniform on [-3, 0]
    assert {v["b"] for v in many} == {1, 2, 3, 4}
    assert all(isinstance(v["b"], int) for v in many)
    assert {v["c"] for v in many} == {"x", "y"}
    few = tried(Sweep(search="random", points=50, space={"b": {"low": 1, "high": 2}, "c": ["x", "y"]}))
    assert len(few) == 4  # there are no more


@pytest.mark.filterwarnings("ignore")  # of optuna, about itself
def test_optuna_goes_on_as_if_it_had_not_been_interrupted_and_comes_closer() -> None:
    pytest.importorskip("optuna")
    space = {"x": {"low": -1.0, "high": 1.0}, "n": {"low": 1, "high": 9}, "kind": [{"k": 1}, {"k": 2}]}
    plan = Sweep(search="optuna", points=30, seed=1, space=space)

    def score(values: dict[str, Any]) -> float:
        return 1 - (values["x"] - 0.3) ** 2 - 0.1 * (values["kind"]["k"] - 1)

    whole = tried(plan, score)
    assert len(whole) == 30
    done = [(values, score(values)) for values in whole[:17]]
    assert asker(plan).ask(done) == whole[17]
    assert asker(plan).ask([(values, None) for values, _ in done]) is not None  # failures are no points
    assert np.mean([score(v) for v in whole[-10:]]) > np.mean([score(v) for v in whole[:10]])


# What is refused

NOT = "this setting cannot be varied"


@pytest.mark.parametrize(
    ("space", "told"),
    [
        ({"method.mu": []}, "method.mu: an empty list has nothing to try"),
        ({"method.mu": 3}, "method.mu: give a list of values, or a range { low = 0.1, high = 1.0 }, got 3"),
        ({"method.mu": [1, 1]}, "method.mu: the values must differ, got [1, 1]"),
        ({"method.mu": {"low": 2, "high": 1}}, "method.mu: low must be below high, got 2 and 1"),
        ({"method.mu": {"low": 0, "high": 1, "log": True}}, "method.mu: a range by powers begins above 0, got 0"),
        ({"method.mu": {"low": 0}}, "method.mu: a range has low, high and log, got low"),
        (
            {"method.mu": {"low": 0, "high": 1, "step": 1}},
            "method.mu: a range has low, high and log, got high, low, step",
        ),
        ({"method.mu": {"low": "a", "high": 1}}, "method.mu: low and high must be numbers, got 'a' and 1"),
    ],
)
def test_bad_ranges(space: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse({"sweep": {"space": space}})
    assert error.value.problems == [f"sweep.space: {told}"]


@pytest.mark.parametrize(
    ("space", "told"),
    [
        ({"method.muu": [1, 2]}, "method.muu: unknown key for 'fedavg'; known: aggregate, shared_start"),
        ({"train.optimizer.lr": [0.1, -1.0]}, "train.optimizer: lr must be a positive number, got -1.0."),
        ({"rounds.x": [1, 2]}, "sweep.space.rounds.x: 'rounds' is not a section"),
        ({"engine.kind": ["local"]}, f"sweep.space.engine.kind: {NOT}: it cannot change the numbers"),
        ({"seed": [1, 2]}, f"sweep.space.seed: {NOT}: sweep.seeds lists the seeds of every point"),
        ({"data.clients": [2, 3]}, f"sweep.space.data.clients: {NOT}: the points would be scored on different rows"),
    ],
)
def test_names_and_values_are_checked_before_the_first_run(tmp_path: Path, space: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as error:
        sweep(recipe(tmp_path, space))
    assert error.value.problems == [told]
    assert not list(tmp_path.iterdir())


def test_nothing_to_vary_nothing_to_choose_on_and_ranges_in_a_grid(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="There are no hyperparameters to vary"):
        sweep(recipe(tmp_path, {}))
    config = recipe(tmp_path, {"train.epochs": [1, 2]})
    with pytest.raises(ConfigError, match="a sweep selects on validation samples, and there are none"):
        sweep(config.model_copy(update={"data": config.data.model_copy(update={"valid": 0.0})}))
    with pytest.raises(InputError, match="is a range, and a grid needs values"):
        sweep(recipe(tmp_path, {"train.epochs": {"low": 1, "high": 2}}))


# A whole sweep


def test_a_sweep_chooses_on_validation_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    config = recipe(tmp_path, {"train.optimizer.lr": [1e-4, 0.5], "train.epochs": [1, 2]}, seeds=[0, 1])
    played: list[str] = []
    top = folder_of(config)

    class Heard(NoAudience):
        @contextmanager
        def playing(self, cell: PlannedRun) -> Iterator[Listener]:
            played.append(cell.folder.name)
            yield Nobody()

    class StopInTheThird(NoAudience):
        @contextmanager
        def playing(self, cell: PlannedRun) -> Iterator[Listener]:
            if cell.folder.name == "point001-seed0":
                raise KeyboardInterrupt
            yield Nobody()

    with pytest.raises(KeyboardInterrupt):
        sweep(config, StopInTheThird())
    before = (top / "point000-seed1/result.json").stat().st_mtime_ns
    assert fedquilt("report", top).code == 0
    summary = sweep(config, Heard())
    assert sorted(set(played)) == [f"point{p:03d}-seed{s}" for p in (1, 2, 3) for s in (0, 1)]
    assert (top / "point000-seed1/result.json").stat().st_mtime_ns == before

    valid = []
    for point in range(4):
        found = [json.loads((top / f"point{point:03d}-seed{s}/result.json").read_text()) for s in (0, 1)]
        valid.append(np.mean([r["best"]["valid_accuracy"] for r in found]))
    assert [row["valid"] for row in summary["points"]] == pytest.approx(valid)
    assert summary["best"]["point"] == int(np.argmax(valid))
    assert summary["best"]["values"]["train.optimizer.lr"] == 0.5
    assert [row["best"] for row in summary["points"]].count(True) == 1
    assert all("test" not in row for row in summary["points"] if not row["best"])

    table = list(csv.DictReader((top / "sweep.csv").read_text().splitlines()))
    assert [float(row["valid_accuracy"]) for row in table] == sorted(valid, reverse=True)
    assert table[0]["best"] == "True"
    assert not any("test" in name for name in table[0])
    best = load(top / "best.toml")
    assert (best.train.optimizer.options["lr"], best.rounds) == (0.5, 2)
    assert (top / "parameters.png").stat().st_size > 1000
    played.clear()
    assert sweep(config, Heard())["best"] == summary["best"]
    assert played == []


def test_the_page_of_a_sweep_shows_no_test_scores_but_those_of_the_best(tmp_path: Path) -> None:
    config = recipe(tmp_path, {"train.optimizer.lr": [1e-4, 0.5], "method": ["fedavg", {"kind": "fedprox", "mu": 1.0}]})
    summary = sweep(config)
    text = Path(summary["report"]).read_text()
    data = json.loads(text.split('id="data">')[1].split("</script>")[0])
    panels = {p["key"]: p for p in data["panels"]}
    assert list(panels)[:3] == ["best", "points", "parameters"]
    assert not {"headline", "comparison", "tests", "distribution", "heat"} & set(panels)
    rows = panels["points"]["blocks"][0]["rows"]
    assert [row["valid"] for row in rows] == sorted((r["valid"] for r in summary["points"]), reverse=True)
    assert [row["best"] for row in rows] == [True, False, False, False]
    variants = panels["parameters"]["blocks"][0]["variants"]
    assert [v["keys"]["setting"] for v in variants] == ["train.optimizer.lr", "method"]
    assert [v["numeric"] for v in variants] == [True, False]
    curves = panels["curves"]["blocks"][0]
    assert curves["y"] == "valid_accuracy"
    assert not [n for n in curves["names"] if "test" in n]
    assert not [n for one in curves["series"] for s in one["seeds"] for n in s["values"] if "test" in n]
    assert "accuracy" not in [c["key"] for c in panels["runs"]["blocks"][0]["columns"]]


def test_the_command(tmp_path: Path) -> None:
    path = small(tmp_path)
    said = fedquilt(
        "sweep",
        path,
        "rounds=1",
        f"output.folder={tmp_path}/out",
        "--set",
        "train.epochs=1,2",
        "--set",
        "train.optimizer.lr=log:0.01..1",
        "--random",
        2,
        "--json",
    ).json
    assert len(said["points"]) == 2
    assert said["search"] == "random"
    more = fedquilt(
        "sweep",
        path,
        "rounds=1",
        f"output.folder={tmp_path}/out",
        "--set",
        "train.epochs=1,2",
        "--set",
        "train.optimizer.lr=log:0.01..1",
        "--random",
        3,
    )
    assert more.code == 0
    assert "3 points (random), 1 seed" in more.out
    assert "best on validation" in more.out
    assert len(ranking(Path(said["folder"]))) == 3
    assert lines(Path(said["folder"]) / "point002-seed0/metrics/rounds.jsonl")
    both = fedquilt("sweep", path, "--random", 2, "--optuna", 3)
    assert (both.code, "mutually exclusive" in both.err) == (2, True)
    odd = fedquilt("sweep", path, "--set", "train.epochs")
    assert (odd.code, "is not of the form NAME=VALUE" in odd.err) == (2, True)
    bad = fedquilt("sweep", path, "--set", "train.epochs=3..1")
    assert (bad.code, "train.epochs: low must be below high, got 3 and 1" in bad.err) == (2, True)


def test_no_test_score_is_told_but_that_of_the_chosen_point(tmp_path: Path) -> None:
    """Not in the terminal, not to listeners or trackers, not on the page, in no file that is meant to be read."""
    heard: list[dict[str, Any]] = []

    class Listening(NoAudience):
        @contextmanager
        def playing(self, cell: PlannedRun) -> Iterator[Listener]:
            listener = Nobody()
            listener.round = lambda done, metrics, totals=None: heard.append(dict(metrics))  # type: ignore[method-assign]
            yield listener

    config = recipe(tmp_path, {"train.optimizer.lr": [0.01, 0.5]}, seeds=[0])
    summary = sweep(config, Listening())
    assert len(heard) == 4
    assert all("valid_accuracy" in metrics for metrics in heard)
    assert not [name for metrics in heard for name in metrics if "test" in name]
    top = Path(summary["folder"])
    told = {p["label"]: p.get("test") for p in summary["points"]}
    best = summary["best"]
    assert {label for label, test in told.items() if test is not None} == {best["label"]}
    for run in sorted(top.glob("point*")):
        shown = [p for p in run.rglob("*.json*") if p.name != "withheld.jsonl"]
        assert shown
        assert not [p for p in shown if re.search('"[a-z_]*test_(?!rows")|"split": "test"', p.read_text())]
        rows = [json.loads(line) for line in (run / "metrics/withheld.jsonl").read_text().splitlines()]
        assert [row["round"] for row in rows] == [1, 2]
        chosen = json.loads((run / "result.json").read_text())["best_round"]
        if run.name == f"point{best['point']:03d}-seed0":
            assert best["test"] == rows[chosen - 1]["test_accuracy"]
    (line, *_) = Board(top).lines()
    assert line["accuracy_on"] == "validation"
    assert line["accuracy"] == json.loads((top / "point000-seed0/result.json").read_text())["last"]["valid_accuracy"]


def test_the_terminal_of_a_sweep_shows_validation(tmp_path: Path) -> None:
    said = fedquilt("sweep", small(tmp_path), "rounds=1", "--set", "train.optimizer.lr=0.01,0.5")
    progress = [line for line in said.out.splitlines() if ": 1/1" in line]
    assert len(progress) == 2
    assert all(" validation accuracy 0." in line for line in progress)
    assert said.out.count("test accuracy") == 1


def test_a_run_whose_scores_are_withheld_is_the_same_run(tmp_path: Path) -> None:
    plain, held = (
        fedquilt(
            "run", small(tmp_path), f"output.folder={tmp_path / name}", f"output.withhold_test={name}", "--json"
        ).json
        for name in ("false", "true")
    )
    assert plain["digest"] == held["digest"]
    withheld = [json.loads(row) for row in (Path(held["folder"]) / "metrics/withheld.jsonl").read_text().splitlines()]
    assert withheld[-1]["test_accuracy"] == plain["last"]["test_accuracy"]
    assert "test_accuracy" not in held["last"]
    assert not (Path(plain["folder"]) / "metrics/withheld.jsonl").exists()
