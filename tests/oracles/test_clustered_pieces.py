"""Clustering of planted updates, newcomers, blending and the measures of FedGroup and CFL, on worked numbers.

The numbers were computed with numpy in 64 bit, scipy and scikit-learn, apart from this code.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.cluster.hierarchy import linkage
from scipy.spatial.distance import pdist

from fedquilt.core.exchange import Context
from fedquilt.core.params import lerp
from fedquilt.core.seed import Seed
from fedquilt.methods.clustered.cfl import norms, parting
from fedquilt.methods.clustered.fedgroup import edc, grouped, madc
from fedquilt.methods.clustered.hcfl import fading
from fedquilt.pieces.clustering.agglomerative import agglomerate
from fedquilt.pieces.clustering.result import assign
from fedquilt.pieces.clustering.tree import Cut, by_distances, cut_tree

D = [[1, 0.1, 0], [2, 0, 0.2], [0, 1, 0.1], [0.1, 3, 0], [0, 0.1, 1], [0.2, 0, 4]]
PLANTED = {i: torch.tensor(row, dtype=torch.float64) for i, row in enumerate(D)}
RIGHT = {0: 0, 1: 0, 2: 1, 3: 1, 4: 2, 5: 2}


def near(value: float) -> object:
    return pytest.approx(value, abs=1e-6)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ((1, 0.1, 1), {0: 1, 1: 0.909091, 9: 0.526316, 10: 0.5, 49: 0.169492, 99: 0.091743}),
        ((0.8, 0.5, 2), {0: 0.8, 1: 0.355556, 2: 0.2, 10: 0.022222}),
        ((1, 0.1, 0.5), {0: 1, 10: 0.707107, 49: 0.411693, 99: 0.302891}),
    ],
)
def test_o1_sharing_fades(settings, expected):
    """lambda_0 / (1 + alpha t)^p."""
    assert {t: fading(*settings)(t) for t in expected} == {t: near(v) for t, v in expected.items()}


def test_o1_it_takes_91_rounds_to_fall_below_a_tenth():
    """1 / (1 + t/10) < 1/10 from t = 91 on; at t = 90 it is 1/10 (up to rounding)."""
    assert fading()(91) < 0.1
    assert fading()(90) == near(0.1)
    assert fading()(89) > 0.1


def test_o2_heights_and_cuts():
    found = agglomerate(PLANTED, silhouette=True, seed=Seed(0))
    assert found.tree[:, 2].tolist() == [near(h) for h in (0.005515, 0.006204, 0.009901, 0.900372, 0.927209)]
    assert found.labels == RIGHT
    assert found.measures["silhouette"] == near(0.991805)
    assert found.measures["height_ratio"] == pytest.approx(90.94, abs=0.005)
    cuts = {t: agglomerate(PLANTED, threshold=t, seed=Seed(0)).k for t in (0.005, 0.01, 0.05, 0.5, 0.9, 1.0)}
    assert cuts == {0.005: 6, 0.01: 3, 0.05: 3, 0.5: 3, 0.9: 3, 1.0: 1}


@pytest.mark.parametrize(("k", "expected"), [(2, 0.562801), (3, 0.991805), (4, 0.662097), (5, 0.331127)])
def test_o2_silhouettes(k: int, expected: float):
    distances = pdist(np.array(D), "cosine")
    assert by_distances(range(6), distances, "average", Cut(k=k)).measures["silhouette"] == near(expected)


def test_o2_ward_needs_rows_of_unit_length():
    """On raw updates length decides, and it is wrong: {0,1,2,4}, {3}, {5}."""
    assert agglomerate(PLANTED, k=3, seed=Seed(0)).labels == RIGHT
    raw = cut_tree(linkage(np.array(D), "ward"), 3)
    assert len({raw[i] for i in (0, 1, 2, 4)}) == 1
    assert len(set(raw)) == 3
    assert agglomerate(PLANTED, metric="euclidean", threshold=0.5, seed=Seed(0)).k == 6


def test_o2_the_cut_is_strict():
    """Two orthogonal updates are exactly 1 apart."""
    two = {0: torch.tensor([1.0, 0.0]), 1: torch.tensor([0.0, 1.0])}
    assert [agglomerate(two, threshold=t, seed=Seed(0)).k for t in (1.0, 1.0000001)] == [2, 1]


@pytest.mark.parametrize(
    ("vector", "distances", "cluster", "ambiguous"),
    [
        ([1, 0, 0.1], [0.004950, 0.978475, 0.875960], 0, False),
        ([1, 1, 1], [0.368067, 0.385901, 0.381303], 0, True),
        ([-1, 0, 0], [1.995037, 1.016657, 1.024969], None, True),
    ],
)
def test_o2_newcomers(vector, distances, cluster, ambiguous):
    """1 - u . s_k is the mean cosine distance to the members of k."""
    found = agglomerate(PLANTED, threshold=0.5, seed=Seed(0))
    one = torch.tensor(vector, dtype=torch.float64)
    one = one / one.norm()
    assert (1 - found.directions.double() @ one).tolist() == [near(d) for d in distances]
    placed = assign(found, torch.tensor(vector))
    ranked = sorted(distances)
    assert (placed.cluster, placed.ambiguous) == (cluster, ambiguous)
    assert placed.distance == near(ranked[0])
    assert placed.margin == pytest.approx(ranked[1] - ranked[0], abs=2e-6)


def test_o3_the_blend_is_exact_at_its_ends():
    """a + w (b - a) below 1/2, b - (b - a)(1 - w) above: bitwise a at 0, b at 1, and a where a = b."""
    draw = torch.Generator().manual_seed(1)
    a, b = ({"w": torch.randn(10000, generator=draw)} for _ in "ab")
    assert torch.equal(lerp(a, b, 0.0)["w"], a["w"])
    assert torch.equal(lerp(a, b, 1.0)["w"], b["w"])
    for weight in (0.1, 0.3, 0.5, 0.7, 0.9090909):
        assert torch.equal(lerp(a, a, weight)["w"], a["w"])


def test_o8_decomposed_cosines():
    rows = torch.tensor(D, dtype=torch.float64)
    assert torch.linalg.svdvals(rows).tolist() == [near(v) for v in (4.144488, 3.168603, 2.214312)]
    assert edc(rows, 3)[0].abs().tolist() == [near(v) for v in (0.102333, 0.168998, 0.980290)]
    assert grouped(PLANTED, 3, "edc", Seed(0)).labels == RIGHT
    from sklearn.cluster import KMeans  # with two directions too

    labels = KMeans(3, n_init=10, random_state=0).fit(edc(rows, 2).numpy()).labels_
    assert [labels[i] == labels[j] for i, j in ((0, 1), (2, 3), (4, 5), (0, 2), (2, 4))] == [True] * 3 + [False] * 2


def test_o8_mean_absolute_differences_of_cosines():
    far = madc(torch.tensor(D, dtype=torch.float64))
    expected = {(0, 1): 0.094261, (0, 2): 0.519973, (2, 3): 0.063281, (4, 5): 0.071568}
    assert {pair: float(far[pair]) for pair in expected} == {pair: near(v) for pair, v in expected.items()}
    assert torch.equal(far, far.T)
    assert grouped(PLANTED, 3, "madc", Seed(0)).labels == RIGHT


CFL = {i: torch.tensor(row) for i, row in enumerate([[1, 0.2], [1, 0], [0.9, 0.1], [-1, 0.1], [-1.1, 0]])}


def test_o8_bipartition():
    """|mean| = |(0.16, 0.08)|; the longest update is the last."""
    assert norms(CFL) == (near(0.178885), near(1.1))
    found = parting(CFL, Context(0, None, Seed(0)))
    assert found.sides == ((0, 1, 2), (3, 4))
    assert found.across == near(-0.956200)
    assert found.gap == near(0.988989)
