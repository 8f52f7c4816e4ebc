"""Measures of how unlike clients are, against scipy and by hand."""

from __future__ import annotations

import time

import numpy as np
import pytest
from scipy.spatial.distance import jensenshannon
from scipy.stats import entropy

from fedquilt.data import gini, imbalance_factor, label_distances, label_entropy, measures

COUNTS = np.random.default_rng(0).integers(0, 9, (12, 5)) * (np.random.default_rng(1).random((12, 5)) < 0.6)
COUNTS[:, 0] += 1


def test_distances_and_entropy_are_scipys():
    found = label_distances(COUNTS)
    for i, p in enumerate(COUNTS):
        for j, q in enumerate(COUNTS):
            assert found[i, j] == pytest.approx(jensenshannon(p, q, base=2), abs=1e-7)
    assert np.array_equal(found, found.T)
    assert label_entropy(COUNTS) == pytest.approx([entropy(row, base=2) for row in COUNTS])


def test_the_extremes():
    apart = np.array([[5, 0], [0, 2]])
    assert label_distances(apart).tolist() == [[0, 1], [1, 0]]
    assert label_entropy(np.array([[7, 0, 0, 0], [2, 2, 2, 2]])).tolist() == [0, 2]
    assert label_distances(np.array([[1, 3], [10, 30]])).max() == 0  # sizes do not count


def test_gini_is_the_mean_difference_over_twice_the_mean():
    sizes = COUNTS.sum(1)
    slow = np.abs(sizes[:, None] - sizes[None]).mean() / (2 * sizes.mean())
    assert gini(sizes) == pytest.approx(slow)
    assert gini(np.array([0, 0, 0, 10])) == 0.75  # 1 - 1/n


def test_all_together():
    found = measures(np.array([[8, 0], [0, 4]]))
    assert (found["label_distance"], found["imbalance_factor"], found["size_gini"]) == (1.0, 0.5, pytest.approx(1 / 6))
    assert found["label_entropy"] == {"least": 0.0, "mean": 0.0, "most": 0.0}
    assert measures(np.array([[3, 1]]))["label_distance"] is None
    assert imbalance_factor(np.array([[3, 0], [1, 1]])) == 0.25


def test_thousands_of_clients_are_no_burden():
    start = time.perf_counter()
    found = measures(np.random.default_rng(0).integers(0, 20, (5000, 50)))
    assert time.perf_counter() - start < 3
    assert 0 < found["label_distance"] < 1
