"""Paired differences between methods."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from fedquilt.results.statistics.paired import Paired, against, holm, versus

ONE = [{"a": 0.5, "b": 0.6, "c": 0.7, "d": 0.2}, {"a": 0.7, "b": 0.6, "c": 0.5, "d": 0.2}]
TWO = [{"a": 0.7, "b": 0.7, "c": 0.9, "d": 0.5}, {"a": 0.9, "b": 0.8, "c": 0.7, "d": 0.4}]


def test_a_difference_by_hand() -> None:
    """Means over seeds: .6 .6 .6 .2 and .8 .75 .8 .45; differences .2 .15 .2 .25, mean .2, s = .040825."""
    found = against(ONE, TWO)
    assert found.difference == pytest.approx(0.2)
    assert found.half == pytest.approx(3.182446 * 0.0408248 / 2, rel=1e-5)
    assert found.p == pytest.approx(stats.wilcoxon([0.2, 0.15, 0.2, 0.25]).pvalue)
    assert (found.seeds_better, found.seeds, found.significant) == (2, 2, False)  # four clients cannot be enough
    back = against(TWO, ONE)
    assert (back.difference, back.p, back.seeds_better) == (pytest.approx(-0.2), found.p, 0)


def test_only_clients_scored_everywhere_count_and_equals_do_not_differ() -> None:
    assert against(ONE, ONE) == replace(Paired(0.0, 0.0, 1.0, 0, 2), cohens_d=0.0, rank_biserial=0.0, cliffs_delta=0.0)
    assert against([{"a": 0.1, "z": 0.9}], [{"a": 0.3}]).difference == pytest.approx(0.2)
    assert math.isnan(against([{"a": 0.1}], [{"a": 0.3}]).p)
    parts = against([{"a": 0.1, "b": 0.1}, {"b": 0.2, "c": 0.3}], [{"a": 0.2, "b": 0.4}, {"b": 0.3, "c": 0.3}])
    assert parts.difference == pytest.approx((0.1 + (0.3 + 0.1) / 2 + 0.0) / 3)  # each seed scored some clients
    assert math.isnan(against([{"a": 0.1}], [{"b": 0.3}]).difference)


def test_holm_by_hand() -> None:
    """.01 * 3, max(.03, .02 * 2), max(.04, .9); NaN stays and does not count."""
    pairs = {n: Paired(0.1, 0.1, p, 3, 3) for n, p in (("x", 0.02), ("y", 0.9), ("z", 0.01), ("w", math.nan))}
    found = {n: pair.p for n, pair in holm(pairs).items()}
    assert {n: found[n] for n in "xyz"} == pytest.approx({"x": 0.04, "y": 0.9, "z": 0.03})
    assert math.isnan(found["w"])
    assert holm(pairs)["x"].significant
    assert not holm({"x": Paired(0.1, 0.1, 0.001, 2, 3)})["x"].significant  # one seed says the opposite
    assert not holm({"x": Paired(0.1, 0.1, 0.001, 1, 1)})["x"].significant  # one seed alone says nothing


def test_chance_is_seldom_significant_and_a_real_difference_is() -> None:
    """40 clients, noise of 0.05: without a difference at most a tenth of 100 tests; with 0.05 nearly all."""
    draw = np.random.default_rng(0)

    def fleet(lift: float) -> list[dict[int, float]]:
        return [dict(enumerate(0.7 + lift + 0.05 * draw.standard_normal(40)))]

    found = [[against(fleet(0.0), fleet(lift)).p < 0.05 for _ in range(100)] for lift in (0.0, 0.05)]
    assert sum(found[0]) <= 10
    assert sum(found[1]) >= 90


def test_methods_against_the_first() -> None:
    assert list(versus({"fedavg": ONE, "x": TWO})) == ["x"]
    assert versus({"alone": ONE}) == {}
