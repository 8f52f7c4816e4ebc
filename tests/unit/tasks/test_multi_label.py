"""Several labels for a row: metrics against scikit-learn, exact pooling, and a run."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from sklearn.metrics import accuracy_score, f1_score, hamming_loss, roc_auc_score
from torch.nn import functional as F

from fedquilt import FedAvg, Federation, Net, models, run
from fedquilt.errors import InputError
from fedquilt.metrics.evaluation import score_row, summarise
from fedquilt.metrics.multi_label import label_auroc
from fedquilt.metrics.table import use, use_task
from fedquilt.pieces.optimizers import SGD
from fedquilt.tasks import MultiLabel


def rows(seed: int, count: int, labels: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-odds that know something of the labels."""
    rng = np.random.default_rng(seed)
    y = (rng.random((count, labels)) < np.linspace(0.1, 0.6, labels)).astype(np.float32)
    return torch.from_numpy(rng.normal(size=y.shape) + 2 * y - 1), torch.from_numpy(y)


def test_values_of_a_client() -> None:
    out, y = rows(0, 130)
    use_task(MultiLabel())
    found, answer = score_row(MultiLabel().scores(out, y)), (out > 0).int()
    assert found["micro_f1"] == pytest.approx(f1_score(y, answer, average="micro"))
    assert found["label_f1"] == pytest.approx(f1_score(y, answer, average="macro"))
    assert found["exact_match"] == pytest.approx(accuracy_score(y, answer))
    assert found["label_accuracy"] == pytest.approx(1 - hamming_loss(y, answer))
    assert found["loss"] == pytest.approx(float(F.binary_cross_entropy_with_logits(out, y.double())), rel=1e-6)


@given(st.integers(0, 10_000), st.lists(st.integers(1, 30), min_size=1, max_size=5))
def test_pooled_values_are_those_of_all_rows(seed: int, sizes: list[int]) -> None:
    out, y = rows(seed, sum(sizes))
    task = MultiLabel()
    use_task(task)
    parts = [task.scores(a, b) for a, b in zip(out.split(sizes), y.split(sizes), strict=True)]
    numbers = summarise({i: {"deployed": {"test": part}} for i, part in enumerate(parts)})
    for name, value in score_row(task.scores(out, y)).items():
        if f"test_{name}_pooled" in numbers:
            assert numbers[f"test_{name}_pooled"] == pytest.approx(value, abs=1e-9)


def traits(**options: Any) -> Federation:
    """Digits with what is true of their number: odd, above 4, prime, drawn with a loop."""
    x, digit = load_digits(return_X_y=True)
    y = np.stack([digit % 2, digit > 4, np.isin(digit, (2, 3, 5, 7)), np.isin(digit, (0, 6, 8, 9))], axis=1)
    x = (x / 16).astype(np.float32)
    return Federation.from_arrays(x[:600], y[:600], clients=4, task=MultiLabel(), standardise=None, **options)


def test_a_run_learns_and_a_metric_that_is_asked_for_is_there() -> None:
    data = traits(valid=0.1)
    net = Net.of(models.MLP, features=64, classes=4, hidden=(32,)).for_task(data.task)
    method = FedAvg(net, optimizer=SGD(0.5), batch_size=16, epochs=2)
    last = list(run(method, data, rounds=5, engine="local", metrics=[label_auroc()]))[-1]
    assert last.metrics["test_micro_f1"] > data.majority().personal + 0.15
    assert last.metrics["test_label_auroc"] > 0.85


def test_auroc_over_labels_is_that_of_scikit_learn() -> None:
    out, y = rows(3, 150)
    use([label_auroc()])
    use_task(MultiLabel())
    made = label_auroc()
    assert made.statistic is not None
    found = made.statistic(out.sigmoid(), y)[:, 0].mean()
    assert float(found) == pytest.approx(roc_auc_score(y, out, average="macro"), abs=1e-12)


def test_the_trivial_answer_calls_what_most_rows_have() -> None:
    task = MultiLabel()
    y = torch.tensor([[1.0, 0.0], [1.0, 1.0], [1.0, 0.0]])
    assert (task.constant(y) > 0).tolist() == [True, False]
    assert task.value(task.constant(y).expand(3, -1), y) == pytest.approx(2 * 3 / (4 + 3))


def test_rows_go_together_by_their_rarest_label() -> None:
    y = np.array([[0, 0, 0], [1, 0, 0], [1, 1, 0], [1, 0, 1], [1, 1, 0]])
    assert MultiLabel().strata(y).tolist() == [0, 1, 2, 3, 2]


def test_what_is_no_table_of_0_and_1_is_refused() -> None:
    x = np.zeros((3, 2), np.float32)
    with pytest.raises(InputError, match="has a label"):
        Federation.from_clients({"a": (x, np.full((3, 2), 2))}, task=MultiLabel())
    with pytest.raises(InputError, match="several labels are a column"):
        Federation.from_clients({"a": (x, np.zeros(3))}, task=MultiLabel())
    with pytest.raises(InputError, match=re.escape("task = fedquilt.tasks.MultiLabel")):
        Federation.from_clients({"a": (x, np.zeros((3, 2), int))})
