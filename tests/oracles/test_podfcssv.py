"""PODFCSSV's parts against worked numbers: anchoring, clustering, following, the bank, and what is remembered."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from fedquilt.core.exchange import Context, Reply
from fedquilt.core.seed import Seed
from fedquilt.errors import InputError
from fedquilt.metrics.continual import continual
from fedquilt.pieces.aggregators import mean, uniform_mean
from fedquilt.pieces.prototypes.bank import MergeOrAdd, collapsed, cosines, no_prototypes
from fedquilt.pieces.prototypes.centre import moved, no_rows
from fedquilt.pieces.prototypes.gpad import GPAD
from fedquilt.pieces.prototypes.memory import FollowingPrototypes, Novelty
from fedquilt.pieces.prototypes.spherical import spherical_kmeans
from fedquilt.records.record import pack, unpack

Z = torch.tensor([[3.0, 4.0], [1.0, 0.0], [-1.0, -0.2], [1.0, 1.0]])
V = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
shapes = st.tuples(st.integers(1, 12), st.integers(1, 9), st.integers(2, 6), st.integers(0, 10**6))


def near(found, *expected, places=6):
    return torch.as_tensor(found).tolist() == pytest.approx(list(expected), abs=10**-places)


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def angles(*degrees: float) -> torch.Tensor:
    turns = torch.tensor(degrees).deg2rad()
    return torch.stack([turns.cos(), turns.sin()], 1)


def feed(rule: MergeOrAdd, rows, bank=None, round=0):
    rows = torch.as_tensor(rows)
    start = no_prototypes(rows.shape[1]) if bank is None else bank
    return rule(start, [(rows, torch.ones(len(rows), dtype=torch.int64))], round, Seed(0))


class TestAnchoring:
    """Oracle O3."""

    def test_gates(self):
        found = GPAD().gates(Z, V)
        assert near(found.similarity, 0.8, 1.0, -0.196116, 0.707107)
        assert near(found.entropy, 0.527065, 0.000720, 0.004998, 1.0)
        assert near(found.tau, 0.552707, 0.500072, 0.500500, 0.6)
        assert near(found.gate, 0.922222, 0.993302, 0.000942, 0.744800)

    @pytest.mark.parametrize(
        ("rule", "bank", "expected"),
        [
            (GPAD(), V, 0.288717),
            (GPAD(hard_gate=True), V, 0.288352),
            (GPAD(hard_gate=True, distance="sq"), V, 0.201296),
            (GPAD(hard_gate=True), V[:1], 0.333417),
        ],
        ids=["soft", "hard", "squared", "one-row"],
    )
    def test_loss(self, rule, bank, expected):
        assert float(rule(Z, bank)) == pytest.approx(expected, abs=1e-6)

    @pytest.mark.parametrize(
        ("through", "gradient", "cosine"),
        [(False, (-0.523100, -0.392325), 0.605218), (True, (0.602386, 0.451789), 0.593959)],
        ids=["stopped", "through-the-gate"],
    )
    def test_gradient(self, through, gradient, cosine):
        """Without gradient through the gate a step draws the row to its prototype; with it, away from it.

        dist = sqrt(2 (1 - s)), s = z.v / |z| = 0.6: d dist / ds = -1 / dist = -1.118, ds/dz = (0.64, 0.48), so gate *
        d dist / dz = 0.731055 * -1.118034 * (0.64, 0.48) = (-0.523100, -0.392325).
        """
        z = torch.tensor([[0.6, -0.8]], requires_grad=True)
        rule = GPAD(gate_grad=through)
        loss = rule(z, torch.eye(2))
        (grad,) = torch.autograd.grad(loss, z)
        assert float(loss.detach()) == pytest.approx(0.653876, abs=1e-6)
        assert float(rule.gates(z.detach(), torch.eye(2)).gate) == pytest.approx(0.731055, abs=1e-6)
        assert near(grad[0], *gradient)
        assert float(F.normalize(z.detach() - 0.01 * grad, dim=1)[0, 0]) == pytest.approx(cosine, abs=1e-6)

    def test_through_the_gate_rows_just_above_the_threshold_are_repelled(self):
        """gate * dist at tau = 0.55 peaks at s = 0.707."""
        s = torch.linspace(-1, 1, 20001, dtype=torch.float64)
        product = torch.sigmoid((s - 0.55) / 0.1) * (2 * (1 - s)).sqrt()
        assert float(s[product.argmax()]) == pytest.approx(0.707, abs=1e-3)

    @pytest.mark.parametrize("rows", [(0, 2), (4, 0)], ids=["no-batch", "no-bank"])
    def test_nothing_to_anchor_is_a_zero_that_hangs_on_the_features(self, rows):
        z = Z[: rows[0]].clone().requires_grad_()
        loss = GPAD()(z, V[: rows[1]])
        loss.backward()
        assert float(loss.detach()) == 0
        assert torch.equal(z.grad, torch.zeros_like(z))

    def test_only_anchored_rows_count_if_asked(self):
        """All but the third row are at or above tau: 4/3 of the hard mean."""
        assert float(GPAD(hard_gate=True, anchored_only=True)(Z, V)) == pytest.approx(0.288352 * 4 / 3, abs=1e-6)

    def test_entropy_of_one_row_is_zero_also_in_double_precision(self):
        assert near(GPAD().gates(Z.double(), V[:1].double()).tau, 0.5, 0.5, 0.5, 0.5)

    @given(shapes, st.floats(0.1, 1), st.floats(0, 1), st.floats(0, 0.5))
    @settings(max_samples=60, deadline=None)
    def test_invariants(self, shape, temp, base, lam):
        rows, bank, width, seed = shape
        z, v = normal(seed, rows, width), normal(seed + 1, bank, width)
        rule = GPAD(temp_gate=temp, base_tau=base, lambda_entropy=lam)
        found = rule.gates(z, v)
        assert bool(((found.entropy >= 0) & (found.entropy <= 1)).all())
        assert bool(((found.tau >= base - 1e-6) & (found.tau <= base + lam + 1e-6)).all())
        assert bool(((found.gate > 0) & (found.gate < 1)).all())
        clear = (found.similarity - found.tau).abs() > 1e-5
        assert torch.equal((found.gate >= 0.5)[clear], (found.similarity >= found.tau)[clear])
        order = torch.randperm(bank, generator=torch.Generator().manual_seed(seed))
        stretch = torch.rand(bank, 1, generator=torch.Generator().manual_seed(seed)) + 0.1
        loss = float(rule(z, v))
        assert float(rule(7 * z, stretch * v)) == pytest.approx(loss, abs=1e-4)
        assert float(rule(z, v[order])) == pytest.approx(loss, abs=1e-5)

    @pytest.mark.parametrize("bad", [{"base_tau": 2}, {"temp_gate": 0}, {"lambda_entropy": 1}, {"distance": "l1"}])
    def test_senseless_settings_are_refused(self, bad):
        with pytest.raises(InputError, match=next(iter(bad))):
            GPAD(**bad)


class TestClustering:
    """Oracle O5."""

    def test_six_directions(self):
        points = angles(0, 10, 20, 80, 90, 100)
        found = spherical_kmeans(points, 2, Seed(0), init=points[:2])
        assert near(found.objectives, 3.500476, 5.524129, 5.939231, places=5)
        assert found.labels.tolist() == [0, 0, 0, 1, 1, 1]
        assert found.counts.tolist() == [3, 3]
        assert torch.allclose(found.centroids, angles(10, 90), atol=1e-6)
        assert found.iterations == 3

    @pytest.mark.parametrize("init", ["random", "++"])
    @given(shape=shapes)
    @settings(max_samples=40, deadline=None)
    def test_invariants(self, init, shape):
        """Unit rows, counts that add up, k at most n, and an objective that never falls but by a re-seeding."""
        rows, k, width, seed = shape
        found = spherical_kmeans(normal(seed, rows, width), k, Seed(seed), init=init)
        assert torch.allclose(found.centroids.norm(dim=1), torch.ones(min(k, rows)), atol=1e-5)
        assert int(found.counts.sum()) == rows
        assert found.labels.shape == (rows,)
        for i, (one, two) in enumerate(zip(found.objectives, found.objectives[1:], strict=False)):
            assert i in found.reseeded or two >= one - 1e-4

    def test_as_many_clusters_as_points_are_the_points(self):
        points = F.normalize(normal(1, 7, 3), dim=1)
        found = spherical_kmeans(points, 20, Seed(3))
        assert torch.allclose(found.centroids[found.labels], points, atol=1e-6)
        assert found.counts.tolist() == [1] * 7

    @pytest.mark.parametrize("reseed", ["random", "farthest"])
    def test_an_empty_cluster_begins_anew_at_a_point(self, reseed):
        """Two starting centroids alike: one gets nothing."""
        points = angles(0, 5, 90, 95)
        found = spherical_kmeans(points, 2, Seed(0), init=angles(2, 2), reseed=reseed)
        assert found.reseeded
        assert sorted(found.counts.tolist()) == [2, 2]

    def test_the_farthest_point_is_the_new_start(self):
        one = spherical_kmeans(angles(0, 5, 40), 2, Seed(0), init=angles(2, 2), reseed="farthest", iterations=1)
        assert torch.allclose(one.centroids[1], angles(40)[0], atol=1e-6)

    def test_a_warm_start_goes_on_and_is_filled_up(self):
        points = normal(4, 30, 5)
        first = spherical_kmeans(points, 4, Seed(0))
        again = spherical_kmeans(points, 4, Seed(9), init=first.centroids)
        assert again.iterations == 1
        assert torch.equal(again.labels, first.labels)
        more = spherical_kmeans(points, 6, Seed(9), init=first.centroids)
        assert more.objective >= first.objective
        assert len(more.centroids) == 6

    def test_spread_starts_take_one_point_of_each_of_three_far_groups(self):
        groups = torch.eye(3).repeat_interleave(20, 0) + 0.01 * normal(0, 60, 3)
        for seed in range(10):
            found = spherical_kmeans(groups, 3, Seed(seed), init="++", iterations=1)
            assert found.counts.tolist() == [20, 20, 20]

    def test_equal_points_cannot_make_two_clusters_but_end(self):
        found = spherical_kmeans(torch.ones(5, 3), 2, Seed(0))
        assert found.iterations == 100
        assert int(found.counts.sum()) == 5

    @pytest.mark.parametrize("bad", ["k", "init", "width"])
    def test_senseless_wishes_are_refused(self, bad):
        wish = {"k": {"k": 0}, "init": {"init": "best"}, "width": {"init": torch.ones(2, 7)}}[bad]
        with pytest.raises(InputError):
            spherical_kmeans(torch.ones(4, 3), **{"k": 2, "seed": Seed(0), **wish})


class TestFollowing:
    """Oracle O6."""

    samples = torch.tensor([[4.0, 3.0], [3.0, 4.0], [1.0, 1.0], [1.0, -1.0]])

    def test_row_by_row(self):
        found, who = FollowingPrototypes()(torch.eye(2), self.samples)
        assert near(found[0], 0.991690, 0.128650)
        assert near(found[1], 0.061110, 0.998131)
        assert int(who.sum()) == 3

    def test_the_threshold_itself_is_near_enough(self):
        _, who = FollowingPrototypes(threshold=1.0)(torch.eye(2), torch.eye(2))
        assert who.tolist() == [True, True]

    @given(shapes, st.floats(-1, 1), st.floats(0, 1))
    @settings(max_samples=50, deadline=None)
    def test_equals_the_plain_loop(self, shape, threshold, alpha):
        rows, k, width, seed = shape
        z, start = normal(seed, rows, width), F.normalize(normal(seed + 1, k, width), dim=1)
        own, moved_by = start.clone().double(), []
        for row in F.normalize(z, dim=1).double():
            best, j = (own @ row).max(0)
            if abs(float(best) - threshold) < 1e-5 or (k > 1 and float((own @ row).topk(2).values.diff().abs()) < 1e-5):
                return  # too close to call in single precision
            moved_by.append(bool(best >= threshold))
            if moved_by[-1]:
                new = (1 - alpha) * own[j] + alpha * row
                if float(new.norm()) < 1e-3:
                    return
                own[j] = new / new.norm()
        found, who = FollowingPrototypes(threshold, alpha)(start, z)
        assert torch.allclose(found.double(), own, atol=1e-4)
        assert who.tolist() == moved_by
        assert torch.allclose(found.norm(dim=1), torch.ones(k), atol=1e-5)

    def test_what_is_near_nothing_is_collected_and_becomes_new_prototypes(self):
        """Five rows along y and five along z for a prototype along x; the buffer is full at eight."""
        rows = torch.eye(3)[[1, 2] * 5]
        keep, follow = Novelty(size=8, clusters=2), FollowingPrototypes(threshold=0.9)
        some, held = keep(torch.eye(3)[:1], torch.zeros(0, 3), rows[:6], follow, Seed(0))
        assert (len(some), len(held)) == (1, 6)
        more, held = keep(some, held, rows[6:], follow, Seed(0))
        assert len(held) == 2
        assert sorted(more.argmax(1).tolist()) == [0, 1, 2]
        same, held = keep(more, held, rows[:6], follow, Seed(0))
        assert (len(same), len(held)) == (3, 0)


class TestBank:
    """Oracles O4a to O4c."""

    def test_merge_or_add(self):
        bank, tally = feed(MergeOrAdd(), [[2.0, 0.0], [0.9, 0.435890], [0.0, 1.0]])
        assert (tally.arrived, tally.merged, tally.added) == (3, 1, 2)
        assert near(bank.rows[0], 0.999032, 0.043987)
        assert near(bank.rows[1], 0.0, 1.0)
        assert float(bank.rows[0] @ bank.rows[1]) == pytest.approx(0.0440, abs=1e-4)
        bank, tally = feed(MergeOrAdd(), [[0.6, 0.8]], bank, round=1)
        assert (len(bank), tally.added) == (3, 1)
        assert bank.counts.tolist() == [2, 1, 1]
        assert bank.merges.tolist() == [1, 0, 0]
        assert bank.born.tolist() == [0, 0, 1]

    def test_order_counts(self):
        rule, rows = MergeOrAdd(threshold=0.9, alpha=0.5), angles(*np.rad2deg([0, 0.4, 0.6]))
        one, _ = feed(rule, rows)
        two, _ = feed(rule, rows[[0, 2, 1]])
        assert len(one) == 1
        assert near(one.rows[0], 0.921061, 0.389418)
        assert len(two) == 2
        assert near(two.rows[0], 1.0, 0.0)
        assert near(two.rows[1], 0.877583, 0.479426)

    def test_a_shuffled_order_follows_the_seed(self):
        rule, rows = MergeOrAdd(threshold=0.9, alpha=0.5, shuffle=True), angles(*np.rad2deg([0, 0.4, 0.6]))
        sizes = [len(rule(no_prototypes(2), [(rows, torch.ones(3))], 0, Seed(s))[0]) for s in range(20)]
        assert sizes == [len(rule(no_prototypes(2), [(rows, torch.ones(3))], 0, Seed(s))[0]) for s in range(20)]
        assert set(sizes) == {1, 2}

    def test_features_that_point_the_same_way_collapse_unless_centred(self):
        """20 vectors 1 + 0.3 N(0, 1) in 64 dimensions: cosines of about 1 / (1 + 0.09) = 0.917."""
        rows = 1 + 0.3 * normal(0, 20, 64)
        mean_cos, least, _ = cosines(rows)
        assert mean_cos == pytest.approx(0.915, abs=0.01)
        assert least > 0.85
        bank, tally = feed(MergeOrAdd(), rows)
        assert len(bank) == 1
        assert tally.cos_min == pytest.approx(least)
        assert "center = true" in collapsed(bank, tally.arrived)
        centre = moved(no_rows(64), [(rows[:5], torch.ones(5)), (rows[5:].mean(0, keepdim=True), torch.tensor([15]))])
        assert torch.allclose(centre.mean, rows.mean(0), atol=1e-6)
        assert cosines(rows - centre.mean)[2] < 0.5
        bank, _ = feed(MergeOrAdd(), rows - centre.mean)
        assert len(bank) == 20
        assert collapsed(bank, 20) is None

    def test_the_centre_is_the_mean_of_all_rounds_or_forgets_older_ones(self):
        one = moved(no_rows(2), [(torch.tensor([[1.0, 2.0]]), torch.tensor([2]))])
        now = [(torch.tensor([[9.0, 0.0], [1.0, 0.0]]), torch.tensor([1, 1]))]
        assert (moved(one, now).mean.tolist(), moved(one, now).weight) == ([3.0, 1.0], 4.0)
        assert moved(one, now, keep=0.0).mean.tolist() == [5.0, 0.0]
        assert moved(no_rows(2), []).weight == 0

    def test_what_has_no_direction_is_dropped(self):
        bank, tally = feed(MergeOrAdd(), [[0.0, 0.0], [1.0, 0.0]])
        assert (len(bank), tally.arrived, tally.dropped) == (1, 2, 1)
        assert len(feed(MergeOrAdd(), [[0.0, 0.0]])[0]) == 0

    def test_means_by_counts(self):
        """Two rows behind the first, one behind the second: (2 a + b) / 3, at length 1."""
        rows = angles(0, 20)
        bank, _ = MergeOrAdd(by_counts=True)(no_prototypes(2), [(rows, torch.tensor([2, 1]))], 0, Seed(0))
        assert torch.allclose(bank.rows[0], F.normalize(2 * rows[0] + rows[1], dim=0), atol=1e-6)
        assert bank.counts.tolist() == [3]

    def test_a_full_bank_merges_and_drops_or_evicts_the_least_used(self):
        full, tally = feed(MergeOrAdd(capacity=2), angles(0, 90, 180, 3))
        assert (len(full), tally.dropped, tally.merged) == (2, 1, 1)
        new, tally = feed(MergeOrAdd(capacity=2, evict=True), angles(180), full, round=4)
        assert (len(new), tally.evicted) == (2, 1)
        assert torch.allclose(new.rows[1], angles(180)[0], atol=1e-6)
        assert new.born.tolist() == [0, 4]

    def test_the_first_round_can_be_kept_whole(self):
        bank, tally = feed(MergeOrAdd(concatenate_first=True), angles(0, 1, 2))
        assert (len(bank), tally.merged) == (3, 0)
        bank, tally = feed(MergeOrAdd(concatenate_first=True), angles(0, 1, 2), bank, round=1)
        assert (len(bank), tally.merged) == (3, 3)

    def test_a_bank_travels_and_is_not_changed(self):
        bank, _ = feed(MergeOrAdd(), angles(0, 90))
        before = pack(bank)
        feed(MergeOrAdd(), angles(1, 45), bank)
        assert pack(bank) == before
        assert pack(unpack(before)) == before

    @given(shapes, st.floats(-1, 1), st.floats(0.01, 1), st.sampled_from([None, 3]), st.booleans(), st.booleans())
    @settings(max_samples=60, deadline=None)
    def test_invariants(self, shape, threshold, alpha, capacity, evict, by_counts):
        """Unit rows; never fewer; at most as many more as arrive; merges add none; all arrivals are accounted for."""
        rows, _, width, seed = shape
        rule = MergeOrAdd(threshold, alpha, by_counts=by_counts, capacity=capacity, evict=evict)
        bank = no_prototypes(width)
        for round in range(3):
            size = len(bank)
            bank, tally = feed(rule, normal(seed + round, rows, width), bank, round)
            assert len(bank) == size + tally.added
            assert tally.arrived == rows == tally.merged + tally.added + tally.dropped + tally.evicted
            assert capacity is None or len(bank) <= capacity
            assert torch.allclose(bank.rows.norm(dim=1), torch.ones(len(bank)), atol=1e-5)


class TestAveraging:
    """Oracle O9."""

    @staticmethod
    def replies(rows):
        class Sent:
            def __init__(self, values):
                self.delta = {"w": torch.tensor(values)}

        return [Reply(i, n, Sent(values)) for i, (n, values) in enumerate(rows)]

    def test_means(self):
        start, context = {"w": torch.zeros(2)}, Context(0, None, Seed(0))
        some = self.replies([(30, [1.0, 2.0]), (10, [3.0, 6.0])])
        assert uniform_mean(start, some, context)["w"].tolist() == [2.0, 4.0]
        assert near(mean(start, some, context)["w"], 1.5, 3.0)


class TestRemembering:
    """Oracle O7."""

    matrix = ((0.8, 0.3, 0.2), (0.7, 0.75, 0.35), (0.6, 0.65, 0.9))

    def test_three_tasks(self):
        found = continual(self.matrix, (0.25, 0.28, 0.22))
        assert found.average == pytest.approx(0.716667, abs=1e-6)
        assert found.backward == pytest.approx(-0.15)
        assert found.forgetting == pytest.approx(0.15)
        assert found.forward == pytest.approx(0.075)
        assert found.incremental == pytest.approx(0.747222, abs=1e-6)

    def test_forgetting_is_measured_from_the_best_not_from_the_first(self):
        """Column 0: 0.80, 0.85, 0.70; column 1: -, 0.75, 0.72."""
        found = continual(((0.8, None, None), (0.85, 0.75, None), (0.7, 0.72, 0.9)), (0.1, 0.1, 0.1))
        assert found.forgetting == pytest.approx(0.09)
        assert found.backward == pytest.approx(-0.065)
        assert found.forward is None

    def test_one_task_cannot_be_forgotten(self):
        found = continual(((0.5,),))
        assert (found.average, found.forgetting, found.backward, found.forward) == (0.5, None, None, None)

    @pytest.mark.parametrize("bad", [(), ((0.1, 0.2),), ((0.1, 0.2), (math.nan, 0.3))], ids=["none", "ragged", "hole"])
    def test_a_matrix_with_holes_is_refused(self, bad):
        with pytest.raises(InputError):
            continual(bad)
