"""Clusters judged by what there would be without groups: found where they are, and not where they are not."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score

from fedquilt.core.seed import Seed
from fedquilt.errors import InputError
from fedquilt.pieces.clustering import null
from fedquilt.pieces.clustering.agglomerative import agglomerate

SEED = Seed(5)


def cloud(clients: int, length: int, seed: int, around: float = 0.0) -> dict[int, torch.Tensor]:
    """Normal vectors, around a common one of length ``around``."""
    draw = torch.Generator().manual_seed(seed)
    middle = around * torch.nn.functional.normalize(torch.randn(length, generator=draw), dim=0)
    return {i: middle + torch.randn(length, generator=draw) for i in range(clients)}


def halves(
    groups: list[int], apart: float, seed: int = 0, length: int = 400, own: float = 0.0
) -> tuple[dict[int, torch.Tensor], dict[int, torch.Tensor]]:
    """Two updates of each client: common direction, its group's direction, its own, and noise, all of length about 1
    but for ``apart`` and ``own``."""
    draw = torch.Generator().manual_seed(seed)

    def ways(count: int) -> torch.Tensor:
        return torch.randn(count, length, generator=draw) / math.sqrt(length)

    common, kinds, selves = ways(1)[0], apart * ways(max(groups) + 1), own * ways(len(groups))
    whole = {i: common + kinds[g] + selves[i] for i, g in enumerate(groups)}
    first, second = ({i: w + ways(1)[0] for i, w in whole.items()} for _ in range(2))
    return first, second


def found(first: Any, second: Any = None, **options: Any) -> Any:
    return agglomerate(first, again=second, auto=True, seed=SEED, **options)


def test_a_cloud_without_structure_is_one_cluster():
    """30 clients in 10 dimensions. The best silhouette there passes 0.25 more often than not."""
    assert [found(cloud(30, 10, seed)).k for seed in range(10)] == [1] * 10


@pytest.mark.parametrize("seed", range(4))
def test_one_odd_client_is_no_cluster(seed: int):
    """Nineteen of one kind and one of another: with one update of each, and with two."""
    first, second = halves([0] * 19 + [1], 3.0, seed)
    assert (found(first).k, found(first, second).k) == (1, 1)


def test_groups_under_noise_are_found():
    """Four groups of ten; what tells them apart is a third as long as the noise. The best silhouette is below .15."""
    groups = [i % 4 for i in range(40)]
    first, second = halves(groups, 0.3)
    both = {i: (first[i] + second[i]) / 2 for i in first}
    assert agglomerate(both, silhouette=True, seed=SEED).k == 1
    assert agglomerate(both, silhouette=True, seed=SEED).measures["best_silhouette"] < 0.15
    result = found(first, second)
    assert result.k == 4
    assert result.labels == dict(enumerate(groups))
    assert result.measures["gap"] > null.LEAST_GAP


@pytest.mark.parametrize("seed", range(4))
def test_clients_that_differ_one_by_one_are_one_cluster(seed: int):
    """They do differ (the permutation test says so), but no cut into few clusters holds the differences."""
    result = found(*halves([0] * 30, 0.0, seed, own=1.0))
    assert result.k == 1
    assert result.measures["p_differ"] <= null.DIFFER


def test_an_odd_client_beside_groups_joins_the_nearest():
    first, second = halves([0] * 10 + [1] * 10 + [2], 3.0)
    result = found(first, second)
    assert result.k == 2
    assert [result.labels[i] for i in range(20)] == [0] * 10 + [1] * 10
    assert found(first, second, min_size=1).k == 3


def test_it_is_the_same_every_time_and_neither_order_nor_length_matters():
    groups = [0] * 6 + [1] * 6 + [2] * 6
    first, second = halves(groups, 2.0)
    result = found(first, second)
    assert result.labels == dict(enumerate(groups))
    turned = {i: 3.0 * first[i] for i in reversed(range(18))}, {i: 0.1 * (i + 1) * second[i] for i in range(18)}
    again = found(*turned)
    assert again.labels == result.labels
    assert again.measures["gap"] == pytest.approx(result.measures["gap"])


def test_the_permutation_test_is_that_of_its_definition():
    """Against all 120 orders of five clients, and of three and two within clusters 12: p tends to the exact share."""
    import itertools

    draw = np.random.default_rng(3)
    a, b = draw.normal(size=(5, 3)), draw.normal(size=(5, 3))
    labels = np.array([0, 1, 0, 1, 0])
    for given in (np.zeros(5, int), labels):
        x, y = (np.stack([v[i] - v[given == given[i]].mean(0) for i in range(5)]) for v in (a, b))
        orders = [o for o in itertools.permutations(range(5)) if (given[list(o)] == given).all()]
        sums = [sum(x[i] @ y[o[i]] for i in range(5)) for o in orders]
        exact = np.mean(np.array(sums) >= sum(x[i] @ y[i] for i in range(5)) - 1e-12)
        several = [null._p_differ(a, b, given, np.random.default_rng(s)) for s in range(20)]
        assert np.mean(several) == pytest.approx(exact, abs=0.03)


def test_what_clusters_explain_does_not_grow_with_their_number():
    """By the products of halves: without noise exact, with it right on average; cutting further explains no more."""
    groups = np.array([0, 0, 0, 1, 1, 1])
    a = np.array([[1.0, 0], [1, 0], [1, 0], [0, 1], [0, 1], [0, 1]])
    assert null._common(a, a, groups) == pytest.approx(0)
    assert null._common(a, a, np.zeros(6, int)) == pytest.approx(6 / 5 * 3)  # 6 * |a_i - mean|^2 = 3, n/(n-1) times
    draw = np.random.default_rng(0)
    noisy = [null._common(a + draw.normal(size=a.shape), a + draw.normal(size=a.shape), groups) for _ in range(2000)]
    assert np.mean(noisy) == pytest.approx(0, abs=0.3)


def test_the_gap_is_that_of_its_definition():
    """Two tight pairs of points on a line leave W; clouds are normal, of the same variance, cut the same way."""
    points = np.array([[-1.0], [-0.9], [0.9], [1.0]]).repeat(5, axis=0)
    points = points + np.linspace(0, 0.01, 20)[:, None]
    labels = (points[:, 0] > 0).astype(int)
    within = sum(((points[labels == k] - points[labels == k].mean(0)) ** 2).sum() for k in (0, 1))
    left = within / ((points - points.mean(0)) ** 2).sum()
    assert null._left(points, labels) == pytest.approx(left)
    gap = null._gap(points, "ward", 2, 1, left, np.random.default_rng(0))
    half_normals = 1 - 2 / math.pi  # the variance left when a normal cloud is cut in the middle
    assert gap == pytest.approx(math.log(half_normals / left), abs=0.2)
    assert null._gap(points, "ward", 2, 1, 0.9, np.random.default_rng(0)) == -math.inf


def test_many_clients_are_judged_by_a_sample(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("fedquilt.pieces.clustering.agglomerative.MOST", 30)
    groups = [i % 3 for i in range(90)]
    result = found(*halves(groups, 2.0))
    assert "30 of 90 clients were clustered exactly; 60 joined" in result.warnings[0]
    assert adjusted_rand_score(groups, [result.labels[i] for i in range(90)]) == 1


def test_silent_halves_and_strange_ones():
    first, second = halves([0] * 6 + [1] * 6, 3.0)
    second[3] = torch.zeros(400)
    result = found(first, second)
    assert result.k == 2
    assert "1 clients sent a zero" in result.warnings[0]
    assert found({0: torch.ones(3)}, {0: torch.ones(3)}).k == 1
    assert found({i: torch.ones(3) for i in range(5)}, {i: torch.ones(3) for i in range(5)}).k == 1
    with pytest.raises(InputError, match="one half only"):
        found(first, {i: second[i] for i in range(5)})
