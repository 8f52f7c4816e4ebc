"""Schedules, by hand."""

from __future__ import annotations

import pytest

from fedquilt.errors import InputError
from fedquilt.pieces.schedules import cosine, exponential, step_down, warm_up


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        (exponential(0.5), {0: 1, 1: 0.5, 3: 0.125}),
        (step_down((2, 4), 0.1), {0: 1, 1: 1, 2: 0.1, 3: 0.1, 4: 0.01, 9: 0.01}),
        # (1 + cos(pi t)) / 2 at t = 0, 1/4, 1/2, 1 is 1, (2 + sqrt 2) / 4, 1/2, 0; then it stays
        (cosine(4), {0: 1, 1: (2 + 2**0.5) / 4, 2: 0.5, 4: 0, 7: 0}),
        (cosine(4, floor=0.2), {0: 1, 2: 0.6, 4: 0.2, 9: 0.2}),
        (warm_up(4), {0: 0.25, 1: 0.5, 3: 1, 9: 1}),
        (warm_up(0), {0: 1}),
    ],
    ids=str,
)
def test_factors(schedule, factors):
    assert {r: schedule(r) for r in factors} == pytest.approx(factors, abs=1e-12)


@pytest.mark.parametrize("bad", [lambda: exponential(0.0), lambda: exponential(1.5), lambda: cosine(0)])
def test_impossible_schedules_are_refused(bad):
    with pytest.raises(InputError, match="got"):
        bad()
