"""FL+HC and HCFL on clients that are points, and what they reduce to.

w after E steps of size eta on F_i(w) + mu/2 |w - W|^2 from w_0 is w* + (1 - eta (1 + mu))^E (w_0 - w*), with
w* = (c_i + mu W) / (1 + mu); the tables below follow from it in 64 bit.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from fedquilt.core.exchange import Context, Reply, fraction
from fedquilt.core.net import Net
from fedquilt.core.objective import Objective
from fedquilt.core.seed import Seed
from fedquilt.core.train import Job, Train
from fedquilt.methods.clustered.cfl import CFL
from fedquilt.methods.clustered.cgpfl import CGPFL, CGPFLMoreau
from fedquilt.methods.clustered.fedper_grouped import FedPerGrouped
from fedquilt.methods.clustered.flhc import FLHC
from fedquilt.methods.clustered.grouped import Groups
from fedquilt.methods.clustered.hcfl import HCFL, Blended
from fedquilt.methods.clustered.lcfed import LCFed
from fedquilt.methods.clustered.pacfl import PACFL
from fedquilt.methods.fedavg import FedAvg, Upload
from fedquilt.methods.personalised.fedper import FedPer
from fedquilt.methods.personalised.pfedme import PFedMe
from fedquilt.pieces.aggregators import uniform_mean
from fedquilt.pieces.clustering.result import from_labels
from fedquilt.pieces.objectives import prox
from fedquilt.pieces.optimizers import SGD
from helpers.places import LOSS, Place, at, coordinates, downhill
from helpers.toy import OneWeight as One
from helpers.toy import last, linear, points, site_of, squared_error

SIX = at([4, 0, 1], [4, 0.4, 1.2], [0, 4, -1], [0.4, 4, -1.2], [-4, 0, 3], [-4, -0.4, 3])


def close(values: list[float]) -> Any:
    return pytest.approx(values, abs=2e-6)


def blend(
    samples: tuple[int, ...], t: int, sharing_by: str = "same", stable: float | None = None, **settings: Any
) -> list[list[float]]:
    """One round's end: places [1,0|1], [3,0|3], [0,4|10] in clusters {0,1} and {2}."""
    method = HCFL(LOSS, initial_rounds=0, n_clusters=2, sharing_by=sharing_by, **settings)
    zero = {"body": torch.zeros(2), "head": torch.zeros(1)}
    clusters = from_labels({0: 0, 1: 0, 2: 1}, None, "given")
    clusters = clusters if stable is None else replace(clusters, measures={"stable_ari": stable})
    state = Blended((zero, zero), clusters)
    places = [([1.0, 0.0], [1.0]), ([3.0, 0.0], [3.0]), ([0.0, 4.0], [10.0])]
    replies = [
        Reply(i, n, Upload({"body": torch.tensor(b), "head": torch.tensor(h)}))
        for i, (n, (b, h)) in enumerate(zip(samples, places, strict=True))
    ]
    found = method.merged(state, replies, Context(t, None, Seed(0), 3))
    assert coordinates({**found.common, "head": torch.zeros(1)})[:2] == close(
        [1, 2] if samples == (1, 1, 2) else [1.25, 2]
    )
    return [coordinates(m) for m in found.models]


def test_o3_blend():
    """P = [1, 2]; lambda is 1, 1/2, 1/10 at t = 0, 10, 90. Heads are never blended."""
    assert blend((1, 1, 2), 0) == [close([1, 2, 2]), close([1, 2, 10])]
    assert blend((1, 1, 2), 10) == [close([1.5, 1, 2]), close([0.5, 3, 10])]
    assert blend((1, 1, 2), 90) == [close([1.9, 0.2, 2]), close([0.1, 3.8, 10])]


def test_o3_weights():
    """P is weighted by examples always, the clusters' own averages as the aggregator says."""
    assert blend((1, 3, 4), 10)[0] == close([1.875, 1, 2.5])
    assert blend((1, 3, 4), 10, aggregate=uniform_mean)[0] == close([1.625, 1, 2])


def test_o3_sharing_by_size_and_by_divergence():
    """By size: cluster 0 holds half of the examples, so lambda is halved to 1/4: [2,0] + ([1,2] - [2,0]) / 4. By
    divergence: |[2,0] - [1,2]| = |[0,4] - [1,2]| = sqrt 5, so both keep 1/2."""
    assert blend((1, 1, 2), 10, sharing_by="size") == [close([1.75, 0.5, 2]), close([0.25, 3.5, 10])]
    assert blend((1, 1, 2), 10, sharing_by="divergence") == blend((1, 1, 2), 10)


def test_sharing_by_shrinkage():
    """Cluster 0: the places 1 and 3 scatter by 2, their mean by 1, at a squared distance of 5 from P: 1/5 of lambda =
    1/2. Cluster 1 is one client, whose scatter is taken to be the same 2: 2/5 of 1/2. By 3 : 1 examples the scatter is
    3/4 / (3/8) = 2 again, and the mean's 2 * 10/16."""
    assert blend((1, 1, 2), 10, sharing_by="shrinkage") == [close([1.9, 0.2, 2]), close([0.2, 3.6, 10])]
    share = 0.5 * 1.25 / (1.25**2 + 4)  # from [2.5, 0] towards [1.25, 2]
    assert blend((1, 3, 4), 10, sharing_by="shrinkage")[0] == close([2.5 - 1.25 * share, 2 * share, 2.5])


@pytest.mark.parametrize(("stable", "like"), [(0.79, "same"), (0.8, "shrinkage"), (None, "shrinkage")])
def test_sharing_by_stability(stable: float | None, like: str):
    """Clusters that do not come back among fewer clients share as published; others, and where it was not measured,
    by shrinkage."""
    found = blend((1, 1, 2), 10, sharing_by="stability", stable=stable)
    assert found == blend((1, 1, 2), 10, sharing_by=like)
    assert blend((1, 1, 2), 10) != blend((1, 1, 2), 10, sharing_by="shrinkage")


def test_shrinkage_leaves_clusters_alone_where_nobody_scatters():
    method = HCFL(LOSS, initial_rounds=0, n_clusters=2, sharing_by="shrinkage")
    zero = {"body": torch.zeros(2), "head": torch.zeros(1)}
    state = Blended((zero, zero), from_labels({0: 0, 1: 1}, None, "given"))
    moves = ([1.0, 0.0], [0.0, 4.0])
    replies = [Reply(i, 1, Upload({"body": torch.tensor(b), "head": torch.zeros(1)})) for i, b in enumerate(moves)]
    found = method.merged(state, replies, Context(0, None, Seed(0), 2))
    assert [coordinates(m)[:2] for m in found.models] == [close([1, 0]), close([0, 4])]


def test_o4_steps_with_a_pull():
    """c = 4, W = 1, mu = 1, eta = 0.1 from 0: w* = 2.5 and 2.5 (1 - 0.8^E)."""

    def start(*_: Any) -> Job:
        return Job({"w": torch.tensor(0.0)}, {"centre": {"w": torch.tensor(1.0)}})

    objective = Objective(Net(One), (squared_error, prox(1.0, "centre")))
    found = []
    for steps in (1, 2, 3, 200):
        work = Train(start, objective, lambda *_: (None, None), SGD(0.1), steps=steps)
        site = site_of(x=[1.0], y=[4.0])
        found.append(float(work.run(None, None, site, Context(0, 0, Seed(0)))[3].params["w"]))
    assert found == [pytest.approx(v, abs=1e-6) for v in (0.5, 0.9, 1.22, 2.5)]


ROUNDS = {
    2: [[0.029167, 0.583333, 0.4625], [0.029167, 0.583333, -0.0875], [0.029167, 0.583333, 0.9375]],
    3: [[0.530208, 0.629167, 0.621875], [0.055208, 1.104167, -0.340625], [-0.469792, 0.579167, 1.453125]],
    4: [[0.946962, 0.651736, 0.741406], [0.076128, 1.522569, -0.530469], [-0.886372, 0.560069, 1.839844]],
}
WORK: dict[str, Any] = {"optimizer": SGD(0.25)}
SETTINGS: dict[str, Any] = {
    "initial_rounds": 1,
    "criterion": "threshold",
    "mu": 1.0,
    "lambda_0": 1.0,
    "lambda_alpha": 1.0,
    "lambda_p": 1.0,
    "sharing_by": "same",
}


@pytest.mark.parametrize("rounds", ROUNDS)
def test_o4_hcfl(rounds: int):
    """eta = 1/4, one step, a warm-up round from 0; then t = 0, 1, 2 with lambda = 1, 1/2, 1/3."""
    state = last(HCFL(LOSS, **SETTINGS, **WORK), SIX, rounds=rounds).state
    assert coordinates(state.anchor) == close([0.016667, 0.333333, 0.25])
    assert state.clusters.labels == {0: 0, 1: 0, 2: 1, 3: 1, 4: 2, 5: 2}
    assert [coordinates(m) for m in state.models] == [close(row) for row in ROUNDS[rounds]]


@pytest.mark.parametrize(
    ("rounds", "heads"), [(3, [0.515625, -0.171875, 1.109375]), (4, [0.528906, -0.192969, 1.152344])]
)
def test_o4_hcfl_from_the_global_start(rounds: int, heads: list[float]):
    """Heads begin at the warm-up's each round, so they hardly move."""
    state = last(HCFL(LOSS, **SETTINGS, start_at="global", **WORK), SIX, rounds=rounds).state
    assert [coordinates(m)[2] for m in state.models] == close(heads)


def test_o4_discovery_is_no_round_and_keeps_nothing():
    """After the discovery FL+HC's clusters start from w0: one more round moves each head by (c - w0) / 4."""
    state = last(FLHC(LOSS, initial_rounds=1, **WORK), SIX, rounds=2).state
    assert [coordinates(m)[2] for m in state.models] == close([0.25 + (c - 0.25) / 4 for c in (1.1, -1.1, 3.0)])


def test_o9_a_stale_start_gets_nowhere():
    """A gradient of -1, eta 0.01, mu 1, 33 steps: a pass moves the head by 1 - 0.99^33 = 0.282269. From W_k, t rounds
    are t passes. From the same stale head each round, W <- 0.282269 (W + 1), whose fixed point is 1.393281 passes."""
    one = 0.282269
    objective = Objective(Net(Place), (downhill,))
    far = {}
    for start in ("cluster", "global"):
        method = HCFL(objective, initial_rounds=0, n_clusters=1, start_at=start, optimizer=SGD(0.01), steps=33)
        far[start] = coordinates(last(method, at([0, 0, 0]), rounds=15).state.models[0])[2]
    assert far["cluster"] / one == pytest.approx(15, abs=1e-4)
    assert far["global"] / one == pytest.approx(1.393281, abs=1e-5)


@pytest.mark.parametrize(("start", "passes"), [("cluster", 15), ("global", 1.393281)])
def test_o9_cgpfl_and_lcfed_may_start_stale_too(start: str, passes: float):
    """The same gradient: CGPFL's global start is the first model, LCFed's has everybody's embedding but the first
    head."""
    objective = Objective(Net(Place), (downhill,))
    settings: dict[str, Any] = {"n_clusters": 1, "start_at": start, "optimizer": SGD(0.01), "steps": 33, "mu": 1.0}
    for method in (CGPFL(objective, **settings), LCFed(objective, **settings, lam=0.0)):
        moved = coordinates(last(method, at([0, 0, 0]), rounds=15).state.models[0])[2]
        assert moved / 0.282269 == pytest.approx(passes, abs=1e-4)


@pytest.mark.parametrize(("limit", "sides"), [(1.6, [0, 0, 0, 0, 0]), (1.0, [0, 0, 0, 1, 1])])
def test_o8_cfl_splits_when_a_client_still_pulls(limit: float, sides: list[int]):
    """|mean| is 0.178885 < 0.4; the longest update, 1.1, is not above 1.6 but above 1."""
    updates = [[1, 0.2], [1, 0], [0.9, 0.1], [-1, 0.1], [-1.1, 0]]
    zero = {"body": torch.zeros(2), "head": torch.zeros(1)}
    state = Groups((zero,), from_labels(dict.fromkeys(range(5), 0), None, ""))
    replies = [
        Reply(i, 1, Upload({**zero, "body": torch.tensor(u, dtype=torch.float32)})) for i, u in enumerate(updates)
    ]
    method = CFL(base=FedAvg(objective=LOSS), eps_1=0.4, eps_2=limit, calm_rounds=0)
    after = method.merged(state, replies, Context(3, None, Seed(0), 5))
    assert list(after.clusters.labels.values()) == sides
    if limit == 1.0:  # each side goes on with the mean of its own
        assert [coordinates(m)[:2] for m in after.models] == [close([2.9 / 3, 0.1]), close([-1.05, 0.05])]


# O10: bitwise

POINTS = points(9, 12, 5, 8, 7)
TRAIN: dict[str, Any] = {"objective": linear(), "optimizer": SGD(0.1), "batch_size": 4, "epochs": 2}


def reference(rounds: int = 4, **settings: Any) -> dict[str, torch.Tensor]:
    return last(FedAvg(**TRAIN, **settings), POINTS, rounds=rounds).state.shared


def equal(a: Any, b: Any) -> bool:
    return a.keys() == b.keys() and all(torch.equal(t, b[n]) for n, t in a.items())


@pytest.mark.parametrize("share", [0.5, 1.0])
@pytest.mark.parametrize("initial", [0, 2])
def test_o10_one_cluster_is_fedavg(share: float, initial: int):
    """Also with a warm-up, since the discovery is no round; and with any sharing, since a lone cluster shares alone."""
    base = {"cohort": fraction(share)}
    plain = reference(**base)
    one = last(FLHC(**TRAIN, initial_rounds=initial, n_clusters=1, **base), POINTS, rounds=4).state
    assert equal(one.models[0], plain)
    for lambda_0 in (0.0, 0.3, 1.0):
        method = HCFL(**TRAIN, head=("bias",), initial_rounds=initial, n_clusters=1, mu=0.0, lambda_0=lambda_0, **base)
        assert equal(last(method, POINTS, rounds=4).state.models[0], plain)


def test_o10_cfl_before_a_split_is_fedavg():
    state = last(CFL(base=FedAvg(**TRAIN)), POINTS, rounds=3).state
    assert equal(state.models[0], reference(3))
    assert state.clusters.labels == dict.fromkeys(range(5), 0)


def test_o10_pacfl_with_one_cluster_is_fedavg():
    state = last(PACFL(**TRAIN, n_clusters=1, cohort=fraction(0.5)), POINTS, rounds=4).state
    assert equal(state.models[0], reference(cohort=fraction(0.5)))


def test_o10_fedper_in_one_cluster_is_fedper_and_with_contexts_cgpfl_is_pfedme():
    """To the bit, with what clients keep."""
    pairs = [
        (FedPerGrouped(**TRAIN, head=("bias",), n_clusters=1), FedPer(**TRAIN, head=("bias",))),
        (CGPFLMoreau(**TRAIN, n_clusters=1, mu=2.0, aggregate=uniform_mean), PFedMe(**TRAIN, lam=2.0)),
    ]
    for many, single in pairs:
        found, plain = last(many, POINTS, rounds=4), last(single, POINTS, rounds=4)
        assert equal(found.state.models[0], plain.state.shared)
        assert all(equal(found.personal_model(c), plain.personal_model(c)) for c in POINTS.ids)


def test_o10_hcfl_without_sharing_and_pull_is_flhc():
    base = FedAvg(**TRAIN, cohort=fraction(0.5))
    settings: dict[str, Any] = {"base": base, "initial_rounds": 1, "n_clusters": 2, "criterion": "threshold"}
    plain = last(FLHC(**settings), POINTS, rounds=4).state
    found = last(HCFL(**settings, head=("bias",), mu=0.0, lambda_0=0.0), POINTS, rounds=4).state
    assert found.clusters.labels == plain.clusters.labels
    assert set(plain.clusters.labels.values()) == {0, 1}
    assert all(map(equal, found.models, plain.models))
    assert not equal(plain.models[0], plain.models[1])


def test_o10_one_client_works_everywhere():
    for method in (FLHC(**TRAIN, initial_rounds=1), HCFL(**TRAIN, head=("bias",), initial_rounds=1)):
        state = last(method, points(6), rounds=3).state
        assert (state.clusters.labels, state.clusters.k) == ({0: 0}, 1)
