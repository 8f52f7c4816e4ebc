"""FedDrift: when a client drifts, when clusters merge, and a federation whose half changes its labels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import tensor

from fedquilt.core.exchange import Context, Reply
from fedquilt.core.seed import Seed
from fedquilt.data import IID, Federation, LabelPermutation, Stream
from fedquilt.engines.local import Local
from fedquilt.errors import InputError
from fedquilt.methods.clustered.feddrift import DriftVote, DriftWatch, FedDrift
from fedquilt.methods.clustered.starts import Centres
from fedquilt.pieces.clustering.result import ClusterResult
from fedquilt.pieces.optimizers import SGD
from fedquilt.rounds.rounds import Rounds
from helpers.quadratic import LOSS, at, federation, place
from helpers.toy import linear

TURN = Context(0, None, Seed(0), 3)


def before(*models: Any) -> Centres:
    return Centres(models, {}, ClusterResult({}, len(models), ""))


def visited(
    method: Any, state: Centres, client: DriftWatch, point: tuple[float, float]
) -> tuple[DriftWatch, DriftVote]:
    source = federation({0: point})
    return method.exchanges()[0].work(method.down(state, 0), client, source.site(0, 0), Context(0, 0, Seed(0)))


def test_a_client_drifts_when_its_best_loss_has_risen_often_enough():
    """Losses |w - c|^2 / 2 at w = 0: c = [1, 0] gives .5, c = [2, 0] gives 2 (more than .5 + .5)."""
    state = before(at(0, 0))
    method = FedDrift(LOSS, delta=0.5, patience=2)
    client, report = visited(method, state, method.init_client(Seed(0)), (1, 0))
    assert (client.lowest, client.strikes, report.drifted) == (0.5, 0, False)
    client, report = visited(method, state, client, (2, 0))
    assert (client.lowest, client.strikes, report.drifted) == (0.5, 1, False)
    well, _ = visited(method, state, client, (1, 0))
    assert (well.lowest, well.strikes) == (0.5, 0)  # a single bad client update is forgiven
    client, report = visited(method, state, client, (2, 0))
    assert (client.lowest, client.strikes, report.drifted) == (None, 0, True)
    hasty, report = visited(replace(method, patience=1), state, DriftWatch({}, 0.5, 0), (2**0.5, 0))
    assert not report.drifted  # by .5 exactly: not by more
    assert hasty.lowest == pytest.approx(1.0)


def test_another_model_that_fits_is_no_drift():
    method = FedDrift(LOSS, delta=0.5)
    client, report = visited(method, before(at(0, 0), at(2, 0)), DriftWatch({}, 0.5, 0), (2, 0))
    assert (report.cluster, report.drifted, client.lowest) == (1, False, 0.0)
    assert report.losses["loss"].tolist() == [2, 0]


def told(
    client: int, cluster: int, losses: list[float], end: Any, start: Any, drifted: bool = False
) -> Reply[DriftVote]:
    delta = {n: t - start[n] for n, t in end.items()}
    return Reply(client, 1, DriftVote(delta, cluster, {"loss": tensor(losses, dtype=torch.float64)}, drifted))


def test_who_drifts_opens_a_cluster_with_the_model_it_trained():
    state = before(at(0, 0))
    replies = [
        told(0, 0, [0.1], at(1, 0), at(0, 0)),
        told(1, 0, [9.0], at(0, 5), at(0, 0), True),
        told(2, 0, [9.0], at(0, 7), at(0, 0), True),
    ]
    after = FedDrift(LOSS).up(state, replies, TURN)
    assert [place(m) for m in after.models] == [[1, 0], [0, 5], [0, 7]]
    assert after.clusters.labels == {0: 0, 1: 1, 2: 2}
    assert after.clusters.k == 3
    full = FedDrift(LOSS, most=2).up(state, replies, TURN)  # the second one must stay
    assert [place(m) for m in full.models] == [[0.5, 3.5], [0, 5]]
    assert full.clusters.labels == {0: 0, 1: 1, 2: 0}


def test_clusters_that_serve_each_other_merge():
    """L = [[.1, 2, 2.2], [3, .2, .4], [3, .5, .3]]: d(1, 2) = max(.4 - .3, .5 - .2) = .3, the others about 2."""
    models = (at(0, 0), at(4, 0), at(6, 0))
    columns = [[0.1, 3.0, 3.0], [2.0, 0.2, 0.5], [2.2, 0.4, 0.3]]
    replies = [told(c, c, columns[c], models[c], models[c]) for c in range(3)]
    after = FedDrift(LOSS, delta=0.31).up(before(*models), replies, TURN)
    assert [place(m) for m in after.models] == [[0, 0], [5, 0]]
    assert after.clusters.labels == {0: 0, 1: 1, 2: 1}
    apart = FedDrift(LOSS, delta=0.29).up(before(*models), replies, TURN)
    assert len(apart.models) == 3
    known = replace(before(*models), clusters=ClusterResult({2: 2}, 3, ""))
    unheard = FedDrift(LOSS, delta=0.31).up(known, replies[:2], TURN)
    assert len(unheard.models) == 3  # nothing is known of the rows in cluster 2
    empty = FedDrift(LOSS, delta=0.31).up(before(*models), replies[:2], TURN)
    assert [place(m) for m in empty.models] == [[0, 0], [4, 0]]  # nobody is in cluster 2: it is closed


def test_half_of_the_clients_change_their_labels_and_get_a_model_of_their_own():
    """Two classes in the plane; from round 3 on, clients 1, 3, 5 have them exchanged."""
    draw = torch.Generator().manual_seed(3)
    y = torch.arange(240) % 2
    x = torch.randn(240, 2, generator=draw) + 3.0 * y[:, None]
    old = Federation.from_arrays(x, y, partition=IID(), clients=6, standardise=None)
    new = LabelPermutation(permutations=((0, 1), (1, 0)))(old)
    method = FedDrift(linear(), optimizer=SGD(0.3), batch_size=10, epochs=2, delta=0.5)
    rounds = Rounds(method, Stream.drift(old, new, at=3), Local(), Seed(0))
    sizes = []
    for _ in range(7):
        rounds.play()
        sizes.append(rounds.state.clusters.k)
    assert sizes[:3] == [1, 1, 1]
    assert sizes[-1] == 2
    labels = rounds.state.clusters.labels
    assert labels[0] == labels[2] == labels[4] != labels[1] == labels[3] == labels[5]


def test_strange_settings_are_refused():
    with pytest.raises(InputError, match="delta >= 0, patience >= 1"):
        FedDrift(LOSS, patience=0)
    with pytest.raises(InputError, match="should be"):
        FedDrift(LOSS).check(before(at(0, 0)), DriftVote(at(0, 0), 0, {"loss": torch.zeros(2)}, False))
