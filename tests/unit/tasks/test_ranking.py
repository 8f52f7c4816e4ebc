"""AUROC and AUPRC: exact for a client, and within what bins leave open for all clients' rows together."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score

from fedquilt.core.table import Table
from fedquilt.metrics.classify import ClassifyWith
from fedquilt.metrics.evaluation import summarise
from fedquilt.metrics.ranking import (
    BINS,
    HEAD,
    auprc,
    auroc,
    auroc_between,
    auroc_of,
    average_precision_between,
    average_precision_of,
)
from fedquilt.metrics.table import Counts, Metric, use, values

SCIKIT = {"auroc": roc_auc_score, "auprc": average_precision_score}


def scores(logits: torch.Tensor, y: torch.Tensor, *made: Metric) -> object:
    """The score record of a client, with the sums of these metrics."""
    use(made)
    own = tuple((m.id, m.statistic) for m in made if m.statistic is not None)
    return ClassifyWith(own)(lambda params, batch: batch["x"], {}, Table({"x": logits, "y": y}))


def rows(seed: int, count: int, classes: int, ties: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores that know something of the labels; coarse ones have ties."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, count)
    logits = rng.normal(size=(count, classes)) + np.eye(classes)[y]
    return torch.from_numpy(np.round(logits) if ties else logits), torch.from_numpy(y)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("name", ["auroc", "auprc"])
def test_of_two_classes_it_is_that_of_the_second(name: str, ties: bool) -> None:
    logits, y = rows(0, 250, 2, ties)
    made = {"auroc": auroc, "auprc": auprc}[name]()
    found = values(Counts.of([scores(logits, y, made)]))[name]
    assert found[0] == pytest.approx(SCIKIT[name](y, logits[:, 1] - logits[:, 0]), abs=1e-12)


@pytest.mark.parametrize("name", ["auroc", "auprc"])
def test_of_more_classes_it_is_the_mean_of_each_against_the_rest(name: str) -> None:
    logits, y = rows(1, 230, 4)
    made = {"auroc": auroc, "auprc": auprc}[name]()
    found = values(Counts.of([scores(logits, y, made)]))[name]
    shares = logits.softmax(1)
    each = [SCIKIT[name]((y == k).int(), shares[:, k]) for k in range(4)]
    assert found[0] == pytest.approx(np.mean(each), abs=1e-12)
    if name == "auroc":
        assert found[0] == pytest.approx(roc_auc_score(y, shares, multi_class="ovr"), abs=1e-12)


def test_a_client_with_rows_of_one_class_has_none() -> None:
    logits, _ = rows(2, 12, 2)
    found = values(Counts.of([scores(logits, torch.zeros(12, dtype=torch.int64), auroc(), auprc())]))
    assert np.ma.getmaskarray(found["auroc"]).all()
    assert np.ma.getmaskarray(found["auprc"]).all()


@given(st.integers(0, 10_000), st.lists(st.integers(1, 50), min_size=1, max_size=5))
def test_the_pooled_value_is_within_what_bins_leave_open(seed: int, sizes: list[int]) -> None:
    logits, y = rows(seed, sum(sizes), 2)
    if len(y.unique()) < 2:
        return
    parts = [scores(a, b, auroc(), auprc()) for a, b in zip(logits.split(sizes), y.split(sizes), strict=True)]
    numbers = summarise({i: {"deployed": {"test": part}} for i, part in enumerate(parts)})
    odds = logits[:, 1] - logits[:, 0]
    for name, between in (("auroc", auroc_between), ("auprc", average_precision_between)):
        whole = sum(part.sums[name][1].numpy() for part in parts)  # type: ignore[attr-defined]
        low, high = between(whole[HEAD : HEAD + BINS], whole[HEAD + BINS :])
        exact = SCIKIT[name](y, odds)
        assert low - 1e-9 <= exact <= high + 1e-9
        assert numbers[f"test_{name}_pooled"] == pytest.approx((low + high) / 2)


def test_of_many_rows_bins_leave_little_open() -> None:
    logits, y = rows(5, 4000, 2)
    found = scores(logits, y, auroc()).sums["auroc"][1].numpy()  # type: ignore[attr-defined]
    low, high = auroc_between(found[HEAD : HEAD + BINS], found[HEAD + BINS :])
    assert high - low < 0.02


def test_areas_worked_by_hand() -> None:
    """Ranked 4, 3, 2, 2, 1 with the class at 4, 2 and 1: of 6 pairs 2 + 0.5 + 0 are won."""
    odds, mine = np.array([4.0, 3.0, 2.0, 2.0, 1.0]), np.array([True, False, True, False, True])
    assert auroc_of(odds, mine) == pytest.approx(2.5 / 6)
    assert average_precision_of(odds, mine) == pytest.approx(1 / 3 + 1 / 3 * 2 / 4 + 1 / 3 * 3 / 5)


def test_the_interval_is_near_that_of_many_draws() -> None:
    """Hanley and McNeil's formula against the spread of the area over 400 draws of the same population."""
    drawn = [rows(seed, 120, 2) for seed in range(400)]
    areas = [float(roc_auc_score(y, x[:, 1] - x[:, 0])) for x, y in drawn]
    made = auroc()
    counts = Counts.of([scores(x, y, made) for x, y in drawn[:20]])
    assert made.variance is not None
    assert np.sqrt(made.variance(counts)).mean() == pytest.approx(np.std(areas), rel=0.25)
