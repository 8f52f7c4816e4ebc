"""Tasks as pieces: one of one's own from a recipe, which methods can learn which, and the default one."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_diabetes

from fedquilt import FedAvg, Federation, Net, models, run
from fedquilt.config.config import load
from fedquilt.config.data import federation_of
from fedquilt.core.objective import Objective
from fedquilt.core.seed import Seed
from fedquilt.errors import InputError
from fedquilt.pieces.objectives import cross_entropy, prox
from fedquilt.registry import METHODS, TASKS, lookup
from fedquilt.runs.build import check_task, method_of
from fedquilt.studies.compare import compare
from fedquilt.tasks import MultiLabel, Regression, SingleLabel, Task
from fedquilt.testing import digits, network

OWN = Path(__file__).parents[2] / "helpers/own_tasks.py"
RECIPE = """
name = "t"
rounds = 3
task = {task}

[data]
source = "diabetes"
clients = 4
partition = "iid"
test = 0.3
valid = 0.2

[model]
kind = "mlp"
hidden = [8]

[compare]
methods = ["fedavg", "fedrep"]
seeds = [0]
frame = true
"""


def recipe(folder: Path, task: str, *overrides: str) -> Any:
    """The recipe with this task."""
    (folder / "r.toml").write_text(RECIPE.format(task=task))
    return load(folder / "r.toml", [f"output.folder={folder / 'runs'}", "engine.kind=local", *overrides])


def test_one_of_ones_own_is_compared_by_its_main_metric(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN.read_text())
    summary = compare(recipe(tmp_path, '{ kind = "own.py:Upper", main = "below", share = 0.9 }', "rounds=15"))
    rows = {row["kind"]: row for row in summary["rows"]}
    assert summary["measure"] == "below"
    assert summary["failed"] == []
    assert rows["centralised"]["below"] > 0.75  # of the mean, half of the rows are below
    assert rows["centralised"]["mae"] is not None
    assert 0.4 < summary["majority_class"] < 0.7
    assert (Path(summary["folder"]) / "report.html").stat().st_size > 10_000


def test_a_comparison_by_an_error_calls_the_lowest_best(tmp_path: Path) -> None:
    summary = compare(recipe(tmp_path, '"regression"', "rounds=6"))
    means = {row["method"]: row["mae"] for row in summary["rows"] if row["kind"] != "centralised"}
    assert summary["measure"] == "mae"
    assert recipe(tmp_path, '"regression"').stop.metric == "mae"
    assert summary["winner"]["method"] == min(means, key=lambda name: means[name])
    for view in json.loads((Path(summary["folder"]) / "comparison.json").read_text())["cells"]:
        log = Path(summary["folder"]) / view["folder"] / "metrics/rounds.jsonl"
        rounds = [json.loads(line) for line in log.read_text().splitlines()]
        result = json.loads((Path(summary["folder"]) / view["folder"] / "result.json").read_text())
        assert result["chosen_by"] == "mae"
        assert result["best"]["valid_mae"] == min(row["valid_mae"] for row in rounds)


METHODS_OF_CLASSES = {
    "hgls",
    "fedproto",
    "fedrod",
    "fedrod_hyper",
    "fedavg_balanced",
    "fedlc",
    "fedetf",
    "fedloge",
    "creff",
    "ratio_loss",
    "pacfl",
}
OTHERS = {"podfcssv", "fedmae", "mae_alone", "mae_pooled", "fedbn"}  # which take images, or need BatchNorm


@pytest.mark.parametrize("name", sorted(METHODS.keys() - OTHERS))
def test_every_method_learns_a_regression_or_says_why_not(name: str, tmp_path: Path) -> None:
    config = recipe(tmp_path, '"regression"', f"method={name}", "rounds=2")
    data = federation_of(config)
    if name in METHODS_OF_CLASSES:
        with pytest.raises(InputError, match="so it cannot be used for regression"):
            method_of(config, data)
        return
    method = method_of(config, data)
    last = list(run(method, data, rounds=2, engine="local"))[-1]
    assert np.isfinite(last.metrics["test_mae"])
    assert last.metrics["test_mae"] < 2 * float(data.majority().clients.mean())


def test_the_page_tells_which_methods_need_classes_and_why() -> None:
    page = (Path(__file__).parents[3] / "docs/tasks.md").read_text()
    for name in sorted(METHODS):
        needs = getattr(METHODS[name].load(), "needs_classes", "")
        line = f"| {METHODS[name].shown} | {needs} |"
        assert (name in METHODS_OF_CLASSES) == (isinstance(needs, str) and bool(needs)), name
        assert (line in page) == (name in METHODS_OF_CLASSES), line


def test_the_default_task_by_its_name_changes_nothing() -> None:
    data, method = digits(clients=3), FedAvg(network())
    named = FedAvg(network().for_task(SingleLabel()))
    ends = [list(run(m, data, rounds=2, engine="local"))[-1] for m in (method, named)]
    assert ends[0].digest() == ends[1].digest()
    keys = [k for k in ends[0].metrics if k.startswith("test_")]
    assert [ends[0].metrics[k] for k in keys] == [ends[1].metrics[k] for k in keys]


def test_a_loss_of_classes_is_refused_for_numbers() -> None:
    x, y = load_diabetes(return_X_y=True)
    data = Federation.from_arrays(x, y, clients=3, task=Regression())
    net = Net.of(models.MLP, features=10, classes=1).for_task(data.task)
    with pytest.raises(InputError, match="its task as the term"):
        check_task(FedAvg(Objective(net, (cross_entropy,))), data)
    check_task(FedAvg(Objective(net, (net.task, prox(0.1)))), data)  # type: ignore[arg-type]


def test_every_task_of_the_registry_is_a_piece_that_describes_itself() -> None:
    for name in TASKS:
        made = lookup("task", name).load()()
        assert isinstance(made, Task)
        assert made.main in [m.id for m in made.known]
        assert made.trivial
        assert made.name


def test_the_single_label_task_says_what_the_default_takes_for_granted() -> None:
    task, y = SingleLabel(), torch.tensor([2, 0, 2, 1])
    assert task.outputs(y) == 3
    assert task.value(task.constant(y).expand(4, -1), y) == 0.5
    assert task.value(torch.zeros(4, 2), y) == 0.25  # class 0; class 2 is never called
    with pytest.raises(InputError, match="labels are whole numbers"):
        task.targets([0.5], "here")


def test_questions_about_classes_are_refused_after_a_regression() -> None:
    from fedquilt.analysis.newcomers import evaluate_newcomers

    x, y = load_diabetes(return_X_y=True)
    data = Federation.from_arrays(x, y, clients=4, test=0.3, task=Regression())
    net = Net.of(models.MLP, features=10, classes=1, hidden=(4,)).for_task(data.task)
    last = list(run(FedAvg(net), data, rounds=1, engine="local"))[-1]
    with pytest.raises(InputError, match="the task of this run is regression"):
        evaluate_newcomers(last, data)


def test_where_rows_are_elsewhere_the_recipe_must_tell_the_scale(tmp_path: Path) -> None:
    known = federation_of(recipe(tmp_path, '"regression"'))
    away = SimpleNamespace(ids=known.ids, site=known.site, classes=1)
    with pytest.raises(InputError, match=r"task\.centre and task\.scale: the rows are at sites"):
        method_of(recipe(tmp_path, '"regression"'), away)
    method: Any = method_of(recipe(tmp_path, '{ kind = "regression", centre = 150.0, scale = 80.0 }'), away)
    assert method.net.task.centre == 150.0


def test_a_task_is_a_term_of_an_objective_that_honours_weights() -> None:
    from fedquilt.core.table import Batch

    task = MultiLabel(positive=3.0)
    out, y = torch.tensor([[0.0], [0.0]]), torch.tensor([[1.0], [0.0]])
    whole = task(out, {}, {}, Batch({"y": y}))
    first = task(out, {}, {}, Batch({"y": y}, torch.tensor([1.0, 0.0])))
    assert float(whole) == pytest.approx((3 + 1) / 2 * np.log(2))
    assert float(first) == pytest.approx(3 * np.log(2))


def test_a_network_for_a_task_reaches_another_process_as_it_is() -> None:
    from fedquilt.core.describe import build, describe

    net = Net.of(models.MLP, features=4, classes=1).for_task(Regression(loss="huber", centre=(1.0,), scale=(2.0,)))
    again = build(describe(net), ())
    assert again.task == net.task
    assert sorted(again.init(Seed(0))) == sorted(net.init(Seed(0)))
    assert "task" not in describe(Net.of(models.MLP, features=4, classes=2))["kwargs"]
