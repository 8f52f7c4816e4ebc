"""Whatever a method does, its clusters are a partition of the clients."""

from __future__ import annotations

import pytest

from conformance.cases import CASES, Case
from fedquilt.pieces.clustering.result import ClusterResult, members
from helpers.toy import last

CLUSTERED = {
    "ifca",
    "ifca-heads",
    "ifca-updates",
    "ifca-gradient",
    "fesem",
    "fesem-memory",
    "cgpfl",
    "cgpfl-moreau",
    "lcfed",
    "fedsoft",
    "feddrift",
    "flhc",
    "flhc-retest",
    "hcfl",
    "hcfl-global-start",
    "hcfl-halves",
    "fedgroup",
    "fedgroup-params",
    "cfl",
    "pacfl",
    "fedper-grouped",
}
FOUND_ONCE = {
    "flhc",
    "flhc-retest",
    "hcfl",
    "hcfl-global-start",
    "hcfl-halves",
    "fedgroup-params",
    "pacfl",
    "fedper-grouped",
}


@pytest.mark.parametrize("case", [c for c in CASES if c.name in CLUSTERED], ids=str)
def test_clusters_are_disjoint_and_cover_everybody(case: Case) -> None:
    state = last(case.method, case.federation, rounds=3).state
    found: ClusterResult = state.clusters
    assert set(found.labels) == set(case.federation.ids)  # all are asked in these cases
    assert set(found.labels.values()) <= set(range(found.k))
    assert found.k == len(state.models)
    assert sorted(c for group in members(found) for c in group) == sorted(case.federation.ids)
    if case.name in FOUND_ONCE:  # by smallest member, none empty
        firsts = [min(group) for group in members(found)]
        assert firsts == sorted(firsts)


def test_every_clustered_case_is_here() -> None:
    assert {c.name for c in CASES} >= CLUSTERED
