"""Clustered methods between the equations: cohorts, late clients, empty clusters, options."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

import pytest
import torch

from fedquilt.core.exchange import Context, Reply, everyone, fraction
from fedquilt.core.net import Net
from fedquilt.core.seed import Seed
from fedquilt.data import ClassGroups, Federation
from fedquilt.errors import InputError
from fedquilt.methods.clustered.cfl import CFL
from fedquilt.methods.clustered.fedgroup import FedGroup, FedGroupParams
from fedquilt.methods.clustered.fedper_grouped import FedPerGrouped
from fedquilt.methods.clustered.flhc import FLHC
from fedquilt.methods.clustered.grouped import Groups, Joined, Pools, Welcome
from fedquilt.methods.clustered.hcfl import HCFL, Blended, fading
from fedquilt.methods.clustered.pacfl import PACFL, angle, basis_of
from fedquilt.methods.fedavg import FedAvg, Upload
from fedquilt.models.registry import make as model
from fedquilt.pieces.clustering.result import from_labels
from fedquilt.pieces.optimizers import SGD
from helpers.places import LOSS, at, coordinates
from helpers.toy import last, site_of

WORK: dict[str, Any] = {"optimizer": SGD(0.25)}
SIX = at([4, 0, 1], [4, 0.4, 1.2], [0, 4, -1], [0.4, 4, -1.2], [-4, 0, 3], [-4, -0.4, 3])
RIGHT = {0: 0, 1: 0, 2: 1, 3: 1, 4: 2, 5: 2}
ZERO = {"body": torch.zeros(2), "head": torch.zeros(1)}
SERVER = Context(5, None, Seed(0), 6)


def state_of(labels: dict[int, int], k: int) -> Groups:
    vectors = {c: torch.eye(3)[j] for c, j in labels.items()}
    found = replace(from_labels(labels, vectors, "given"), measures={"threshold": 0.5})
    models = tuple({"body": torch.full((2,), float(j)), "head": torch.full((1,), float(j))} for j in range(k))
    return Groups(models, found, ZERO)


def test_cohorts_are_drawn_in_each_cluster():
    """max(1, int(f n)) of each: of 9, 10 and 2 clients a fifth is 1, 2 and 1; new clients are a pool of their own."""
    labels = {c: 0 if c < 9 else 1 if c < 19 else 2 for c in range(21)}
    ids = list(range(23))
    drawn = Pools(fraction(0.2))(state_of(labels, 3), ids, Seed(1))
    counts = [sum(labels.get(c, 3) == k for c in drawn) for k in range(4)]
    assert counts == [1, 2, 1, 1]
    assert list(drawn) == sorted(drawn)
    assert list(Pools(everyone)(state_of(labels, 3), ids, Seed(1))) == ids
    nobody = Groups((ZERO,), from_labels({}, None, ""))
    assert Pools(fraction(0.5))(nobody, ids, Seed(1)) == fraction(0.5)(None, ids, Seed(1))


def test_a_cluster_without_replies_keeps_its_model():
    method, state = FLHC(LOSS, **WORK), state_of({0: 0, 1: 1, 2: 2}, 3)
    one = Reply(1, 4, Upload({"body": torch.ones(2), "head": torch.ones(1)}))
    after = method.up(state, iter([one]), SERVER)
    assert [coordinates(m)[0] for m in after.models] == [0.0, 2.0, 2.0]


def test_a_client_without_samples_is_never_averaged():
    method, state = HCFL(LOSS, initial_rounds=0, **WORK), state_of({0: 0, 1: 0}, 1)
    state = Blended(state.models, state.clusters, ZERO)
    far = Reply(0, 0, Upload({"body": torch.full((2,), 9.0), "head": torch.full((1,), 9.0)}))
    one = Reply(1, 4, Upload({"body": torch.ones(2), "head": torch.ones(1)}))
    assert coordinates(method.up(state, iter([far, one]), SERVER).models[0]) == [1.0, 1.0, 1.0]
    assert coordinates(method.up(state, iter([far]), SERVER).models[0]) == [0.0, 0.0, 0.0]


class Late(FLHC):
    """A discovery that some clients miss."""

    @cached_property
    def discovery(self) -> Any:
        """Nobody asks 1 and 4."""
        found = super().discovery
        some = replace(found.exchange, cohort=lambda state, ids, seed: [c for c in ids if c not in (1, 4)])
        return replace(found, exchange=some)


def test_late_clients_find_their_cluster():
    method = Late(base=FedAvg(objective=LOSS, **WORK), initial_rounds=0)
    state = last(method, SIX, rounds=2).state
    assert state.clusters.labels == RIGHT
    down = method.down(last(method, SIX, rounds=1).state, 1)
    assert not isinstance(down, Welcome)  # it joined in the round of the discovery


def test_a_client_far_from_all_opens_a_cluster_from_the_nearest():
    """For HCFL on the common embedding, P = [7, 7], with the nearest one's head."""
    base = state_of({0: 0, 1: 1}, 2)
    state = Blended(base.models, base.clusters, ZERO, common={"body": torch.full((2,), 7.0)})
    method = HCFL(LOSS, initial_rounds=0, criterion="silhouette", lambda_0=0.0, mu=0.0, **WORK)
    download = method.down(state, 9)
    assert isinstance(download, Welcome)
    assert download.clusters.labels == {}  # who is where stays with the server
    site = at([-4, -4, 0]).site(0, 0)
    job = method.start(
        replace(download, clusters=replace(download.clusters, directions=torch.eye(2))),
        method.init_client(Seed(0)),
        site,
        Context(5, 9, Seed(0)),
    )
    assert coordinates(job.params) == [7.0, 7.0, 0.0]
    upload = Joined({"body": torch.ones(2), "head": torch.ones(1)}, None, 1, torch.tensor([0.0, 0.0, -2.0]))
    method.check(state, upload)
    after = method.up(state, iter([Reply(9, 1, upload)]), SERVER)
    assert after.clusters.labels == {0: 0, 1: 1, 9: 2}
    assert coordinates(after.models[2]) == [8.0, 8.0, 2.0]
    assert after.clusters.directions[2].tolist() == [0.0, 0.0, -1.0]


@pytest.mark.parametrize(
    "upload",
    [
        Joined(ZERO, 5, 0, torch.zeros(3)),
        Joined(ZERO, None, -1, torch.zeros(3)),
        Joined(ZERO, 0, 0, torch.zeros(4)),
        Joined({"body": torch.zeros(2)}, 0, 0, torch.zeros(3)),
    ],
)
def test_impossible_joins_are_refused(upload: Joined):
    with pytest.raises(InputError):
        FLHC(LOSS, **WORK).check(state_of({0: 0, 1: 1, 2: 2}, 3), upload)


def test_sketches_weights_and_min_size():
    sketched = last(FLHC(LOSS, initial_rounds=0, sketch_size=2, **WORK), SIX, rounds=1)
    assert sketched.state.clusters.directions.shape[1] == 2
    weights = FedGroupParams(LOSS, initial_rounds=0, **WORK)
    assert last(weights, SIX, rounds=1).state.clusters.labels == RIGHT  # from 0, weights are updates
    alone = at([4, 0, 1], [4, 0.4, 1.2], [0, 4, -1])
    assert last(FLHC(LOSS, initial_rounds=0, **WORK), alone, rounds=1).state.clusters.k == 2
    assert last(FLHC(LOSS, initial_rounds=0, min_size=2, **WORK), alone, rounds=1).state.clusters.k == 1


def test_clustering_anew_keeps_models_where_clusters_stay():
    plain = last(FLHC(LOSS, initial_rounds=1, **WORK), SIX, rounds=4).state
    again = last(FLHC(LOSS, initial_rounds=1, recluster_every=1, **WORK), SIX, rounds=4).state
    assert again.clusters.labels == plain.clusters.labels == RIGHT
    assert all(torch.equal(a[n], b[n]) for a, b in zip(again.models, plain.models, strict=True) for n in a)


def test_clustering_anew_mixes_the_models_of_new_company():
    """Clients 0 and 1 (1 and 3 examples) come together: 0 * 1/4 + 1 * 3/4."""
    method = FLHC(LOSS, initial_rounds=0, recluster_every=1, **WORK)
    state = state_of({0: 0, 1: 1, 2: 2}, 3)
    (*_, again) = method.exchanges()
    shown = {0: [1.0, 0.0, 0.0], 1: [1.0, 0.1, 0.0], 2: [0.0, 0.0, 1.0]}
    replies = [Reply(c, 1 + 2 * (c == 1), type("S", (), {"vector": torch.tensor(v)})()) for c, v in shown.items()]
    after = again.up(state, iter(replies), SERVER)
    assert after.clusters.labels == {0: 0, 1: 0, 2: 1}
    assert [coordinates(m)[0] for m in after.models] == [0.75, 2.0]


def test_sharing_stops_when_the_held_out_loss_no_longer_falls():
    method = HCFL(LOSS, initial_rounds=0, stop_sharing=2, **WORK)
    base = state_of({0: 0}, 1)
    state = Blended(base.models, base.clusters)
    heard = []
    for loss in (1.0, 0.9, 0.95, 0.92, 0.5):
        state = method.observe(state, {"valid_loss": loss})
        heard.append(state.sharing)
    assert heard == [True, True, True, False, False]
    before = Blended(base.models, from_labels({}, None, ""))
    assert method.observe(before, {"valid_loss": 1.0}) is before
    assert HCFL(LOSS, **WORK).observe(base, {"valid_loss": 1.0}) is base


def test_the_last_rounds_share_nothing():
    assert [fading(last=2, rounds=5)(t) > 0 for t in range(6)] == [True] * 3 + [False] * 3


def test_fedgroup_starts_groups_cold():
    """Four of six are pre-trained; the others join when asked, and end where they belong."""
    method = FedGroup(LOSS, n_clusters=1, pretrain_scale=4, pretrain_steps=1, **WORK)
    first = last(method, SIX, rounds=1).state
    assert set(first.clusters.labels) == set(range(6))
    three = FedGroup(LOSS, n_clusters=3, pretrain_steps=1, **WORK)
    assert last(three, SIX, rounds=1).state.clusters.labels == RIGHT


def test_fedgroup_mixing():
    """Groups at 1 and 2 (|W| = sqrt 3 and 2 sqrt 3), rate 0.5: (1 + 2 b) / (1 + b) with b = 0.5 / (2 sqrt 3), and
    (2 + a) / (1 + a) with a = 0.5 / sqrt 3."""
    mixed = FedGroup(LOSS, n_clusters=2, group_agg_lr=0.5, **WORK)
    base = state_of({0: 0, 1: 1}, 3)
    after = mixed.merged(replace(base, models=base.models[1:]), [], SERVER)
    a, b = 0.5 / 3**0.5, 0.25 / 3**0.5
    expected = [(1 + 2 * b) / (1 + b), (2 + a) / (1 + a)]
    assert [coordinates(m)[0] for m in after.models] == pytest.approx(expected)


def test_cfl_splits_at_rest_and_only_then():
    """From the common optimum, -3.6 and 3.6 along the head, updates cancel: |mean| is 0 and the longest 0.9."""
    four = at([0, 0, 3.6], [0, 0, 3.6], [0, 0, -3.6], [0, 0, -3.6])
    found = last(CFL(LOSS, eps_2=0.8, calm_rounds=1, **WORK), four, rounds=2).state
    assert found.clusters.labels == {0: 0, 1: 0, 2: 1, 3: 1}
    assert found.clusters.measures["opened_1_round"] == 1
    assert [coordinates(m)[2] for m in found.models] == [pytest.approx(0.9), pytest.approx(-0.9)]
    for never in ({"eps_2": 1.6}, {"calm_rounds": 2}, {"gamma": 1.1}):
        assert (
            last(CFL(LOSS, **{"eps_2": 0.8, "calm_rounds": 0, **never}, **WORK), four, rounds=2).state.clusters.k == 1
        )
    with pytest.raises(InputError, match="cohort of everyone"):
        CFL(base=FedAvg(objective=LOSS, cohort=fraction(0.5)))


def test_cfl_leaves_who_was_not_heard_at_a_split_to_choose():
    method = CFL(LOSS, eps_2=0.8, calm_rounds=0, **WORK)
    state = state_of(dict.fromkeys(range(5), 0), 1)
    heard = [
        Reply(c, 1, Upload({"body": torch.zeros(2), "head": torch.tensor([h])}))
        for c, h in enumerate([0.9, 0.9, -0.9, -0.9])
    ]
    after = method.up(state, iter(heard), SERVER)
    assert after.clusters.labels == {0: 0, 1: 0, 2: 1, 3: 1}
    assert isinstance(method.down(after, 4), Welcome)


def test_pacfl_bases_and_angles():
    """Rows along e0 (class 0) and e1 (class 1): two unit columns, whatever the sign; 30 degrees is 30 degrees."""
    site = site_of(x=[[2.0, 0, 0], [1, 0, 0], [0, -3, 0]], y=[0, 0, 1])
    basis = basis_of(site, 1)
    assert basis.abs().tolist() == [[1, 0], [0, 1], [0, 0]]
    a, b = torch.tensor([[1.0], [0.0]]), torch.tensor([[-(3**0.5) / 2], [0.5]])
    assert angle(a, b) == pytest.approx(30)
    assert angle(a, a) == 0
    assert angle(a, torch.zeros(2, 0)) == 90
    with pytest.raises(InputError, match="real-valued"):
        basis_of(site_of(x=[[1, 2]], y=[0]), 1)
    with pytest.raises(InputError, match="columns of length 1"):
        PACFL(LOSS).check_basis(state_of({0: 0}, 1), type("B", (), {"basis": 2 * basis})())


def test_pacfl_finds_clients_whose_data_point_alike():
    planes = at([1, 0, 0], [5, 0.1, 0], [0, 1, 0], [0, 9, 0.2])
    assert last(PACFL(LOSS, **WORK), planes, rounds=1).state.clusters.labels == {0: 0, 1: 0, 2: 1, 3: 1}


def test_fedper_in_clusters_keeps_heads_at_home():
    state = last(FedPerGrouped(LOSS, initial_rounds=1, criterion="silhouette", **WORK), SIX, rounds=3).state
    assert [set(m) for m in state.models] == [{"body"}] * state.clusters.k
    assert state.clusters.labels == RIGHT


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: HCFL(LOSS, lambda_0=1.5), "would extrapolate"),
        (lambda: HCFL(LOSS, mu=-1.0), "mu >= 0"),
        (lambda: HCFL(LOSS, anneal_last=2), "needs cluster_rounds"),
        (lambda: HCFL(LOSS, start_at="old"), "start_at must be"),
        (lambda: HCFL(LOSS, head=("tail",)), "no part 'tail'"),
        (lambda: FLHC(LOSS, distance_threshold=0.0), "above 0"),
        (lambda: FLHC(LOSS, initial_rounds=-1), "initial_rounds must be at least 0"),
        (lambda: FLHC(LOSS, budget="some"), "budget must be"),
        (lambda: FedGroup(LOSS, n_clusters=0), "n_clusters must be at least 1"),
        (lambda: FedGroup(LOSS, measure="l2"), "measure must be"),
        (lambda: PACFL(LOSS, linkage="ward"), "average, complete or single"),
        (lambda: CFL(LOSS, eps_1=0.0), "must be above 0"),
    ],
)
def test_wrong_options_are_refused(make: Any, words: str):
    with pytest.raises(InputError, match=words):
        make()


def test_one_client_with_every_method():
    for make in (FLHC, HCFL, FedGroup, FedGroupParams, CFL, PACFL, FedPerGrouped):
        state = last(make(LOSS, **WORK), at([1, 2, 3]), rounds=5).state
        assert state.clusters.labels == {0: 0}


def test_a_network_that_is_all_head_is_clustered_by_it():
    """Logistic regression has no embedding: nothing is shared, and the update of the head tells the groups apart."""
    net = Net(model("logistic", (1, 8, 8), 10))
    federation = Federation.from_source("digits", partition=ClassGroups(), clients=6)
    state = last(HCFL(net, initial_rounds=0, criterion="threshold", optimizer=SGD(0.1)), federation, rounds=1).state
    assert state.clusters.labels == {0: 0, 1: 0, 2: 1, 3: 1, 4: 2, 5: 2}
    assert state.common == {}
