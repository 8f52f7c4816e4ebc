"""Brier, calibration error, kappa and F-beta against scikit-learn, and pooled over clients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import brier_score_loss, cohen_kappa_score, fbeta_score

from fedquilt.errors import InputError
from fedquilt.metrics.calibration import brier, ece, f_beta, kappa
from fedquilt.metrics.evaluation import score_row, summarise
from fedquilt.metrics.tails import tally
from unit.tasks.test_ranking import rows, scores

MADE = (brier, ece, kappa, f_beta)


def test_values_of_a_client() -> None:
    logits, y = rows(0, 170, 3)
    found = score_row(scores(logits, y, *(make() for make in MADE)))
    shares, answer = logits.softmax(1), logits.argmax(1)
    assert found["kappa"] == pytest.approx(cohen_kappa_score(y, answer), abs=1e-12)
    assert found["f_beta"] == pytest.approx(fbeta_score(y, answer, beta=2.0, average="macro"), abs=1e-12)
    assert found["brier"] == pytest.approx(((shares - torch.eye(3)[y]) ** 2).sum(1).mean().item(), abs=1e-9)
    assert found["ece"] == pytest.approx(tally(logits, y).calibration_error, abs=1e-12)


def test_of_two_classes_the_brier_score_is_twice_that_of_scikit_learn() -> None:
    logits, y = rows(4, 90, 2)
    wanted = brier_score_loss(y, logits.softmax(1)[:, 1])
    assert score_row(scores(logits, y, brier()))["brier"] == pytest.approx(2 * wanted, abs=1e-12)


@given(st.integers(0, 10_000), st.lists(st.integers(1, 30), min_size=1, max_size=5))
def test_pooled_values_are_those_of_all_rows(seed: int, sizes: list[int]) -> None:
    logits, y = rows(seed, sum(sizes), 3)
    made = [make() for make in MADE]
    parts = [scores(a, b, *made) for a, b in zip(logits.split(sizes), y.split(sizes), strict=True)]
    numbers = summarise({i: {"deployed": {"test": part}} for i, part in enumerate(parts)})
    whole = score_row(scores(logits, y, *made))
    for name in ("brier", "ece", "f_beta", *(["kappa"] if "kappa" in whole else [])):
        assert numbers[f"test_{name}_pooled"] == pytest.approx(whole[name], abs=1e-12)


def test_where_rows_and_answers_are_of_one_class_there_is_no_kappa() -> None:
    logits = torch.tensor([[2.0, 0.0]] * 5)
    assert "kappa" not in score_row(scores(logits, torch.zeros(5, dtype=torch.int64), kappa()))


def test_kappa_worked_by_hand() -> None:
    """Of 10 rows 5 and 5, 4 and 3 are right: 0.7 agree, and by chance 0.5 * 0.6 + 0.5 * 0.4."""
    y, answer = np.repeat([0, 1], 5), np.array([0, 0, 0, 0, 1, 1, 1, 1, 0, 0])
    logits = torch.from_numpy(np.eye(2)[answer])
    assert score_row(scores(logits, torch.from_numpy(y), kappa()))["kappa"] == pytest.approx((0.7 - 0.5) / 0.5)


def test_beta_must_be_more_than_0() -> None:
    with pytest.raises(InputError, match="beta should be more than 0, got -1"):
        f_beta(-1.0)
