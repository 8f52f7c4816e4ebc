"""What may be said of a method: above, below, or not significantly different, and never more than the test allows."""

from __future__ import annotations

import math
from typing import Any

import pytest

from fedquilt.demo.scenes import badge
from fedquilt.demo.telling import compared, listed, pairs, percent, times, verdict

CLIENTS = range(12)


def scores(base: float, step: float = 0.0) -> list[dict[int, float]]:
    """Three seeds of twelve clients; ``step`` makes seeds disagree."""
    return [{c: base + 0.01 * (c % 3) + step * (seed - 1) for c in CLIENTS} for seed in range(3)]


def against(**others: Any) -> dict[str, Any]:
    return pairs(scores(0.8), others)


def test_a_win_a_tie_and_a_loss() -> None:
    """All clients differ by the same 20 or 10 points in every seed; in a tie the seeds disagree about the sign."""
    found = against(FedAvg=scores(0.6), alone=scores(0.9), IFCA=scores(0.8, 0.05))
    assert {name: verdict(pair) for name, pair in found.items()} == {
        "FedAvg": "above",
        "alone": "below",
        "IFCA": "level",
    }
    assert (
        compared(found)
        == "20.0 points above FedAvg, not significantly different from IFCA (+0.0 ± 0.0) and 10.0 points below alone"
    )


def test_a_large_difference_of_which_seeds_disagree_is_none() -> None:
    mixed = [dict.fromkeys(CLIENTS, 0.8 - far) for far in (0.5, 0.5, -0.01)]
    assert verdict(against(FedAvg=mixed)["FedAvg"]) == "level"


def test_one_seed_tells_nothing() -> None:
    found = pairs(scores(0.8)[:1], {"FedAvg": scores(0.6)[:1]})
    assert compared(found) == "one seed, so not compared with FedAvg (+20.0 ± 0.0)"
    assert badge(found) == ("one seed: no test possible", False)


def test_one_number_for_each_seed_is_tested_over_seeds() -> None:
    """Differences 0.10, 0.11, 0.12: t = 0.11 / (0.01 / sqrt 3) = 19, p = 0.003. 0.10, 0.02, 0.30: p = 0.23."""
    ours = [{"all": 0.9} for _ in range(3)]
    steady = [{"all": 0.9 - far} for far in (0.10, 0.11, 0.12)]
    rough = [{"all": 0.9 - far} for far in (0.10, 0.02, 0.30)]
    found = pairs(ours, {"FedAvg": steady, "local training": rough})
    assert compared(found) == "11.0 points above FedAvg and not significantly different from local training (+14.0)"
    assert badge(found) == ("above FedAvg", False)


@pytest.mark.parametrize(
    ("fedavg", "alone", "told"),
    [
        (0.6, 0.7, ("above FedAvg and local training", True)),
        (0.6, 0.9, ("above FedAvg", False)),
        (0.9, 0.9, ("no significant gain here", False)),
    ],
)
def test_the_badge_claims_what_holds_against_both_baselines(
    fedavg: float, alone: float, told: tuple[str, bool]
) -> None:
    assert badge(against(**{"FedAvg": scores(fedavg), "local training": scores(alone), "IFCA": scores(0.95)})) == told


def test_numbers_as_words() -> None:
    assert (listed([]), listed(["a"]), listed(["a", "b", "c"])) == ("", "a", "a, b and c")
    assert (percent(0.8304, 0.0096), percent(0.5, math.nan)) == ("83.0 ± 1.0 %", "50.0 %")
    assert (times(48.9, 1.6), times(10, 4)) == ("31", "2.5")
