"""Statistics against scipy, against definitions written out, and against cases worked by hand."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from fedquilt.results.statistics.beside import apart, beside, winner
from fedquilt.results.statistics.intervals import bootstrap
from fedquilt.results.statistics.paired import against, cliffs_delta, cohens_d, holm_adjusted, rank_biserial, wilcoxon
from fedquilt.results.statistics.spread import client_means, over_clients
from fedquilt.results.statistics.targets import area_under, best_test_round, costs_to, first_reach, joules_by_round

DRAW = np.random.default_rng(1)
SOME = DRAW.normal(0.3, 1.0, 17)


def test_the_bootstrap_is_scipys() -> None:
    found = bootstrap(list(SOME), resamples=20_000)
    other = stats.bootstrap((SOME,), np.mean, method="percentile", n_resamples=20_000, rng=np.random.default_rng(5))
    low, high = other.confidence_interval
    assert found == pytest.approx((low, high), abs=0.02)  # the draws differ


def test_the_bootstrap_of_two_seeds_by_hand() -> None:
    """Means are 0 (1/4), 1/2 (1/2) and 1 (1/4): both quantiles are the ends."""
    assert bootstrap([0.0, 1.0]) == (0.0, 1.0)
    assert bootstrap([0.4, 0.6]) == bootstrap([0.4, 0.6])  # the same every time
    assert all(math.isnan(v) for v in bootstrap([0.4]))


def test_cohens_d_by_hand() -> None:
    assert cohens_d([1.0, 2.0, 3.0]) == pytest.approx(2.0)  # mean 2, s = 1
    assert cohens_d([-1.0, 1.0]) == 0.0
    assert cohens_d([0.0, 0.0, 0.0]) == 0.0
    assert cohens_d([0.1, 0.1, 0.1]) == math.inf
    assert math.isnan(cohens_d([1.0]))
    t = stats.ttest_1samp(SOME, 0.0).statistic  # d = t / sqrt(n)
    assert cohens_d(list(SOME)) == pytest.approx(t / math.sqrt(len(SOME)))


def test_rank_biserial_by_hand_and_from_wilcoxons_sums() -> None:
    """Ranks of |1|, |-2|, |3|: 1, 2, 3; for 4, against 2, of 6. The zero is left out."""
    assert rank_biserial([1.0, -2.0, 3.0, 0.0]) == pytest.approx((4 - 2) / 6)
    assert rank_biserial([0.0, 0.0]) == 0.0
    assert rank_biserial([0.2, 0.3]) == 1.0
    n = len(SOME)
    plus = stats.wilcoxon(SOME, alternative="greater").statistic  # the sum of positive ranks
    assert rank_biserial(list(SOME)) == pytest.approx(2 * plus / (n * (n + 1) / 2) - 1)


def test_cliffs_delta_is_its_definition_and_mann_whitneys() -> None:
    a, b = [0.1, 0.5, 0.5, 0.9], [0.5, 0.2, 0.9]
    slow = sum(np.sign(x - y) for x, y in itertools.product(a, b)) / 12
    assert cliffs_delta(a, b) == pytest.approx(slow)
    u = stats.mannwhitneyu(SOME, SOME + 0.4).statistic
    assert cliffs_delta(list(SOME), list(SOME + 0.4)) == pytest.approx(2 * u / len(SOME) ** 2 - 1)
    assert (cliffs_delta([1.0], [0.0]), cliffs_delta([0.0], [1.0]), cliffs_delta([1.0], [1.0])) == (1.0, -1.0, 0.0)
    assert math.isnan(cliffs_delta([], [1.0]))


def test_wilcoxon_over_three_seeds_cannot_be_below_a_quarter() -> None:
    assert wilcoxon(np.array([0.1, 0.2, 0.3])) == pytest.approx(0.25)
    assert wilcoxon(np.zeros(3)) == 1.0
    assert math.isnan(wilcoxon(np.array([0.1])))


def test_holm_is_that_of_the_book() -> None:
    """Four tests: 4 * .005, 3 * .01, 2 * .03, and the last not below the one before."""
    found = holm_adjusted({"a": 0.03, "b": 0.005, "c": 0.04, "d": 0.01, "none": math.nan})
    assert [found[n] for n in "bdac"] == pytest.approx([0.02, 0.03, 0.06, 0.06])
    assert math.isnan(found["none"])


def test_a_pair_of_methods_by_seed_and_by_client() -> None:
    """Seeds differ by .1 and .3: t = .2 / (.1414 / sqrt 2) = 2. Clients differ by .2 and .2."""
    found = against([{"a": 0.1, "b": 0.2}, {"a": 0.1, "b": 0.2}], [{"a": 0.2, "b": 0.3}, {"a": 0.4, "b": 0.5}])
    assert found.seeds_t == pytest.approx(2 * stats.t.sf(2.0, 1))
    assert found.seeds_better == 2
    assert (found.rank_biserial, found.cliffs_delta) == (1.0, 1.0)  # .3 and .4 against .1 and .2


def test_spread_over_clients_by_hand() -> None:
    """Gini of 1 and 3 is 1/4, variance 1; of equals both are nothing; the mean of the two seeds is half of each."""
    found = over_clients([{"a": 0.25, "b": 0.75}, {"a": 0.5, "b": 0.5}])
    assert found == pytest.approx(
        {"client_gini": 0.125, "client_variance": 0.03125, "client_least": 0.375, "client_most": 0.625}
    )
    assert over_clients([{"a": 0.0, "b": 0.0}])["client_gini"] == 0.0
    assert over_clients([{}]) == {}
    assert client_means([{"a": 0.25}, {"a": 0.75, "b": 1.0}]) == {"a": 0.5, "b": 1.0}


def run(*accuracies: float | None) -> list[dict[str, float | None]]:
    """A round of 1 MB up, 2 MB down and 5 s for each accuracy; None where it was not scored."""
    return [
        {"round": i + 1, "test_accuracy": a, "bytes_up": 1_000_000, "bytes_down": 2_000_000, "seconds": 5.0}
        for i, a in enumerate(accuracies)
    ]


def test_costs_until_a_target_by_hand() -> None:
    assert (first_reach([0.1, 0.5, 0.4, 0.5], 0.5), first_reach([0.1], 0.5)) == (1, None)
    spent = {1: 10.0, 2: 20.0, 3: 30.0}
    found = costs_to([run(0.1, None, 0.8), run(0.9, 0.2, 0.2)], 0.8, [spent, spent])
    assert {n: (c.mean, c.reached, c.always) for n, c in found.items()} == {
        "rounds": (2.0, 2, True),
        "megabytes": (6.0, 2, True),
        "joules": (35.0, 2, True),
        "seconds": (10.0, 2, True),
    }
    some = costs_to([run(0.1, 0.2), run(0.9)], 0.8)
    assert (some["rounds"].mean, some["rounds"].reached, some["rounds"].always) == (1.0, 1, False)
    assert some["joules"].mean is None  # not measured
    assert costs_to([run(0.1)], 0.8)["seconds"].mean is None


def test_joules_count_only_if_every_update_was_measured() -> None:
    assert joules_by_round([{"round": 1, "joules": 2.0}, {"round": 1, "joules": 3.0}, {"round": 2, "joules": 1.0}]) == {
        1: 5.0,
        2: 1.0,
    }
    assert joules_by_round([{"round": 1, "joules": 2.0}, {"round": 2}]) is None
    assert joules_by_round([]) is None


def test_the_area_is_the_mean_height_also_with_gaps() -> None:
    """From 0 at round 1 to 1 at round 3 (mean 1/2, two rounds), then 1 to round 4 (one round): 2/3."""
    assert area_under(run(0.0, None, 1.0, 1.0)) == pytest.approx(2 / 3)
    assert area_under(run(0.4)) == 0.4
    assert math.isnan(area_under(run(None)))


def test_the_best_test_round_stands_beside_and_chooses_nothing() -> None:
    assert best_test_round(run(0.1, 0.7, None, 0.7)) == (2, 0.7)
    assert best_test_round(run(None)) is None
    found = beside([run(0.5, 0.9)], [{"a": 0.4, "b": 0.6}], 0.8)  # validation chose the first round
    assert found["best_test_round_accuracy"] == 0.9
    assert found["area_under_curve"] == pytest.approx(0.7)
    assert (found["rounds_to_target"], found["joules_to_target"], found["seeds_at_target"]) == (2.0, None, 1)


def test_the_winner_is_told_with_its_differences_and_is_never_centralised() -> None:
    rows = [{"method": n, "kind": n, "accuracy": a} for n, a in (("fedavg", 0.5), ("ours", 0.7), ("centralised", 0.9))]
    clients = range(20)
    scores = {n: [{c: a + 0.001 * c * s for c in clients} for s in (1, 2)] for n, a in (("fedavg", 0.5), ("ours", 0.7))}
    found = winner(rows, scores)
    assert found is not None
    assert found["method"] == "ours"
    assert set(found["versus"]) == {"fedavg"}
    pair = found["versus"]["fedavg"]
    assert pair["difference"] == pytest.approx(0.2)
    assert (pair["seeds_better"], pair["significant"]) == (2, True)
    assert winner(rows[2:], scores) is None


def test_methods_not_significantly_different_from_the_best_are_named_with_it() -> None:
    """One verdict for all: a method is below the best if p over clients says so and the seeds agree, whatever another
    test says; the rest may be the best as well."""
    clients = range(20)

    def seeds(level: float, wobble: float) -> list[dict[int, float]]:
        return [{c: level + 0.001 * c + wobble * (-1) ** (c + s) for c in clients} for s in (0, 1, 2)]

    scores = {"low": seeds(0.5, 0.0), "best": seeds(0.7, 0.0), "near": seeds(0.6995, 0.03)}
    rows = [
        {"method": n, "kind": n, "accuracy": float(np.mean([list(s.values()) for s in found]))}
        for n, found in scores.items()
    ]
    shown = {name: name for name in scores}
    found = winner(rows, scores)
    assert found is not None
    assert (found["method"], found["tied"]) == ("best", ["near"])
    assert (
        apart(found, shown) == "It is not significantly different from near, and significantly above the other method."
    )
    assert "seeds_p" not in found["versus"]["low"]  # of three seeds, that test could never say anything
    alone = winner(rows, {n: s[:1] for n, s in scores.items()})
    assert alone is not None
    assert apart(alone, shown).startswith("One seed is not enough to rank methods")
    clear = winner(rows[:2], scores)
    assert clear is not None
    assert apart(clear, shown) == "It is significantly above the other method."


def test_on_one_common_test_set_the_seeds_decide() -> None:
    one, other = ([{"common": level + 0.01 * s} for s in range(4)] for level in (0.5, 0.6))
    pair = against(one, [{"common": v + 0.001 * i} for i, v in enumerate(s["common"] for s in other)])
    assert pair.p == pair.seeds_t < 0.05
    assert pair.significant
