"""Regression: losses and metrics against scikit-learn, exact pooling, and a run from end to end."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_diabetes
from sklearn.metrics import mean_absolute_error, mean_pinball_loss, mean_squared_error, r2_score

from fedquilt import FedAvg, Federation, Net, models, run
from fedquilt.data import Dirichlet
from fedquilt.data.partitions.class_groups import Pathological
from fedquilt.errors import ConfigError, InputError
from fedquilt.metrics.evaluation import score_row, summarise
from fedquilt.metrics.summed import Summed
from fedquilt.metrics.table import Counts, use_task, values
from fedquilt.tasks import Regression


def table_of(rows: int, targets: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs and targets at random, far from 0."""
    rng = np.random.default_rng(seed)
    y = 1000 + 30 * rng.normal(size=(rows, targets))
    return torch.from_numpy((y - 1000) / 30 + rng.normal(size=y.shape)), torch.from_numpy(y)


@pytest.mark.parametrize("targets", [1, 3])
def test_metrics_are_those_of_scikit_learn(targets: int) -> None:
    task = Regression(centre=1000.0, scale=30.0)
    out, y = table_of(57, targets, 0)
    use_task(task)
    found, answers = score_row(task.scores(out, y)), task.answers(out)
    assert found["mae"] == pytest.approx(mean_absolute_error(y, answers), rel=1e-12)
    assert found["mse"] == pytest.approx(mean_squared_error(y, answers), rel=1e-12)
    assert found["rmse"] == pytest.approx(mean_squared_error(y, answers) ** 0.5, rel=1e-12)
    assert found["r2"] == pytest.approx(r2_score(y, answers), rel=1e-10)


@given(st.integers(0, 10_000), st.lists(st.integers(1, 40), min_size=1, max_size=6))
def test_sums_of_clients_are_those_of_all_their_rows(seed: int, sizes: list[int]) -> None:
    task = Regression(centre=1000.0, scale=30.0)
    out, y = table_of(sum(sizes), 2, seed)
    use_task(task)
    parts = [task.scores(o, t) for o, t in zip(out.split(sizes), y.split(sizes), strict=True)]
    numbers = summarise({i: {"deployed": {"test": part}} for i, part in enumerate(parts)})
    answers = task.answers(out)
    assert numbers["test_mae_pooled"] == pytest.approx(mean_absolute_error(y, answers), rel=1e-9)
    assert numbers["test_rmse_pooled"] == pytest.approx(mean_squared_error(y, answers) ** 0.5, rel=1e-9)
    if len(y) > 1:
        assert numbers["test_r2_pooled"] == pytest.approx(r2_score(y, answers), rel=1e-7, abs=1e-9)


def test_large_targets_keep_their_digits_in_r2() -> None:
    task = Regression(centre=1e6, scale=1.0)
    y = 1e6 + torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)
    out = torch.tensor([[0.0], [0.5], [1.0]], dtype=torch.float64)
    use_task(task)
    assert score_row(task.scores(out, y))["r2"] == pytest.approx(r2_score([0.25, 0.5, 0.75], [0.0, 0.5, 1.0]))


def test_a_client_whose_targets_do_not_vary_has_no_r2_and_one_row_no_interval() -> None:
    task = Regression(centre=0.0, scale=1.0)
    use_task(task)
    flat, lone = task.scores(torch.zeros(3, 1), torch.ones(3)), task.scores(torch.zeros(1, 1), torch.ones(1))
    counts = Counts.of([flat, lone])
    assert np.ma.getmaskarray(values(counts)["r2"]).all()
    mae = next(m for m in task.known if m.id == "mae")
    assert mae.half(counts, np.arange(1)) == 0.0  # three errors of 1
    assert mae.half(counts, np.arange(2)) is None


def test_the_interval_of_the_mean_error_is_that_of_its_rows() -> None:
    task, rng = Regression(centre=0.0, scale=1.0), np.random.default_rng(3)
    out, y = torch.from_numpy(rng.normal(size=(40, 1))), torch.from_numpy(rng.normal(size=40))
    errors = (out[:, 0] - y).abs().numpy()
    mae = next(m for m in task.known if m.id == "mae")
    half = mae.half(Counts.of([task.scores(out, y)]), np.arange(1))
    assert half == pytest.approx(1.959963984540054 * errors.std(ddof=1) / 40**0.5)


@pytest.mark.parametrize(
    ("task", "wanted"),
    [
        (Regression(loss="mse", centre=2.0, scale=4.0), [4.0, 0.25]),  # standardised errors: -2 and 0.5
        (Regression(loss="mae", centre=2.0, scale=4.0), [2.0, 0.5]),
        (Regression(loss="huber", delta=1.0, centre=2.0, scale=4.0), [1.5, 0.125]),
        (Regression(loss="quantile", quantile=0.9, centre=2.0, scale=4.0), [1.8, 0.05]),
    ],
)
def test_losses_of_rows_worked_by_hand(task: Regression, wanted: list[float]) -> None:
    out, y = torch.tensor([[-1.0], [0.5]]), torch.tensor([6.0, 2.0])  # targets 1 and 0 in deviations
    assert task.losses(out, y).tolist() == pytest.approx(wanted)


def test_the_quantile_loss_is_the_pinball_loss_of_scikit_learn() -> None:
    task, (out, y) = Regression(loss="quantile", quantile=0.2, centre=0.0, scale=1.0), table_of(30, 1, 5)
    wanted = mean_pinball_loss(y[:, 0], out[:, 0], alpha=0.2)
    assert float(task.losses(out, y).mean()) == pytest.approx(wanted, rel=1e-12)


def diabetes(**options: Any) -> Federation:
    """Six clinics with patients of unlike progress."""
    x, y = load_diabetes(return_X_y=True)
    task = options.pop("task", Regression())
    return Federation.from_arrays(x, y, Dirichlet(1.0, minimum=15), clients=6, test=0.3, task=task, **options)


def test_the_task_takes_mean_and_deviation_from_training_targets_only() -> None:
    data = diabetes()
    trained = torch.cat([data.labels(client) for client in data.ids]).double()
    assert data.task is not None
    assert data.task.numbers() == {
        "centre": pytest.approx([float(trained.mean())]),
        "scale": pytest.approx([float(trained.std(correction=0))]),
    }


def test_the_trivial_answer_is_the_mean_of_a_clients_training_targets() -> None:
    data = diabetes()
    wanted = [
        np.abs(data.labels(c, "test").double().numpy() - data.labels(c).double().numpy().mean()).mean()
        for c in data.ids
    ]
    assert data.majority().clients == pytest.approx(wanted, rel=1e-5)


def test_a_run_learns_and_chooses_by_the_mean_error() -> None:
    data = diabetes(valid=0.15)
    net = Net.of(models.MLP, features=10, classes=1, hidden=(16,)).for_task(data.task)
    last = list(run(FedAvg(net, batch_size=16, epochs=2), data, rounds=6, engine="local"))[-1]
    assert last.metrics["test_mae"] < 0.9 * float(data.majority().clients.mean())
    assert "test_accuracy" not in last.metrics
    assert isinstance(last.evaluations[0]["deployed"]["test"], Summed)


def test_partitions_by_label_go_by_tenths_of_the_target() -> None:
    x, y = load_diabetes(return_X_y=True)
    data = Federation.from_arrays(x, y, Pathological(classes_per_client=2), clients=10, test=0, task=Regression())
    assert data.label_counts().shape == (10, 10)
    assert ((data.label_counts() > 0).sum(1) == 2).all()


def test_workers_and_this_process_agree(one_worker: Any) -> None:
    data = diabetes()
    net = Net.of(models.MLP, features=10, classes=1, hidden=(8,)).for_task(data.task)
    method = FedAvg(net, batch_size=16)
    here, there = (list(run(method, data, rounds=2, engine=e))[-1] for e in ("local", one_worker))
    assert here.digest() == there.digest()
    assert here.metrics["test_mae"] == there.metrics["test_mae"]


def test_a_vector_of_targets_from_a_csv_file(tmp_path: Path) -> None:
    rows = [{"a": i, "b": i % 3, "up": 2.5 * i, "down": -i, "who": f"p{i % 2}"} for i in range(40)]
    with (tmp_path / "t.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    data = Federation.from_csv(tmp_path / "t.csv", label=["up", "down"], user="who", task=Regression())
    assert (data.classes, data.columns["y"].shape, data.columns["x"].shape) == (2, (40, 2), (40, 2))
    assert data.columns["y"][3].tolist() == [7.5, -3.0]


def test_what_cannot_be_a_target_is_refused() -> None:
    x = np.zeros((4, 2), np.float32)
    with pytest.raises(InputError, match="NaN, infinite or huge values in 1 of 4 rows"):
        Federation.from_clients({"a": (x, np.array([1.0, np.nan, 0, 0]))}, task=Regression())
    with pytest.raises(InputError, match=re.escape("task = fedquilt.tasks.Regression")):
        Federation.from_clients({"a": (x, np.array([1.0, 0.5, 0, 0]))})
    with pytest.raises(InputError, match="The data have no targets"):
        Federation.from_clients({"a": (x, None)}, task=Regression())


def test_options_out_of_range_are_refused() -> None:
    for options in ({"loss": "l1"}, {"delta": 0.0}, {"quantile": 1.0}, {"scale": 0.0}, {"main": "accuracy"}):
        with pytest.raises(InputError, match=next(iter(options))):
            Regression(**options)  # type: ignore[arg-type]


def test_data_and_network_must_be_for_the_same_task() -> None:
    data = diabetes()
    bare = Net.of(models.MLP, features=10, classes=1)
    with pytest.raises(InputError, match="for_task"):
        list(run(FedAvg(bare), data, rounds=1, engine="local"))
    wide = Net.of(models.MLP, features=10, classes=3).for_task(data.task)
    with pytest.raises(InputError, match="makes 1 numbers of a row"):
        list(run(FedAvg(wide), data, rounds=1, engine="local"))


def test_recipes_tell_what_is_wrong_with_a_task() -> None:
    from fedquilt.config.config import parse

    with pytest.raises(ConfigError, match="did you mean 'regression'"):
        parse({"task": "regresion"})
    with pytest.raises(ConfigError, match="quantile should be between 0 and 1"):
        parse({"task": {"kind": "regression", "quantile": 2.0}})
    with pytest.raises(ConfigError, match=re.escape("task.quantil: unknown key")):
        parse({"task": {"kind": "regression", "quantil": 0.2}})
