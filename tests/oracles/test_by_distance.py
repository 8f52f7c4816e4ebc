"""FeSEM, CGPFL and LCFed worked by hand on points in the plane, and what they all reduce to."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import tensor

from fedquilt.core.exchange import Context, Reply, fraction
from fedquilt.core.net import Net
from fedquilt.core.objective import Objective
from fedquilt.core.params import nbytes, sub
from fedquilt.core.seed import Seed
from fedquilt.engines.local import Local
from fedquilt.errors import ExchangeError, InputError
from fedquilt.methods.clustered.by_distance import PlacedCentres
from fedquilt.methods.clustered.cgpfl import CGPFL
from fedquilt.methods.clustered.feddrift import FedDrift
from fedquilt.methods.clustered.fesem import FeSEM, Remembering
from fedquilt.methods.clustered.ifca import IFCA
from fedquilt.methods.clustered.lcfed import LCFed, Projected
from fedquilt.methods.clustered.starts import ClusterVote
from fedquilt.methods.fedavg import FedAvg
from fedquilt.pieces.aggregators import uniform_mean
from fedquilt.pieces.clustering.result import ClusterResult
from fedquilt.pieces.objectives import prox
from fedquilt.pieces.optimizers import SGD
from fedquilt.rounds.rounds import Rounds
from helpers.quadratic import LOSS, at, federation, place
from helpers.toy import Normed, OneWeight, last, points, site_of, squared_error, trained

TURN = Context(0, None, Seed(0), 5)
MODELS = [at(0, 0), at(1, 0), at(4, 4), at(5, 4), at(9, 0)]
CENTRES = (at(0, 1), at(4, 5), at(8, 0))


def before(centres: Any = CENTRES, labels: Any = (0, 0, 0, 0, 0), **more: Any) -> Remembering:
    clusters = ClusterResult(dict(enumerate(labels)), len(centres), "")
    return Remembering(tuple(centres), {}, clusters, at(0, 0), more.get("idle", {}), more.get("last", {}))


def replies(state: Any, models: Any = MODELS, samples: Any = (1, 1, 1, 1, 1)) -> list[Reply[ClusterVote]]:
    """Each client trained the model of its cluster and ended at ``models``."""
    labels = state.clusters.labels
    return [
        Reply(c, n, ClusterVote(sub(m, state.models[labels[c]]), labels[c]))
        for c, (m, n) in enumerate(zip(models, samples, strict=True))
        if m is not None
    ]


def objective(state: Any, models: Any = MODELS) -> float:
    """sum_i |w_i - W_{r_i}|^2"""
    labels = state.clusters.labels
    return sum(
        (tensor(place(m)) - tensor(place(state.models[labels[c]]))).square().sum().item() for c, m in enumerate(models)
    )


# FeSEM


def test_fesem_assigns_then_averages():
    """[0,0],[1,0] -> [.5,0]; [4,4],[5,4] -> [4.5,4]; [9,0]. Objective 1+2+1+2+1 = 7, then 4 * .25 = 1."""
    method, state = FeSEM(LOSS), before()
    assert method.rule.regroup(state, replies(state)) == {0: 0, 1: 0, 2: 1, 3: 1, 4: 2}
    after = method.up(state, replies(state), TURN)
    assert [place(m) for m in after.models] == [[0.5, 0], [4.5, 4], [9, 0]]
    assert after.clusters.labels == {0: 0, 1: 0, 2: 1, 3: 1, 4: 2}
    assert objective(before(labels=(0, 0, 1, 1, 2))) == 7
    assert objective(after) == 1


def test_fesem_weighs_by_samples():
    state = before()
    after = FeSEM(LOSS).up(state, replies(state, samples=(10, 30, 20, 20, 5)), TURN)
    assert place(after.models[0]) == [0.75, 0]
    even = FeSEM(LOSS, aggregate=uniform_mean).up(state, replies(state, samples=(10, 30, 20, 20, 5)), TURN)
    assert place(even.models[0]) == [0.5, 0]


def test_a_centre_that_nobody_is_near_stays_put():
    state = before((*CENTRES[:2], at(100, 100)))
    after = FeSEM(LOSS).up(state, replies(state), TURN)
    assert after.clusters.labels == {0: 0, 1: 0, 2: 1, 3: 1, 4: 1}
    assert place(after.models[2]) == [100, 100]
    assert (after.idle, after.clusters.k) == ({2: 1}, 3)


def test_an_empty_cluster_starts_anew_after_some_rounds():
    """Averages are [.5, 0] and [6, 8/3]; the farthest from its own is [9, 0], 9 + 7.1 away."""
    method, state = FeSEM(LOSS, reseed_after=2), before((*CENTRES[:2], at(100, 100)))
    once = method.up(state, replies(state), TURN)
    assert once.idle == {2: 1}
    twice = method.up(once, replies(once), TURN)
    assert twice.clusters.labels == {0: 0, 1: 0, 2: 1, 3: 1, 4: 2}
    assert place(twice.models[2]) == [9, 0]
    assert twice.idle == {}


coordinates = st.integers(-20, 20).map(lambda n: n / 4)
places = st.tuples(coordinates, coordinates).map(lambda p: at(*p))


@settings(max_samples=40, deadline=None)
@given(
    models=st.lists(places, min_size=5, max_size=5), centres=st.lists(places, min_size=1, max_size=4), data=st.data()
)
def test_neither_step_of_fesem_increases_the_objective(models, centres, data):
    labels = data.draw(st.lists(st.integers(0, len(centres) - 1), min_size=5, max_size=5))
    method, state = FeSEM(LOSS, aggregate=uniform_mean), before(centres, labels)
    assigned = before(centres, list(method.rule.regroup(state, replies(state, models)).values()))
    after = method.up(state, replies(state, models), TURN)
    assert objective(assigned, models) <= objective(state, models) + 1e-4
    assert objective(after, models) <= objective(assigned, models) + 1e-4
    assert set(after.clusters.labels) == set(range(5))
    assert set(after.clusters.labels.values()) <= set(range(len(centres)))


def test_memory_averages_the_members_that_were_not_heard():
    """Round 2 hears client 0 alone, at [2, 0]: with client 1's last model [1, 0] the centre is [1.5, 0]."""
    state, alone = before(), [at(2, 0), None, None, None, None]
    kept, lost = FeSEM(LOSS, memory=True), FeSEM(LOSS)
    first, plain = kept.up(state, replies(state), TURN), lost.up(state, replies(state), TURN)
    assert [place(m) for m in first.models] == [place(m) for m in plain.models]
    second = kept.up(first, replies(first, alone), TURN)
    assert [place(m) for m in second.models] == [[1.5, 0], [4.5, 4], [9, 0]]
    assert place(lost.up(plain, replies(plain, alone), TURN).models[0]) == [2, 0]
    assert second.clusters.labels == first.clusters.labels
    assert [place(k.model) for k in second.last.values()] == [[2, 0], *map(place, MODELS[1:])]
    assert plain.last == {}


def test_a_client_is_sent_its_own_model_only_and_all_of_them_when_unknown():
    method, state = FeSEM(LOSS), before(labels=(0, 0, 1, 1))
    assert method.down(state, 2).models == {1: CENTRES[1]}
    assert list(method.down(state, 4).models) == [0, 1, 2]
    data = federation({4: (7.0, 1.0)})
    job = method.start(method.down(state, 4), method.init_client(Seed(0)), data.site(4, 0), TURN)
    assert job.memo == 2  # |[7, 1] - [8, 0]|^2 is the lowest
    assert place(method.newcomer_model(method.down(state, 4), method.init_client(Seed(0)), data.site(4, 0), TURN)) == [
        8,
        0,
    ]


# CGPFL


def test_cgpfl_pulls_to_the_model_of_the_context():
    """c = 4, from W = 1, mu = 1, lr = .1: w* = 2.5, w_E = 2.5 - 1.5 * .8^E; without the pull 4 - 3 * .9^E."""
    data = federation({0: (4.0, 4.0)})
    for mu, expected in ((1.0, 2.5 - 1.5 * 0.8**3), (0.0, 4 - 3 * 0.9**3)):
        method = CGPFL(LOSS, n_clusters=1, mu=mu, optimizer=SGD(0.1), steps=3)
        clusters = ClusterResult({0: 0}, 1, "")
        rounds = Rounds(method, data, Local(), Seed(0), state=PlacedCentres((at(1, 1),), {}, clusters, at(1, 1), {}))
        rounds.play()
        assert place(rounds.state.models[0]) == pytest.approx([expected] * 2, abs=1e-6)


def test_cgpfl_by_cosine_compares_ways_from_the_first_model():
    """From [0, 0], [5, 4] points to [4, 5] (cosine 40/41), not to [8, 0] (0.78); by distance too. [9, 9] is nearer
    to [4, 5] both ways; but [1, 2] (distances 2, 18, 53) points to [0, 1] with 0.894, to [4, 5] with 0.978."""
    state = before(labels=(0,))
    for metric, expected in (("squared", 0), ("cosine", 1)):
        method = CGPFL(LOSS, metric=metric)
        assert method.rule.regroup(state, replies(state, [at(1, 2)], [1])) == {0: expected}
        assert method.rule.criterion == f"nearest model, {metric}"
    moved = Remembering(*(getattr(state, n) for n in ("models", "common", "clusters")), at(0, 2), {}, {})
    assert CGPFL(LOSS, metric="cosine").rule.regroup(moved, replies(moved, [at(0.1, 1)], [1])) == {
        0: 0
    }  # straight down


# LCFed


@pytest.mark.parametrize(
    ("lam", "expected"), [(0.0, (0.5, 0.9, 1.22)), (2.0, (0.9, 1.44, 1.764))]
)  # towards 2.5 and 2.25
def test_lcfed_pulls_to_both(lam, expected):
    """c = 4, W = 1, mu = 1, Phi = 2, lr = .1, from 0: w <- w - .1 ((w - 4) + (w - 1) + lam (w - 2))."""
    loss = Objective(Net.of(OneWeight), (squared_error, *lcfed_terms(1.0, lam)))
    for steps, w in enumerate(expected, 1):
        site, fixed = site_of(x=[1.0], y=[4.0]), {"start": {"w": tensor(1.0)}, "embedding": {"w": tensor(2.0)}}
        assert float(descended(loss, site, fixed, steps)["w"]) == pytest.approx(w, abs=1e-6)


def lcfed_terms(mu: float, lam: float) -> tuple[Any, ...]:
    """The terms that the method adds."""
    return LCFed(LOSS, mu=mu, lam=lam).objective.terms[-2:]


def descended(loss: Objective, site: Any, fixed: Any, steps: int) -> Any:
    def pulled(out: Any, params: Any, given: Any, batch: Any) -> Any:
        return sum(term(out, params, {**given, **fixed}, batch) for term in loss.terms)

    return trained(Objective(loss.net, (pulled,)), {"w": tensor(0.0)}, site, lr=0.1, steps=steps).params


def test_lcfed_regroups_by_few_directions_and_averages_the_embedding_over_all():
    """One pass, lr .5, from [0, 0] to c/2: [2,0],[2.2,0],[0,2],[0,2.2]. The first direction is [1,-1]/sqrt 2."""
    data = federation({0: (4.0, 0.0), 1: (4.4, 0.0), 2: (0.0, 4.0), 3: (0.0, 4.4)})
    for dimensions in (1, 2, 50):
        method = LCFed(LOSS, n_clusters=2, mu=0.0, lam=0.0, dimensions=dimensions, optimizer=SGD(0.5))
        rounds = Rounds(method, data, Local(), Seed(0))
        rounds.play()
        state: Projected = rounds.state
        labels = state.clusters.labels
        assert labels[0] == labels[1] != labels[2] == labels[3]
        assert state.clusters.measures == {"dimensions": min(dimensions, 2)}
        first = state.directions[:, 0]
        assert first.abs().tolist() == pytest.approx([0.5**0.5] * 2, abs=1e-6)
        local = [place(m) for m in state.models]  # averages of two members each
        assert float(state.embedding["body.0"]) == pytest.approx((local[0][0] + local[1][0]) / 2)
        assert list(state.embedding) == ["body.0"]


def test_lcfed_sends_the_embedding_too():
    method = LCFed(Net(partial(Normed, features=2, classes=2, width=50)), n_clusters=2)
    rounds = Rounds(method, points(8, 9, 10), Local(), Seed(0))
    rounds.play()
    model, phi = nbytes(rounds.state.models[0]), nbytes(rounds.state.embedding)
    assert 0 < phi < model
    assert all(model + phi < v.bytes_down < model + phi + 2500 for v in rounds.play().updates)


def test_lcfed_needs_models_that_differ():
    data = federation({0: (4.0, 0.0), 1: (4.0, 0.0), 2: (4.0, 0.0)})
    with pytest.raises(ExchangeError, match="vectors do not differ"):
        last(LCFed(LOSS, n_clusters=2), data, rounds=1)
    with pytest.raises(InputError, match="dimensions >= 1"):
        LCFed(LOSS, dimensions=0)


# All of them

NORMED = Net(partial(Normed, features=2, classes=2, width=4))
DATA = points(30, 20, 40, 25)
WORK: dict[str, Any] = {"optimizer": SGD(0.1), "batch_size": 17, "epochs": 2}
ALONE = {
    "ifca": IFCA(NORMED, n_clusters=1, cohort=fraction(0.5), **WORK),
    "fesem": FeSEM(NORMED, n_clusters=1, cohort=fraction(0.5), **WORK),
    "cgpfl": CGPFL(NORMED, n_clusters=1, mu=0.0, cohort=fraction(0.5), **WORK),
    "cgpfl-cosine": CGPFL(NORMED, n_clusters=1, mu=0.0, metric="cosine", cohort=fraction(0.5), **WORK),
    "lcfed": LCFed(NORMED, n_clusters=1, mu=0.0, lam=0.0, cohort=fraction(0.5), **WORK),
    "feddrift": FedDrift(NORMED, cohort=fraction(0.5), **WORK),
}


@pytest.mark.parametrize("name", ALONE)
def test_one_cluster_without_pulls_is_fedavg_bit_for_bit(name):
    plain = last(FedAvg(objective=NORMED, cohort=fraction(0.5), **WORK), DATA, rounds=3).state.shared
    (model,) = last(ALONE[name], DATA, rounds=3).state.models
    assert model.keys() == plain.keys()
    assert all(torch.equal(model[n], t) for n, t in plain.items())


def test_memory_with_everybody_in_one_cluster_is_fedavg_bit_for_bit():
    plain = last(FedAvg(objective=NORMED, **WORK), DATA, rounds=3).state.shared
    (model,) = last(FeSEM(NORMED, n_clusters=1, memory=True, **WORK), DATA, rounds=3).state.models
    assert all(torch.equal(model[n], t) for n, t in plain.items())


EVERY = {"ifca": IFCA, "fesem": FeSEM, "cgpfl": CGPFL, "lcfed": LCFed}


@pytest.mark.parametrize("name", EVERY)
def test_one_client_and_many_clusters(name):
    """Its model is the only start; the others stay at the first model, and nobody is there."""
    options = {"starts": "updates"} if name == "ifca" else {}
    state = last(EVERY[name](LOSS, n_clusters=3, **options), federation({5: (4.0, 1.0)}), rounds=3).state
    assert list(state.clusters.labels) == [5]
    assert len(state.models) == 3


@pytest.mark.parametrize("name", ["ifca", "fesem", "cgpfl"])
def test_clients_that_do_not_move_share_one_start(name):
    """All updates zero: one distinct start, and ties go to cluster 0."""
    data = federation(dict.fromkeys(range(4), (0.0, 0.0)))
    state = last(EVERY[name](LOSS, n_clusters=3, starts="updates"), data, rounds=2).state
    assert state.clusters.labels == dict.fromkeys(range(4), 0)
    assert [place(m) for m in state.models] == [[0, 0]] * 3


@pytest.mark.parametrize("name", EVERY)
def test_planted_points_are_found(name):
    """Three groups of four around [6, 0], [-3, 5], [-3, -5], half of the clients a round."""
    middle = [(6.0, 0.0), (-3.0, 5.0), (-3.0, -5.0)]
    data = federation({i: (middle[i % 3][0] + 0.01 * i, middle[i % 3][1]) for i in range(12)})
    options = {"starts": "updates"} if name == "ifca" else {}
    method = EVERY[name](LOSS, n_clusters=3, optimizer=SGD(0.3), steps=2, cohort=fraction(0.5), **options)
    labels = last(method, data, rounds=6).state.clusters.labels
    assert [labels[i] for i in range(12)] == [labels[i % 3] for i in range(12)]
    assert len(set(labels.values())) == 3


def test_negative_settings_are_refused():
    with pytest.raises(InputError, match="reseed_after must be 0"):
        FeSEM(LOSS, reseed_after=-1)
    with pytest.raises(InputError, match="mu >= 0"):
        CGPFL(LOSS, mu=-1.0)
    with pytest.raises(InputError, match="metric must be one of squared, cosine"):
        CGPFL(LOSS, metric="manhattan")
    with pytest.raises(InputError, match="mu >= 0"):
        LCFed(LOSS, lam=-1.0)


def test_a_pull_may_lead_to_other_names():
    """prox(2, 'embedding') pulls only what is there: 2/2 * (3 - 1)^2."""
    params = {"w": tensor(3.0, requires_grad=True), "v": tensor(9.0, requires_grad=True)}
    assert prox(2.0, "embedding")(tensor(0.0), params, {"embedding": {"w": tensor(1.0)}}, None).item() == 4
