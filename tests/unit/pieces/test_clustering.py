"""Properties of the clustering pieces: what must not matter, and what must not break."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import pdist, squareform
from sklearn.metrics import silhouette_score

from fedquilt.core.seed import Seed
from fedquilt.errors import InputError
from fedquilt.methods.clustered.fedgroup import grouped, madc
from fedquilt.pieces.clustering.agglomerative import agglomerate
from fedquilt.pieces.clustering.private import blocks, sketch
from fedquilt.pieces.clustering.result import (
    assign,
    canonical,
    from_labels,
    largest,
    members,
    merge_small,
    unit,
    unknown,
)
from fedquilt.pieces.clustering.tree import cluster_sums, correlation, silhouette
from fedquilt.records.record import pack, unpack

SEED = Seed(5)


def planted(sizes: tuple[int, ...], length: int = 40, noise: float = 0.1, seed: int = 0) -> dict[int, torch.Tensor]:
    """Updates along orthogonal directions, one for each group; clients are numbered group by group."""
    draw = torch.Generator().manual_seed(seed)
    kinds = [k for k, size in enumerate(sizes) for _ in range(size)]
    found = {}
    for i, k in enumerate(kinds):
        found[i] = noise / math.sqrt(length) * torch.randn(length, generator=draw)
        found[i][k] += 1
    return found


THREE = planted((4, 3, 5))
LABELS = {i: 0 if i < 4 else 1 if i < 7 else 2 for i in range(12)}


@settings(max_examples=8, deadline=None)
@given(order=st.permutations(range(12)), scales=st.lists(st.floats(1e-6, 1e6), min_size=12, max_size=12))
def test_neither_order_nor_length_matters(order: list[int], scales: list[float]):
    moved = {i: THREE[i] * scales[i] for i in order}
    for criterion in ({"auto": True}, {"threshold": 0.5}, {"k": 3}):
        assert agglomerate(moved, **criterion, seed=SEED).labels == LABELS


@settings(max_examples=20, deadline=None)
@given(labels=st.dictionaries(st.integers(0, 30), st.integers(0, 5), min_size=1), shift=st.permutations(range(6)))
def test_canonical_labels_are_the_partition_and_nothing_else(labels: dict[int, int], shift: list[int]):
    named = canonical(labels)
    assert named == canonical({c: shift[j] for c, j in labels.items()}) == canonical(named)
    assert list(named) == sorted(labels)
    firsts = [min(c for c in named if named[c] == j) for j in range(max(named.values()) + 1)]
    assert firsts == sorted(firsts)
    assert {frozenset(g) for g in members(from_labels(labels, None, ""))} == {
        frozenset(c for c in labels if labels[c] == j) for j in set(labels.values())
    }


def test_zero_and_broken_updates_are_put_aside():
    """They join the largest cluster; here that is the third, of five."""
    odd = {**THREE, 12: torch.zeros(40), 13: torch.full((40,), math.nan), 14: torch.full((40,), math.inf)}
    found = agglomerate(odd, auto=True, seed=SEED)
    assert found.labels == {**LABELS, 12: 2, 13: 2, 14: 2}
    assert "3 clients sent a zero or non-finite update" in found.warnings[0]
    assert torch.isfinite(found.directions).all()
    assert torch.allclose(found.directions, agglomerate(THREE, auto=True, seed=SEED).directions)


@pytest.mark.parametrize("criterion", [{"auto": True}, {"threshold": 0.5}, {"k": 1}, {"k": 3}])
def test_one_client_and_none_that_says_anything(criterion):
    one = agglomerate({"a": torch.tensor([1.0, 2.0])}, **criterion, seed=SEED)
    assert (one.labels, one.k) == ({"a": 0}, 1)
    silent = agglomerate({1: torch.zeros(2), 2: torch.zeros(2)}, **criterion, seed=SEED)
    assert (silent.labels, silent.k) == ({1: 0, 2: 0}, 1)
    assert unpack(pack(silent)) == silent


def test_two_equal_clients_are_together():
    same = {0: torch.tensor([1.0, 2.0]), 1: torch.tensor([2.0, 4.0])}
    assert agglomerate(same, threshold=0.5, seed=SEED).k == 1
    assert agglomerate(same, auto=True, seed=SEED).k == 1


def test_the_best_silhouette_does_not_split_a_fleet_of_one_kind():
    """One odd client has a good silhouette, but a merge that is low: 0.05 here, below the limit of 0.1."""
    fleet = planted((10,), noise=0.01)
    odd = math.acos(1 - 0.05)
    fleet[10] = math.cos(odd) * torch.eye(40)[0] + math.sin(odd) * torch.eye(40)[1]
    found = agglomerate(fleet, silhouette=True, seed=SEED)
    assert found.k == 1
    assert found.measures["best_silhouette"] > 0.25
    fleet[10] = torch.eye(40)[1]
    assert agglomerate(fleet, silhouette=True, seed=SEED).k == 2


@settings(max_examples=20, deadline=None)
@given(labels=st.lists(st.integers(0, 5), min_size=12, max_size=12).filter(lambda x: 1 < len(set(x)) < 12))
def test_silhouettes_are_those_of_the_library(labels: list[int]):
    """Also of unions of finer clusters, here of single clients; and the correlation."""
    rows = np.stack([THREE[i].numpy() for i in range(12)])
    distances, named = pdist(rows, "cosine"), np.unique(labels, return_inverse=True)[1]
    expected = silhouette_score(squareform(distances), named, metric="precomputed")
    alone = np.arange(12)
    assert silhouette(cluster_sums(distances, named), named, named) == pytest.approx(expected)
    assert silhouette(cluster_sums(distances, alone), alone, named) == pytest.approx(expected)
    other = distances**2 + 1
    assert correlation(distances, other) == pytest.approx(np.corrcoef(distances, other)[0, 1])


def test_clear_groups_are_stable_and_chance_is_not():
    """Three groups at right angles come again in every part; of 12 random directions a threshold makes anything."""
    clear = agglomerate(THREE, auto=True, seed=SEED).measures
    assert (clear["stable_k"], clear["stable_ari"]) == (1.0, 1.0)
    draw = torch.Generator().manual_seed(1)
    chance = {i: torch.randn(6, generator=draw) for i in range(12)}
    shaky = agglomerate(chance, threshold=0.8, seed=SEED).measures
    assert shaky["stable_ari"] < 0.9
    assert shaky == agglomerate(chance, threshold=0.8, seed=SEED).measures
    assert "stable_k" not in agglomerate(planted((2, 2)), auto=True, seed=SEED).measures  # too few to say


def test_more_clusters_than_clients_are_not_made_up():
    found = agglomerate({0: torch.tensor([1.0, 0.0]), 1: torch.tensor([0.0, 1.0])}, k=5, seed=SEED)
    assert found.k == 2
    assert "5 clusters were asked for" in found.warnings[0]


@pytest.mark.parametrize("criterion", [{"auto": True}, {"threshold": 0.5}, {"k": 3}])
def test_a_sample_finds_what_all_find(criterion):
    many = planted((30, 20, 25))
    exact = agglomerate(many, **criterion, seed=SEED)
    sampled = agglomerate(many, **criterion, max_exact=20, seed=SEED)
    assert sampled.labels == exact.labels
    assert torch.allclose(sampled.directions, exact.directions, atol=1e-6)
    assert "20 of 75 clients were clustered exactly; 55 joined by direction" in sampled.warnings[0]
    assert sampled.labels == agglomerate(many, **criterion, max_exact=20, seed=SEED).labels


def test_those_far_from_the_sample_open_clusters():
    """60 of one kind, then six kinds of two: a sample of four misses most of these."""
    many = planted((60, 2, 2, 2, 2, 2, 2))
    found = agglomerate(many, threshold=0.5, max_exact=4, seed=SEED)
    assert found.labels == agglomerate(many, threshold=0.5, seed=SEED).labels
    assert "far from all" in found.warnings[0]
    assert found.directions.shape == (7, 40)


def test_small_clusters_are_merged_into_the_nearest():
    eye = torch.eye(3)
    vectors = {0: eye[0], 1: eye[0], 2: eye[1], 3: eye[1], 4: eye[1] + 0.5 * eye[2]}
    found = from_labels({0: 0, 1: 0, 2: 1, 3: 1, 4: 2}, vectors, "given")
    merged = merge_small(found, 2, vectors)
    assert merged.labels == {0: 0, 1: 0, 2: 1, 3: 1, 4: 1}
    assert merged.k == 2
    assert merged.directions.shape == (2, 3)
    assert merge_small(found, 1, vectors) is found
    assert merge_small(found, 9, vectors).k == 1


def test_a_silent_newcomer_joins_the_largest():
    found = agglomerate(THREE, threshold=0.5, seed=SEED)
    placed = assign(found, torch.zeros(40))
    assert (placed.cluster, placed.ambiguous) == (2, True)
    assert largest(unknown()) == 0
    with pytest.raises(InputError, match="kept no directions"):
        assign(unknown(), torch.zeros(3))
    with pytest.raises(InputError, match="has 3 numbers"):
        assign(found, torch.zeros(3))


def test_newcomers_by_direction_are_at_average_linkage_distance():
    """d_k is the mean over members of 1 - cos."""
    found = agglomerate(THREE, threshold=0.5, seed=SEED)
    new = torch.randn(40, generator=torch.Generator().manual_seed(3))
    pairs = [1 - float(unit(new) @ unit(THREE[c])) for c in members(found)[assign(found, new, 9.0).cluster]]
    assert assign(found, new).distance == pytest.approx(sum(pairs) / len(pairs), abs=1e-6)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "exactly one of threshold, k, auto and silhouette"),
        ({"threshold": 0.5, "k": 2}, "exactly one of"),
        ({"threshold": math.nan}, "finite number above 0"),
        ({"k": 0}, "at least 1"),
        ({"auto": True, "metric": "euclidean"}, "auto judges directions"),
        ({"k": 2, "linkage": "centroid"}, "linkage must be one of"),
        ({"threshold": 1.0, "linkage": "ward"}, "Ward's linkage is about Euclidean"),
        ({"k": 2, "metric": "l3"}, "metric must be one of"),
        ({"threshold": 1.0, "metric": "euclidean", "max_exact": 3}, "raise max_exact"),
    ],
)
def test_wrong_settings_are_refused(settings, words):
    with pytest.raises(InputError, match=words):
        agglomerate(THREE, **settings, seed=SEED)


def test_results_survive_packing():
    found = agglomerate({("a", i): v for i, v in THREE.items()}, auto=True, seed=SEED)
    again = unpack(pack(found))
    assert again.labels == found.labels
    assert (again.order, again.measures) == (found.order, found.measures)
    assert torch.equal(again.tree, found.tree)


# Sketches


def test_a_sketch_is_a_linear_map_made_in_blocks():
    """Equal to the whole matrix at once, for vectors longer than a block."""
    length, size = 10_000, 64
    whole = torch.cat([part for _, part in blocks(length, size, SEED)])
    assert whole.shape == (length, size)
    vectors = torch.randn(3, length, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(sketch(vectors, size, SEED), vectors @ whole, atol=1e-3)
    assert torch.equal(sketch(vectors[0], size, SEED), sketch(vectors[0], size, SEED))
    assert not torch.equal(sketch(vectors[0], size, SEED), sketch(vectors[0], size, Seed(6)))
    short = torch.ones(10)
    assert sketch(short, size, SEED) is short


def test_sketches_keep_angles_and_so_the_clusters():
    """The error of a cosine is about 1/sqrt(d): 0.09 at d = 128; a mean of 66 pairs is much nearer."""
    long = planted((4, 3, 5), length=6000)
    short = {c: sketch(v, 128, SEED) for c, v in long.items()}
    assert agglomerate(short, auto=True, seed=SEED).labels == LABELS
    errors = [
        float(unit(short[a]) @ unit(short[b]) - unit(long[a]) @ unit(long[b])) for a in short for b in short if a < b
    ]
    assert max(map(abs, errors)) < 4 / math.sqrt(128)
    with pytest.raises(InputError, match="at least 1 number"):
        sketch(torch.ones(10), 0, SEED)


# FedGroup's measures


def test_madc_is_a_mean_over_the_others():
    """A transcription of the definition."""
    rows = torch.stack([THREE[i] for i in range(6)]).double()
    cosine = torch.nn.functional.cosine_similarity(rows[:, None], rows[None], dim=-1)
    found = madc(rows)
    for i, j in ((0, 1), (0, 5), (4, 2)):
        others = [float((cosine[i, z] - cosine[j, z]).abs()) for z in range(6) if z not in (i, j)]
        assert float(found[i, j]) == pytest.approx(sum(others) / 4)


@pytest.mark.parametrize("measure", ["edc", "madc"])
def test_groups_of_silent_equal_and_few_clients(measure: str):
    found = grouped({**THREE, 12: torch.zeros(40)}, 3, measure, SEED)
    assert found.labels == {**LABELS, 12: 2}
    same = grouped({i: torch.ones(4) for i in range(3)}, 2, measure, SEED)
    assert set(same.labels) == {0, 1, 2}
    alone = grouped({7: torch.ones(4)}, 2, measure, SEED)
    assert (alone.labels, alone.k) == ({7: 0}, 1)
    assert grouped({7: torch.zeros(4)}, 2, measure, SEED).labels == {7: 0}
    with pytest.raises(InputError, match="measure must be"):
        grouped(THREE, 2, "l2", SEED)
