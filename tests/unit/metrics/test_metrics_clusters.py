"""Measures of clusters, with the oracle's numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedquilt.errors import InputError
from fedquilt.metrics.classify import Scores
from fedquilt.metrics.clusters import (
    agreement,
    churn,
    cluster_scores,
    cophenetic,
    cosine_distances,
    embedding_distances,
    silhouette,
    tree_distances,
)
from fedquilt.metrics.table import Counts, metrics

PAIRS = [0, 0, 1, 1, 2, 2]
DELTAS = [[1, 0.1, 0], [2, 0, 0.2], [0, 1, 0.1], [0.1, 3, 0], [0, 0.1, 1], [0.2, 0, 4]]


def named(labels: list[int]) -> dict[int, int]:
    return dict(enumerate(labels))


@pytest.mark.parametrize(
    ("other", "ari", "nmi", "purity"),
    [
        ([5, 5, 3, 3, 4, 4], 1.0, 1.0, 1.0),
        ([0, 0, 0, 0, 1, 1], 0.444444, 0.733680, 1.0),  # numpy and scikit-learn, 64-bit
        ([0, 0, 0, 0, 0, 0], 0.0, 0.0, 1.0),
    ],
)
def test_agreement(other: list[int], ari: float, nmi: float, purity: float) -> None:
    found = agreement(named(PAIRS), named(other))
    assert (found.ari, found.nmi, found.purity) == pytest.approx((ari, nmi, purity), abs=1e-6)


def test_purity_by_hand() -> None:
    # cluster 0 holds a a b, cluster 1 holds b b c: (2 + 2) / 6
    assert agreement(named([0, 0, 0, 1, 1, 1]), dict(enumerate("aabbbc"))).purity == pytest.approx(4 / 6)


def test_only_clients_of_both_count() -> None:
    assert agreement({0: 0, 1: 1, 9: 5}, {0: "x", 1: "y", 7: "z"}).clients == 2
    with pytest.raises(InputError, match="no client in common"):
        churn({0: 0}, {1: 0})


def test_churn_by_hand_ignores_names() -> None:
    assert churn(named(PAIRS), named([5, 5, 3, 3, 4, 4])) == 0
    assert churn(named(PAIRS), named([0, 1, 1, 1, 2, 2])) == pytest.approx(1 / 6)
    assert churn(named(PAIRS), named([0] * 6)) == pytest.approx(4 / 6)  # one pair keeps the name


@settings(max_samples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=20))
def test_renumbering_and_order_change_nothing(pairs: list[tuple[int, int]]) -> None:
    a, b = named([x for x, _ in pairs]), named([y for _, y in pairs])
    other = {c: 10 - k for c, k in reversed(list(a.items()))}
    assert churn(other, b) == pytest.approx(churn(a, b)) == pytest.approx(churn(b, a))
    assert 0 <= churn(a, b) < 1
    assert agreement(other, b).ari == pytest.approx(agreement(a, b).ari)
    assert agreement(other, b).purity == pytest.approx(agreement(a, b).purity)


def test_silhouette_and_cophenetic_of_planted_updates() -> None:
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import squareform

    far = cosine_distances([torch.tensor(d, dtype=torch.float64) for d in DELTAS])
    tree = torch.from_numpy(linkage(squareform(far, checks=False), "average"))
    assert tree[:, 2].tolist() == pytest.approx([0.005515, 0.006204, 0.009901, 0.900372, 0.927209], abs=1e-6)
    cuts = [silhouette(far, fcluster(tree.numpy(), k, "maxclust").tolist()) for k in (2, 3, 4, 5)]
    assert cuts == pytest.approx([0.562801, 0.991805, 0.662097, 0.331127], abs=1e-6)
    heights = tree_distances(tree)
    met = sorted({round(h, 6) for h in heights[np.triu_indices(6, 1)].tolist()})
    assert met == pytest.approx(sorted(tree[:, 2].tolist()), abs=1e-6)
    assert 0.9 < cophenetic(tree, far) < 1
    assert cophenetic(tree, heights) == pytest.approx(1.0)


def test_measures_that_do_not_exist_are_nan() -> None:
    far = np.ones((3, 3)) - np.eye(3)
    assert math.isnan(silhouette(far, [0, 0, 0]))
    assert math.isnan(silhouette(far, [0, 1, 2]))
    assert math.isnan(cophenetic(torch.tensor([[0.0, 1, 1, 2]], dtype=torch.float64), np.ones((2, 2)) - np.eye(2)))
    with pytest.raises(InputError, match="no direction"):
        cosine_distances([torch.zeros(2), torch.ones(2)])


def scores(support: list[int], correct: list[int], called: list[int]) -> Scores:
    return Scores(sum(support), 0.0, *(torch.tensor(v) for v in (support, correct, called)))


def test_scores_of_clusters_by_hand() -> None:
    """a: 2 of 4 right, one class of two (balanced 1/2, F1 (2*2/6 + 0)/2 = 1/3); b: all right."""
    found = {"a": scores([2, 2], [2, 0], [4, 0]), "b": scores([2, 2], [2, 2], [2, 2]), "c": scores([4], [1], [4])}
    rows = cluster_scores({"a": 0, "b": 0, "c": 1, "d": 2}, found, {"a": 0.5, "b": 0.25, "c": math.nan, "d": 0.5})
    halves = {
        f"{n}_rows_half_95": rows[0].pop(f"{n}_rows_half_95") for n in ("accuracy", "balanced_accuracy", "macro_f1")
    }
    assert halves == {
        f"{m.id}_rows_half_95": m.half(Counts.of([found["a"], found["b"]]), np.arange(2))
        for m in metrics()
        if m.variance
    }
    assert rows[0] == pytest.approx(
        {
            "cluster": 0,
            "clients": 2,
            "accuracy": 0.75,
            "accuracy_std": 0.25,
            "accuracy_least": 0.5,
            "balanced_accuracy": 0.75,
            "macro_f1": 2 / 3,
            "majority_class": 0.375,
        }
    )
    assert (rows[1]["accuracy"], rows[1]["majority_class"]) == (0.25, None)
    assert {v for n, v in rows[2].items() if n not in ("cluster", "clients")} == {None}


def test_embeddings_from_the_common_one() -> None:
    models = [{"phi": torch.tensor([3.0, 4.0]), "h": torch.tensor([9.0])}, {"phi": torch.zeros(2), "h": torch.zeros(1)}]
    body = "phi".__eq__
    assert embedding_distances(models, [1, 1], {"phi": torch.zeros(2)}, body) == [5.0, 0.0]
    assert embedding_distances(models, [3, 1], None, body) == pytest.approx([1.25, 3.75])  # mean is 3/4 of the first
    assert embedding_distances(models, [1, 1], None, "none".__eq__) == [0.0, 0.0]
