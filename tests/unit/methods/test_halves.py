"""The discovery by halves: what clients train on and show, by which part clusters are found, when, and by whom."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from fedquilt.core.exchange import Context, Reply
from fedquilt.core.net import Net
from fedquilt.core.seed import Seed
from fedquilt.core.table import Site, Table
from fedquilt.data import ClassGroups, Federation
from fedquilt.data.partitions.labels import IID
from fedquilt.engines.local import Local
from fedquilt.errors import InputError
from fedquilt.methods.clustered.flhc import FLHC
from fedquilt.methods.clustered.grouped import Welcome
from fedquilt.methods.clustered.halves import Parts, SensedHalves, _Half, part_of, several
from fedquilt.methods.clustered.hcfl import HCFL
from fedquilt.methods.fedavg import FedAvg
from fedquilt.models import MLP
from fedquilt.pieces.clustering.private import Blur
from fedquilt.pieces.optimizers import SGD
from fedquilt.rounds.rounds import Rounds

NET = Net.of(MLP, features=64, classes=10, hidden=(16,))
WORK: dict[str, Any] = {"optimizer": SGD(0.1), "batch_size": 10, "epochs": 1, "mu": 0.0}
GROUPED = Federation.from_source("digits", partition=ClassGroups(), clients=15)
TRUTH = [0] * 5 + [1] * 5 + [2] * 5


def played(method: Any, federation: Federation, rounds: int = 1) -> Any:
    turn = Rounds(method, federation, Local(), Seed(0))
    states = []
    for _ in range(rounds):
        turn.play()
        states.append(turn.state)
    return states


def test_halves_are_disjoint_together_all_and_the_same_every_time():
    for count in (1, 2, 7, 8):
        site = Site(Table({"x": torch.arange(20)}, torch.arange(3, 3 + count)))
        first, second = (_Half(lambda s: s.train, half)(site).all_rows().tolist() for half in (False, True))
        assert sorted(first + second) == list(range(3, 3 + count))
        assert len(first) - len(second) in (0, 1)
        assert first == _Half(lambda s: s.train, False)(site).all_rows().tolist()
    assert first != [3, 4, 5, 6]  # not the order of rows, which may be that of the labels


def test_each_half_is_trained_on_from_the_same_start():
    """What is shown equals two trainings by hand."""
    method = FLHC(NET, initial_rounds=0, criterion="auto", **{k: v for k, v in WORK.items() if k != "mu"})
    _, discover = method.exchanges()
    state, site = method.init_server(Seed(0)), GROUPED.site(0, 0)
    context, client = Context(0, 0, Seed(4)), method.init_client(Seed(1))
    after, shown = discover.work(discover.down(state, 0), client, site, context)
    assert after == client
    assert isinstance(shown, SensedHalves)
    discover.check(state, shown)
    seeds = (context.seed, context.seed.fold("then", 1))
    for vector, half, seed in zip((shown.first, shown.second), (False, True), seeds, strict=True):
        rows = Site(_Half(lambda s: s.train, half)(site))
        (train,) = method.base.exchanges()
        _, upload = train.work(discover.down(state, 0), client, rows, Context(0, 0, seed))
        assert torch.equal(vector, torch.cat([t.flatten() for t in upload.delta.values()]))
    with pytest.raises(InputError, match="A client's update is"):
        discover.check(state, SensedHalves(shown.first, shown.second[1:]))


def test_steps_are_shared_by_the_halves():
    method = FLHC(NET, criterion="auto", steps=7)
    assert [work.steps for work in method.exchanges()[1].work.works] == [4, 4]
    assert [work.epochs for work in FLHC(NET, criterion="auto", epochs=3).exchanges()[1].work.works] == [3, 3]


def test_groups_of_classes_are_found_and_none_where_there_are_none():
    (state,) = played(HCFL(NET, initial_rounds=0, **WORK), GROUPED)
    assert list(state.clusters.labels.values()) == TRUTH
    assert part_of(state.clusters) in ("embedding", "head", "bias", "all")
    alike = Federation.from_source("digits", partition=IID(), clients=15)
    (state,) = played(HCFL(NET, initial_rounds=0, **WORK), alike)
    assert state.clusters.k == 1
    assert state.clusters.measures["p_differ"] > 0.01


@pytest.mark.parametrize("part", ["embedding", "head", "bias", "all"])
def test_the_part_may_be_chosen(part: Any):
    sizes = {"embedding": 64 * 16 + 16, "head": 160 + 10, "bias": 26, "all": 1210}
    (state,) = played(HCFL(NET, initial_rounds=0, cluster_by=part, **WORK), GROUPED)
    assert state.clusters.criterion == "auto"
    assert state.clusters.directions.shape[1] == sizes[part]
    method = HCFL(NET, initial_rounds=0, cluster_by=part, n_clusters=3, **WORK)
    assert played(method, GROUPED)[0].clusters.directions.shape[1] == sizes[part]


def test_parts_are_cut_out_of_one_vector():
    names = {"all": lambda n: True, "bias": lambda n: n.endswith("bias"), "none": lambda n: False}
    weights = {"a.weight": torch.tensor([[1.0, 2.0]]), "a.bias": torch.tensor([3.0]), "b.bias": torch.tensor([4.0])}
    parts = Parts(several(names, list(weights)))
    vector = parts.vector(weights)
    assert sorted(vector.tolist()) == [1, 2, 3, 4]
    assert parts.part("bias", vector, weights).tolist() == [3, 4]
    assert sorted(parts.part("all", vector, weights).tolist()) == [1, 2, 3, 4]
    assert list(parts.names) == ["all", "bias"]
    assert list(several(names, ["a.bias"])) == ["all"]  # the same weights under two names
    sketched = Parts(parts.names, sketch_size=1)
    assert sketched.vector(weights).shape == (2,)
    assert sketched.part("bias", sketched.vector(weights), weights).shape == (1,)


def test_early_clusters_stand_and_a_search_in_vain_changes_nothing():
    early = played(HCFL(NET, initial_rounds=3, discover_early=True, **WORK), GROUPED, 2)
    assert list(early[0].clusters.labels.values()) == TRUTH
    assert early[1].clusters.labels == early[0].clusters.labels
    alike = Federation.from_source("digits", partition=IID(), clients=8)
    tried = played(HCFL(NET, initial_rounds=1, discover_early=True, **WORK), alike, 2)
    plain = played(HCFL(NET, initial_rounds=1, **WORK), alike, 2)
    assert tried[0].clusters.labels == {}
    assert tried[1].clusters.k == 1
    assert all(torch.equal(w, plain[1].models[0][n]) for n, w in tried[1].models[0].items())


def test_some_are_asked_and_the_others_find_their_own_cluster():
    method = HCFL(NET, initial_rounds=0, discover_fraction=0.8, **WORK)
    first, second = played(method, GROUPED, 2)
    assert len(first.clusters.labels) == 15  # twelve were placed together, the others when they trained
    assert [second.clusters.labels[i] for i in range(15)] == TRUTH
    assert len(first.clusters.order) == 12


def test_a_client_that_comes_late_shows_the_part_that_decided():
    (state,) = played(HCFL(NET, initial_rounds=0, **WORK), GROUPED)
    method = HCFL(NET, initial_rounds=0, **WORK)
    download = method.down(state, 99)
    assert isinstance(download, Welcome)
    placed, vector = method.place(download, method.init_client(Seed(0)), GROUPED.site(7, 0), Context(1, 99, Seed(3)))
    assert placed.cluster == 1
    assert vector is not None
    assert vector.shape == state.clusters.directions.shape[1:]


def test_two_vectors_tell_more_than_one():
    """Two vectors of noise s C hide what one of s C / sqrt(2) does."""
    method = HCFL(NET, initial_rounds=0, sketch_size=8, sketch_clip=1.0, sketch_noise=2.0, **WORK)
    (state,) = played(method, GROUPED)
    assert state.clusters.measures["epsilon_at_1e-5"] == pytest.approx(Blur(1.0, 2 / math.sqrt(2)).epsilon())


def test_clusters_found_by_halves_are_tested_and_found_again():
    method = HCFL(NET, initial_rounds=0, retest_every=1, **WORK)
    _, second = played(method, GROUPED, 2)
    assert list(second.clusters.labels.values()) == TRUTH
    again = played(HCFL(NET, initial_rounds=0, recluster_every=1, **WORK), GROUPED, 2)[1]
    assert list(again.clusters.labels.values()) == TRUTH


def test_without_groups_it_is_fedavg():
    """With any pull, start and sharing, also for clients that were not asked at the discovery."""
    alike = Federation.from_source("digits", partition=IID(), clients=8)
    train = {k: v for k, v in WORK.items() if k != "mu"}
    plain = played(FedAvg(NET, **train), alike, 3)[-1].shared
    for options in ({}, {"start_at": "global"}, {"discover_fraction": 0.75, "sharing_by": "same"}):
        state = played(HCFL(NET, initial_rounds=1, mu=2.0, **options, **train), alike, 3)[-1]
        assert state.clusters.k == 1
        assert all(torch.equal(w, plain[n]) for n, w in state.models[0].items())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"criterion": "best"}, "criterion must be one of threshold, auto, silhouette, got 'best'"),
        ({"cluster_by": "tail"}, "cluster_by must be one of"),
        ({"discover_early": True, "n_clusters": 3}, "only criterion = 'auto' tells"),
        ({"discover_fraction": 0.0}, "share in"),
        ({"min_size": 0}, "min_size must be at least 1"),
    ],
)
def test_strange_settings_are_refused(options: dict[str, Any], words: str):
    with pytest.raises(InputError, match=words):
        HCFL(NET, **options).exchanges()


def test_a_reply_without_its_other_half_is_refused():
    method = HCFL(NET, initial_rounds=0, **WORK)
    discover = method.exchanges()[1]
    state = method.init_server(Seed(0))
    assert discover.up(state, iter([]), Context(0, None, Seed(0))) is state
    one = [Reply(0, 5, SensedHalves(torch.ones(1210), torch.ones(1210)))]
    assert discover.up(state, iter(one), Context(0, None, Seed(0), 1)).clusters.labels == {0: 0}
