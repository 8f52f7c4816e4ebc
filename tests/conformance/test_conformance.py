"""Every method keeps every promise of ``fedquilt.testing``, a test each; methods are in ``cases.py``."""

from __future__ import annotations

from dataclasses import replace
from unittest import SkipTest

import pytest

from conformance.cases import CASES, Case
from fedquilt.engines.workers import Workers
from fedquilt.registry import METHODS
from fedquilt.testing.methods import PROPERTIES, Property, refuses_spoilt_fields, same_elsewhere, same_without_capture
from fedquilt.testing.trial import Trial
from helpers.toy import fedavg, last, points

TRIALS = {case.name: Trial(case.method, case.federation, offset=place) for place, case in enumerate(CASES)}
every_case = pytest.mark.parametrize("case", CASES, ids=str)


def test_every_method_has_a_row():
    rows = {case.name for case in CASES}
    begun = {row[:end] for row in rows for end in range(len(row) + 1) if end == len(row) or row[end] == "-"}
    assert [name for name in METHODS if name.replace("_", "-") not in begun] == []


@every_case
@pytest.mark.parametrize("promise", PROPERTIES, ids=lambda promise: promise.__name__)
def test_every_method_keeps_every_promise(case: Case, promise: Property, two_workers: Workers):
    """Skipped are spoilt fields where a client is alone, and captured steps where ``cases.py`` says there are none."""
    try:
        found = list(promise(replace(TRIALS[case.name], engine=two_workers)))
    except SkipTest:
        assert (promise is same_without_capture and not case.captured) or (
            promise is refuses_spoilt_fields and case.alone
        )
        pytest.skip("as cases.py says")
    assert found == []
    assert promise is not same_without_capture or case.captured, "cases.py says that it has plain steps"


@every_case
def test_one_worker_equals_local(case: Case, one_worker: Workers):
    assert list(same_elsewhere(replace(TRIALS[case.name], engine=one_worker))) == []


def test_almost_every_method_is_captured():
    """Whoever adds a row that is not says why."""
    assert sum(case.captured for case in CASES) >= 0.8 * len(CASES)


def test_workers_finish_very_unequal_clients_in_any_order(two_workers: Workers):
    """The largest client is last and is begun first; the sums run in ascending id all the same."""
    data = points(2, 3, 50, 4, 400)
    method = fedavg(epochs=3)
    assert last(method, data, engine=two_workers).digest() == last(method, data).digest()
