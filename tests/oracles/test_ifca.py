"""IFCA worked by hand: out = w, loss = mean (w - v)^2, three models at 0, 5 and 10."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, tensor

from fedquilt.core.exchange import Context, fraction
from fedquilt.core.net import Net
from fedquilt.core.objective import Objective
from fedquilt.core.params import Params, nbytes, pick, under
from fedquilt.core.seed import Seed
from fedquilt.core.table import Batch
from fedquilt.data import Federation, LabelPermutation
from fedquilt.engines.local import Local
from fedquilt.errors import InputError
from fedquilt.methods.clustered.ifca import IFCA, IFCAGradient
from fedquilt.methods.clustered.row_losses import mean_loss
from fedquilt.methods.clustered.starts import Centres, ClusterVote, Offer
from fedquilt.methods.fedavg import Client, FedAvg, Server
from fedquilt.models import MLP
from fedquilt.pieces.aggregators import uniform_mean
from fedquilt.pieces.clustering.result import ClusterResult
from fedquilt.pieces.optimizers import SGD
from fedquilt.rounds.rounds import Rounds
from helpers import sketches
from helpers.toy import OneWeight, last, points, site_of

TOY = points(30, 20, 40, 25)
NET = Net.of(MLP, features=2, classes=2, hidden=(40,))
WORK: dict[str, Any] = {"optimizer": SGD(0.1, momentum=0.9), "batch_size": 16, "epochs": 2}
V = [-1, 1, 4, 6, 5, 9, 12, 2, 3]
DATA = Federation.from_rows(
    {"x": torch.ones(9), "y": torch.zeros(9, dtype=torch.int64), "v": tensor(V)},
    {0: {"train": [0, 1]}, 1: {"train": [2, 3, 4]}, 2: {"train": [5, 6]}, 3: {"train": [7, 8]}},
)


def square(out: Any, params: Params, fixed: Mapping[str, Any], batch: Batch) -> Tensor:
    return (out - batch["v"]).square().mean()


LOSS = Objective(Net.of(OneWeight), (square,))
ONE_STEP = {"optimizer": SGD(0.1), "steps": 1, "batch_size": 10}
AT = tuple({"w": tensor(w)} for w in (0.0, 5.0, 10.0))


def played(method: Any, data: Federation = DATA, models: tuple[Params, ...] = AT) -> Centres:
    rounds = Rounds(method, data, Local(), Seed(0), state=Centres(models, {}, ClusterResult({}, len(models), "")))
    rounds.play()
    return rounds.state


def where(state: Centres) -> list[float]:
    return [float(m["w"]) for m in state.models]


def test_clients_choose_by_the_mean_loss_of_their_rows():
    """For example client 2: 9 and 12 give (81 + 144)/2 = 112.5, (16 + 49)/2 = 32.5, (1 + 4)/2 = 2.5."""
    method, offer = IFCA(LOSS, **ONE_STEP), Offer(dict(enumerate(AT)), {}, -1)
    losses = [list(method.losses(offer, Client({}), DATA.site(c, 0)).values()) for c in DATA.ids]
    expected = [[1, 26, 101], [25.666667, 0.666667, 25.666667], [112.5, 32.5, 2.5], [6.5, 6.5, 56.5]]
    assert torch.tensor(losses).allclose(torch.tensor(expected))
    assert [method.best(offer, Client({}), DATA.site(c, 0)) for c in DATA.ids] == [0, 1, 2, 0]  # a tie: the lowest


def test_models_are_averaged_by_those_who_chose_them():
    """One step of 0.1 with gradient 2 (w - mean v): 0 -> 0 and 0 -> 0.5, mean 0.25; 5 -> 5; 10 -> 10 + 0.2 * 0.5."""
    state = played(IFCA(LOSS, **ONE_STEP))
    assert where(state) == pytest.approx([0.25, 5.0, 10.1], abs=1e-6)
    assert state.clusters.labels == {0: 0, 1: 1, 2: 2, 3: 0}
    assert (state.clusters.k, state.clusters.criterion) == (3, "lowest loss")


@pytest.mark.parametrize("waste", [{}, {"epochs": 7, "steps": None, "batch_size": 1}])
def test_gradients_are_divided_by_all_who_were_heard(waste):
    """0 + 0.1 * 5 / 4 = 0.125; 5; 10 + 0.1 * 1 / 4 = 10.025. How long clients train otherwise does not matter."""
    state = played(IFCAGradient(LOSS, **{**ONE_STEP, **waste}))
    assert where(state) == pytest.approx([0.125, 5.0, 10.025], abs=1e-6)


def test_a_model_that_nobody_chose_stays():
    far = (*AT[:2], {"w": tensor(1000.0)})
    for method in (IFCA(LOSS, **ONE_STEP), IFCAGradient(LOSS, **ONE_STEP)):
        state = played(method, models=far)
        assert where(state)[2] == 1000
        assert set(state.clusters.labels.values()) == {0, 1}


def test_the_loss_is_a_mean_over_rows_not_over_blocks():
    """(64 * 1 + 10) / 65 = 1.138462; with batches of 32, 32, 1 the mean of batch means would be 4."""
    v = torch.cat([torch.ones(64), tensor([10.0**0.5])])
    assert mean_loss(LOSS, {"w": tensor(0.0)}, site_of(x=torch.ones(65), v=v).train) == pytest.approx(74 / 65)
    blocks = site_of(x=torch.ones(513), v=torch.cat([torch.zeros(512), tensor([1.0])]))
    assert mean_loss(LOSS, {"w": tensor(0.0)}, blocks.train) == pytest.approx(1 / 513)


@dataclass(frozen=True, kw_only=True)
class SameStart(sketches.IFCA):
    """The short IFCA of the tests, beginning with the models of the long one."""

    other: Any = None

    def init_server(self, seed: Seed) -> sketches.Clusters:
        return sketches.Clusters(self.other.init_server(seed).models)


def test_it_is_what_the_sketch_computes():
    """Two ways of writing the same method: one short, with choices kept by clients; one on shared pieces."""
    method = IFCA(NET, n_clusters=3, cohort=fraction(0.75), **WORK)
    short = SameStart(base=method.base, clusters=3, other=method)
    data = LabelPermutation(permutations=((0, 1), (1, 0)))(TOY)
    near, far = last(method, data, rounds=4), last(short, data, rounds=4)
    for a, b in zip(near.state.models, far.state.models, strict=True):
        assert all(torch.equal(t, b[n]) for n, t in a.items())
    assert len(set(near.state.clusters.labels.values())) > 1


@pytest.mark.parametrize("clusters", [1, 2, 4])
def test_all_models_are_sent_and_counted(clusters):
    rounds = Rounds(IFCA(NET, n_clusters=clusters, **WORK), TOY, Local(), Seed(0))
    model = nbytes(rounds.state.models[0])
    for update in rounds.play().updates:
        assert clusters * model < update.bytes_down < clusters * (model + 700) + 700  # names, shapes and labels
        assert model < update.bytes_up < model + 1400


def test_with_heads_the_rest_is_common_and_sent_once():
    """A step of one client moves the common part for all clusters, its head for its own only."""
    method = IFCA(NET, n_clusters=3, heads=("head",), **WORK)
    rounds = Rounds(method, TOY, Local(), Seed(0))
    before = rounds.state
    assert before.models[0].keys() == pick(under("head"), NET.init(Seed(0))).keys()
    log = rounds.play()
    body, head = nbytes(before.common), nbytes(before.models[0])
    assert all(body + 3 * head < v.bytes_down < body + 3 * head + 2800 for v in log.updates)
    chosen = set(rounds.state.clusters.labels.values())
    for k in range(3):
        moved = any(not torch.equal(before.models[k][n], t) for n, t in rounds.state.models[k].items())
        assert moved is (k in chosen)
    # One cluster with a head apart is FedAvg: every part is averaged over everybody.
    one, avg = IFCA(NET, n_clusters=1, heads=("head",), **WORK), FedAvg(objective=NET, **WORK)
    a, b = last(one, TOY).state, last(avg, TOY).state
    assert all(torch.equal({**a.common, **a.models[0]}[n], t) for n, t in b.shared.items())


def test_gradients_of_one_cluster_are_one_full_step_of_fedavg():
    settings = {"optimizer": SGD(0.1), "steps": 1, "batch_size": 10**6}
    one = last(IFCAGradient(NET, n_clusters=1, **settings), TOY).state
    avg = last(FedAvg(objective=NET, aggregate=uniform_mean, **settings), TOY).state
    assert all(torch.equal(one.models[0][n], t) for n, t in avg.shared.items())


def test_votes_for_what_is_not_there_are_left_out():
    method = IFCA(LOSS, **ONE_STEP)
    state = Centres(AT, {}, ClusterResult({}, 3, ""))
    for cluster in (3, -1, True, 0.0):
        with pytest.raises(InputError, match="there is no cluster"):
            method.check(state, ClusterVote({"w": tensor(0.0)}, cluster))
    with pytest.raises(InputError, match="names differ"):
        method.check(state, ClusterVote({"v": tensor(0.0)}, 0))


def test_strange_settings_are_refused():
    with pytest.raises(InputError, match="n_clusters, must be at least 1, got 0"):
        IFCA(LOSS, n_clusters=0)
    with pytest.raises(InputError, match="starts must be 'updates' or 'seeds', got 'random'"):
        IFCA(LOSS, starts="random")
    with pytest.raises(InputError, match="no part 'tail'"):
        IFCA(NET, heads=("tail",))


def test_clients_never_heard_have_no_label_and_use_the_first_model():
    method = IFCA(NET, n_clusters=2, cohort=fraction(0.25), **WORK)
    state = last(method, TOY, rounds=1).state
    assert len(state.clusters.labels) == 1
    (heard,) = state.clusters.labels
    stranger = next(c for c in TOY.ids if c != heard)
    model = method.personal_model(method.down(state, stranger), Client({}))
    assert all(torch.equal(t, state.models[0][n]) for n, t in model.items())
    mine = method.personal_model(method.down(state, heard), Client({}))
    assert all(torch.equal(t, state.models[state.clusters.labels[heard]][n]) for n, t in mine.items())


def test_the_first_model_is_the_bases_and_the_others_are_fresh():
    method = IFCA(NET, n_clusters=3, **WORK)
    state, base = method.init_server(Seed(5)), FedAvg(objective=NET, **WORK).init_server(Seed(5))
    assert isinstance(base, Server)
    assert all(torch.equal(state.models[0][n], t) for n, t in base.shared.items())
    weights = [m["head.weight"] for m in state.models]
    assert not any(torch.equal(weights[i], weights[j]) for i, j in ((0, 1), (0, 2), (1, 2)))


def test_starts_from_updates_take_one_pass_of_everybody():
    """n_clusters models, each the first model after one pass of some client; everybody gets the nearest as a label."""
    method = IFCA(NET, n_clusters=2, starts="updates", **{**WORK, "cohort": fraction(0.5)})
    rounds = Rounds(method, TOY, Local(), Seed(0))
    assert len(rounds.state.models) == 1
    assert method.plan(rounds.state, 0) == ("starts", "train")
    log = rounds.play()
    assert [v.exchange for v in log.updates] == ["starts"] * 4 + ["train"] * 2
    assert rounds.state.clusters.labels.keys() == set(TOY.ids)
    assert method.plan(rounds.state, 1) == ("train",)
    once = method.exchanges()[1]
    site = TOY.site(0, 0)
    trained = once.work.run(method.down(method.init_server(Seed(0)), 0), Client({}), site, Context(0, 0, Seed(0)))[3]
    assert trained.steps == -(-site.samples // WORK["batch_size"])  # one pass, although training makes two
    assert replace(method, n_clusters=1).plan(method.init_server(Seed(0)), 0) == ("train",)
