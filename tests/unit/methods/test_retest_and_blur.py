"""Clients that no longer belong to their cluster, and clipped and noised updates."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from fedquilt.core.exchange import Context, Reply
from fedquilt.core.seed import Seed
from fedquilt.data import Stream
from fedquilt.engines.local import Local
from fedquilt.errors import InputError
from fedquilt.methods.clustered.flhc import FLHC, Sensed
from fedquilt.methods.clustered.grouped import Groups
from fedquilt.methods.clustered.hcfl import HCFL
from fedquilt.pieces.clustering.agglomerative import agglomerate
from fedquilt.pieces.clustering.private import Blur, sketch
from fedquilt.pieces.clustering.result import ClusterResult
from fedquilt.pieces.optimizers import SGD
from fedquilt.rounds.rounds import Rounds
from helpers.places import LOSS, at
from helpers.toy import last

WORK: dict[str, Any] = {"optimizer": SGD(0.25)}
SIX = ([4, 0, 1], [4, 0.4, 1.2], [0, 4, -1], [0.4, 4, -1.2], [-4, 0, 3], [-4, -0.4, 3])
TURN = Context(5, None, Seed(0), 6)
EAST, NORTH, UP = torch.eye(3)


def found(**ways: torch.Tensor) -> tuple[dict[str, torch.Tensor], ClusterResult]:
    return ways, agglomerate(ways, threshold=0.5, seed=Seed(0))


def three() -> Groups:
    """a, b, c to the east, d, e, f to the north; models 0 and 1."""
    _, clusters = found(**dict.fromkeys("abc", EAST), **dict.fromkeys("def", NORTH))
    return Groups(
        tuple({"body": torch.full((2,), float(k)), "head": torch.zeros(1)} for k in (0, 1)),
        clusters,
        {"body": torch.zeros(2), "head": torch.zeros(1)},
    )


def shown(**ways: torch.Tensor) -> list[Reply[Sensed]]:
    return [Reply(c, 1, Sensed(v)) for c, v in ways.items()]


def after_test(method: FLHC, state: Groups, replies: list[Reply[Sensed]], context: Context) -> Groups:
    """The state after a test."""
    return method.exchanges()[-1].up(state, replies, context)


STILL = {**dict.fromkeys("abc", EAST), **dict.fromkeys("def", NORTH)}


def test_who_is_astray_often_enough_moves():
    """a turns north: struck once, then moved; b is only a little nearer to the north, by less than the margin."""
    method = FLHC(LOSS, retest_every=1, retest_patience=2, retest_margin=0.1, **WORK)
    turned = {**STILL, "a": NORTH, "b": torch.tensor([1.0, 1.05, 0.0])}
    once = after_test(method, three(), shown(**turned), TURN)
    assert (once.clusters.labels["a"], once.strikes, once.moved) == (0, {"a": 1}, ())
    twice = after_test(method, once, shown(**turned), TURN)
    assert twice.clusters.labels == {"a": 1, "b": 0, "c": 0, "d": 1, "e": 1, "f": 1}
    assert (twice.strikes, twice.moved) == ({}, ("a",))
    back = after_test(method, once, shown(**STILL), TURN)  # it was a passing thing
    assert (back.strikes, back.clusters.labels) == ({}, three().clusters.labels)
    silent = after_test(method, once, shown(a=torch.zeros(3)), TURN)
    assert silent.strikes == {"a": 1}
    assert after_test(method, once, [], TURN) is once


def test_who_is_far_from_all_opens_a_cluster_with_those_like_it():
    method = FLHC(LOSS, retest_every=1, retest_patience=1, recluster_above=1.0, **WORK)
    after = after_test(method, three(), shown(**{**STILL, "a": UP, "d": UP, "e": -UP}), TURN)
    assert after.clusters.labels == {"a": 2, "b": 0, "c": 0, "d": 2, "e": 3, "f": 1}
    assert after.clusters.k == len(after.models) == 4
    assert torch.equal(after.clusters.directions[2:], torch.stack([UP, -UP]))


def test_when_many_have_moved_all_are_clustered_anew():
    method = FLHC(LOSS, retest_every=1, retest_patience=1, recluster_above=0.3, **WORK)
    turned = {**STILL, "a": UP, "b": UP}  # a third of six
    after = after_test(method, three(), shown(**turned), TURN)
    assert after.clusters.labels == {"a": 0, "b": 0, "c": 1, "d": 2, "e": 2, "f": 2}
    assert (after.moved, after.strikes) == ((), {})
    apart = after_test(method, three(), shown(**{**STILL, "a": NORTH}), TURN)
    assert apart.moved == ("a",)
    later = after_test(method, apart, shown(**{**STILL, "a": NORTH, "b": NORTH}), TURN)  # two, one after the other
    assert later.moved == ()
    assert later.clusters.labels == {"a": 0, "b": 0, "c": 1, "d": 0, "e": 0, "f": 0}


def test_no_move_leaves_or_opens_a_cluster_that_is_too_small():
    method = FLHC(LOSS, retest_every=1, retest_patience=1, recluster_above=1.0, min_size=3, **WORK)
    for way in (NORTH, UP):
        state = after_test(method, three(), shown(**{**STILL, "a": way}), TURN)
        assert state.clusters.labels == three().clusters.labels


@pytest.mark.parametrize("make", [FLHC, HCFL])
def test_a_client_whose_data_change_goes_over(make: Any):
    """Client 0 gets the second group's data in the fifth round; tests are after rounds 3, 5, 7, 9, and it takes two."""
    old, new = at(*SIX), at([0.2, 4, -1], *SIX[1:])
    settings = {"initial_rounds": 1, "criterion": "threshold", "retest_every": 2, "retest_patience": 2}
    rounds = Rounds(make(LOSS, **settings, **WORK), Stream.drift(old, new, at=4), Local(), Seed(0))
    homes = []
    for _ in range(9):
        rounds.play()
        homes.append(rounds.state.clusters.labels.get(0))
    assert homes == [None, 0, 0, 0, 0, 0, 1, 1, 1]
    assert [rounds.state.clusters.labels[i] for i in range(1, 6)] == [0, 1, 1, 2, 2]


def test_what_is_shown_is_clipped_and_noised():
    far, near = torch.tensor([30.0, 40.0]), torch.tensor([0.3, 0.4])
    assert Blur(5.0)(far, Seed(0)).tolist() == pytest.approx([3.0, 4.0])
    assert Blur(5.0)(near, Seed(0)).tolist() == pytest.approx([0.3, 0.4])
    assert Blur(5.0)(torch.tensor([math.nan, 1.0]), Seed(0)).tolist() == [0.0, 0.0]
    many = torch.stack([Blur(2.0, 0.5)(torch.zeros(1000), Seed(i)) for i in range(20)])
    assert float(many.std()) == pytest.approx(1.0, abs=0.03)
    assert torch.equal(Blur(2.0, 0.5)(near, Seed(3)), Blur(2.0, 0.5)(near, Seed(3)))
    assert not torch.equal(Blur(2.0, 0.5, secret=True)(near, Seed(3)), Blur(2.0, 0.5, secret=True)(near, Seed(3)))


def test_epsilon_is_the_exact_one():
    """delta(eps) = P(Z > eps s/D - D/2s) - e^eps P(Z > eps s/D + D/2s), D = 2 clip, s = noise clip, integrated here."""
    for noise in (1.0, 4.0, 20.0):
        epsilon, ratio = Blur(3.0, noise).epsilon(1e-5), 2 / noise
        x = torch.linspace(-40, 40, 400_001, dtype=torch.float64)
        p, q = (torch.exp(-((x - m) ** 2) / 2) / math.sqrt(2 * math.pi) for m in (ratio, 0.0))
        delta = float((p - math.exp(epsilon) * q).clamp(min=0).sum() * (x[1] - x[0]))
        assert delta == pytest.approx(1e-5, rel=1e-3)
    assert Blur(3.0).epsilon() == math.inf
    assert Blur(1.0, 8.0).epsilon() < 2 * math.sqrt(2 * math.log(1.25e5)) / 8.0  # the older bound, for epsilon < 1


def test_groups_survive_some_noise_on_sketches():
    """32 numbers with a noise of a twentieth of the clip: as long as 0.28 of the update itself."""
    draw = torch.Generator().manual_seed(0)
    kinds = torch.randn(3, 5000, generator=draw)
    blur = Blur(1.0, 0.05)
    vectors = {
        i: blur(sketch(kinds[i % 3] + 0.3 * torch.randn(5000, generator=draw), 32, Seed(1)), Seed(i)) for i in range(30)
    }
    assert all(float(v.norm()) < 1.6 for v in vectors.values())
    assert agglomerate(vectors, auto=True, seed=Seed(0)).labels == {i: i % 3 for i in range(30)}


def test_a_run_with_blurred_sketches_says_how_much_they_hide():
    method = FLHC(LOSS, initial_rounds=0, n_clusters=3, sketch_size=2, sketch_clip=1.0, sketch_noise=0.5, **WORK)
    state = last(method, at(*SIX), rounds=1).state
    assert state.clusters.measures["epsilon_at_1e-5"] == pytest.approx(Blur(1.0, 0.5).epsilon())
    plain = FLHC(LOSS, initial_rounds=0, n_clusters=3, sketch_clip=100.0, **WORK)
    assert last(plain, at(*SIX), rounds=1).state.clusters.labels == {0: 0, 1: 0, 2: 1, 3: 1, 4: 2, 5: 2}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sketch_noise": 0.1}, "without sketch_clip"),
        ({"sketch_clip": 0.0}, "clip must be above 0"),
        ({"sketch_clip": 1.0, "sketch_noise": -1.0}, "noise >= 0"),
        ({"retest_every": 0}, "retest_every >= 1"),
        ({"linkage": "ward"}, "Ward's linkage is about Euclidean distances"),
        ({"criterion": "auto", "clustering_metric": "manhattan"}, "auto judges directions"),
        ({"linkage": "centroid"}, "linkage must be one of"),
        ({"clustering_metric": "chebyshev"}, "metric must be one of"),
        ({"retest_every": 1, "recluster_above": 2.0}, "recluster_above from 0 to 1"),
    ],
)
def test_strange_settings_are_refused(options: dict[str, Any], words: str):
    with pytest.raises(InputError, match=words):
        FLHC(LOSS, **options)
