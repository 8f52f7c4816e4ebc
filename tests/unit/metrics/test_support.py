"""Intervals that know how many rows they rest on, held against simulated tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedquilt.metrics.support import (
    Z,
    balanced_variance,
    half_of_mean,
    macro_f1_variance,
    rarest,
    share_variance,
    wilson,
)

CONFUSED = np.array([[0.8, 0.15, 0.05], [0.1, 0.6, 0.3], [0.25, 0.25, 0.5]])  # what each class is called


def drawn(sizes: list[int], seeds: int = 400) -> tuple[Any, Any, Any]:
    """Counts of many tests with so many rows of each class: [tests, classes] of rows, right, called."""
    rng = np.random.default_rng(0)
    matrices = np.stack([rng.multinomial(n, row, seeds) for n, row in zip(sizes, CONFUSED, strict=True)], 1)
    return matrices.sum(2), np.diagonal(matrices, axis1=1, axis2=2), matrices.sum(1)


def test_wilson_by_hand() -> None:
    """8 of 10: (0.8 + 0.19207) / 1.38415 -+ 1.96 / 1.38415 * sqrt(0.016 + 0.0096036)."""
    low, high = wilson(np.array([8, 0, 5]), np.array([10, 3, 5]))
    assert (low[0], high[0]) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert low[1] == 0.0
    assert high[1] == pytest.approx(Z**2 / (3 + Z**2))
    assert high[2] == 1.0
    assert 0.5 < low[2] < 0.6


@pytest.mark.parametrize("sizes", [[40, 40, 40], [100, 20, 5], [60, 2, 1]])
def test_the_spread_over_tests_is_what_one_test_says_of_itself(sizes: list[int]) -> None:
    """The deviation over simulated tests, beside the mean deviation that each of them claims. Macro F1's is a bound."""
    support, correct, called = drawn(sizes)
    recall = (correct / support).mean(1)
    claimed = np.sqrt(balanced_variance(correct, support)).mean()
    assert 0.75 * recall.std() < claimed < 1.4 * recall.std()
    f1 = (2 * correct / (support + called)).mean(1)
    claimed = np.sqrt(macro_f1_variance(correct, support, called)).mean()
    assert 0.85 * f1.std() < claimed < 1.7 * f1.std()
    right = correct.sum(1) / sum(sizes)
    claimed = np.sqrt(share_variance(correct.sum(1), support.sum(1))).mean()
    assert 0.85 * right.std() < claimed < 1.3 * right.std()


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    support, correct, _ = drawn([100, 20, 5], 1000)
    half = Z * np.sqrt(balanced_variance(correct, support))
    held = np.abs((correct / support).mean(1) - np.diag(CONFUSED).mean()) <= half
    assert 0.9 < held.mean() < 1.0


def test_few_rare_rows_are_never_sure() -> None:
    """One row of a class, right: nothing else could be told from a class with a thousand rows, all right."""
    few, many = (balanced_variance(np.array([[1000, n]]), np.array([[1000, n]]))[0] for n in (1, 1000))
    assert np.sqrt(few) > 0.1 > 0.01 > np.sqrt(many)
    assert rarest(np.array([[3, 0, 1], [0, 0, 7]])).tolist() == [1, 7]


def test_the_interval_of_a_mean_shrinks_with_clients() -> None:
    one, four = half_of_mean(np.full(1, 0.01)), half_of_mean(np.full(4, 0.01))
    assert one == pytest.approx(Z * 0.1)
    assert four == pytest.approx(one / 2)
