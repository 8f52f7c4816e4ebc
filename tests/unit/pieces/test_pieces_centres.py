"""Centres: starts, nearest, new places for empty clusters, principal directions."""

from __future__ import annotations

import pytest
import torch
from torch import tensor

from fedquilt.core.seed import Seed
from fedquilt.errors import InputError
from fedquilt.pieces.clustering.centres import distance, distinct_starts, nearest, principal, reseed_empty

MODELS = {i: tensor(w, dtype=torch.float32) for i, w in enumerate([[0, 0], [1, 0], [4, 4], [5, 4], [9, 0]])}
CENTRES = [tensor(c, dtype=torch.float32) for c in ([0, 1], [4, 5], [8, 0])]


def test_squared_distances_and_the_nearest():
    """|w - W|^2 by hand, for example |[5, 4] - [8, 0]|^2 = 9 + 16 = 25."""
    far = [[distance(w, c) for c in CENTRES] for w in MODELS.values()]
    assert far == [[1, 41, 64], [2, 34, 49], [25, 1, 32], [34, 2, 25], [82, 50, 1]]
    assert [nearest(w, CENTRES) for w in MODELS.values()] == [0, 0, 1, 1, 2]


def test_nobody_chooses_a_far_centre():
    centres = [*CENTRES[:2], tensor([100.0, 100.0])]
    assert [nearest(w, centres) for w in MODELS.values()] == [0, 0, 1, 1, 1]


@pytest.mark.parametrize("metric", ["squared", "cosine"])
def test_ties_go_to_the_lowest_number(metric):
    assert nearest(tensor([1.0, 1.0]), [tensor([1.0, 0.0]), tensor([0.0, 1.0])], metric) == 0
    assert nearest(tensor([0.0, 2.0]), [tensor([0.0, 1.0])] * 3, metric) == 0


def test_cosine_sees_directions_only_and_a_zero_vector_says_nothing():
    """cos([3, 1], [1, 0]) = 3 / sqrt(10)."""
    centres = [tensor([0.1, 0.0]), tensor([0.0, 50.0])]
    assert nearest(tensor([3.0, 1.0]), centres, "cosine") == 0
    assert nearest(tensor([3.0, 1.0]) * 1e-3, centres, "cosine") == 0
    assert distance(tensor([3.0, 1.0]), centres[0], "cosine") == pytest.approx(-3 / 10**0.5)
    assert nearest(torch.zeros(2), centres, "cosine") == 0
    assert distance(torch.zeros(2), centres[1], "cosine") == 0


def test_what_has_no_nearest_is_refused():
    with pytest.raises(InputError, match="not finite"):
        nearest(tensor([float("nan"), 0.0]), CENTRES)
    with pytest.raises(InputError, match="metric must be one of squared, cosine, got 'euclid'"):
        nearest(MODELS[0], CENTRES, "euclid")


def test_starts_come_from_different_groups():
    """Groups 100 apart and 0.1 wide: D^2 sampling draws two of one group with probability near 1e-6."""
    vectors = {i: tensor([100.0 * (i % 3), 0.1 * i]) for i in range(12)}
    for seed in range(20):
        drawn = distinct_starts(vectors, 3, Seed(seed))
        assert {c % 3 for c in drawn} == {0, 1, 2}
    assert distinct_starts(vectors, 3, Seed(1)) == distinct_starts(dict(reversed(vectors.items())), 3, Seed(1))


def test_starts_are_distinct_finite_and_at_most_as_many_as_there_are():
    same = {0: torch.zeros(2), 1: torch.zeros(2), 2: torch.ones(2), 3: tensor([float("nan"), 0.0])}
    drawn = distinct_starts(same, 3, Seed(0))
    assert len(drawn) == 2
    assert 2 in drawn
    assert distinct_starts({7: torch.ones(2)}, 3, Seed(0)) == (7,)
    assert distinct_starts({3: same[3]}, 3, Seed(0)) == ()
    with pytest.raises(InputError, match="at least 1, got 0"):
        distinct_starts(same, 0, Seed(0))


def test_an_empty_cluster_takes_the_farthest_client_that_its_own_cluster_can_spare():
    labels = {0: 0, 1: 0, 2: 1, 3: 1, 4: 2}  # client 4 is alone in its cluster and stays
    vectors = {**MODELS, 4: tensor([99.0, 0.0])}
    assert reseed_empty(vectors, labels, [*CENTRES, CENTRES[0]], [3]) == {3: 1}  # squared distances 1, 2, 1, 2: a tie
    assert reseed_empty(vectors, labels, [*CENTRES, *CENTRES], [3, 4]) == {3: 1, 4: 3}
    assert reseed_empty(vectors, labels, [*CENTRES, *CENTRES], [3, 4, 5]) == {3: 1, 4: 3}  # nobody left to spare


# Rows, mean [1.05, 1.05, 0, 1]: centred they lie along [1, -1, 0, 0] and, much less, along [1, 1, 0, 0].
ROWS = tensor([[2, 0, 0, 1], [2.2, 0, 0, 1], [0, 2, 0, 1], [0, 2.2, 0, 1]])


def test_principal_directions():
    """Singular values 2.973214 and 0.141421 (numpy); the first direction is [1, -1, 0, 0] / sqrt(2), up to its sign."""
    found = principal(ROWS, 2)
    assert found.shape == (4, 2)
    assert found[:, 0].abs().tolist() == pytest.approx([0.5**0.5, 0.5**0.5, 0, 0], abs=1e-6)
    assert float(found[0, 0] * found[1, 0]) < 0
    along = (ROWS.double() @ found[:, 0]) * found[0, 0].sign()
    assert along.tolist() == pytest.approx([1.414214, 1.555635, -1.414214, -1.555635], abs=1e-6)
    sizes = torch.linalg.vector_norm((ROWS - ROWS.mean(0)).double() @ found, dim=0)
    assert sizes.tolist() == pytest.approx([2.973214, 0.141421], abs=1e-5)


def test_there_are_no_more_directions_than_the_rows_vary_in():
    assert principal(ROWS, 50).shape == (4, 2)  # four rows could have three, these vary in two
    assert principal(ROWS[:2], 50).shape == (4, 1)
    assert principal(ROWS[:1], 50).shape == (4, 0)
    with pytest.raises(InputError, match="The 3 vectors do not differ"):
        principal(ROWS[:1].repeat(3, 1), 2)
    with pytest.raises(InputError, match="do not differ"):
        principal(torch.zeros(3, 4), 2)
    with pytest.raises(InputError, match="not finite"):
        principal(ROWS / 0, 2)


@pytest.mark.parametrize("most", [1, 2])
def test_projected_differences_find_the_groups_where_whole_models_are_parallel(most):
    """With [0, 0, 50, 1] added, cosines of whole rows with the wrong centre exceed 0.998."""
    common = tensor([0.0, 0.0, 50.0, 1.0])
    rows, centres = ROWS + common, [tensor([2.1, 0, 0, 1]) + common, tensor([0, 2.1, 0, 1]) + common]
    assert min(-distance(r, centres[i // 2 ^ 1], "cosine") for i, r in enumerate(rows)) == pytest.approx(
        0.998156, abs=1e-6
    )
    directions = principal(rows, most)
    start = rows.mean(0)
    view = [(v - start).double() @ directions for v in (*rows, *centres)]
    assert [nearest(v, view[4:], "cosine") for v in view[:4]] == [0, 0, 1, 1]
