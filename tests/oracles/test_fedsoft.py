"""FedSoft worked by hand: two classes, logits that do not look at the input."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn, tensor

from fedquilt.core.exchange import Context, Reply, fraction
from fedquilt.core.net import Net
from fedquilt.core.objective import Objective
from fedquilt.core.params import sub
from fedquilt.core.seed import Seed
from fedquilt.data import Federation
from fedquilt.engines.local import Local
from fedquilt.errors import InputError
from fedquilt.methods.clustered.fedsoft import FedSoft, Shares, Soft
from fedquilt.methods.clustered.starts import Offer
from fedquilt.methods.fedavg import Owner, Upload
from fedquilt.pieces.clustering.result import ClusterResult
from fedquilt.pieces.optimizers import SGD
from fedquilt.rounds.rounds import Rounds
from helpers.toy import squared_error


class Bias(nn.Module):
    """Two scores, whatever the input."""

    def __init__(self) -> None:
        super().__init__()
        self.b = nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        """The same for every row."""
        return self.b.expand(len(x), 2)


def data(*labels: list[int]) -> Federation:
    y = tensor([v for rows in labels for v in rows])
    ends = torch.tensor([len(rows) for rows in labels]).cumsum(0).tolist()
    rows = {c: {"train": list(range(end - len(labels[c]), end))} for c, end in enumerate(ends)}
    return Federation.from_rows({"x": torch.zeros(len(y), 1), "y": y}, rows, classes=2)


ZERO, ONE = {"b": tensor([1.0, 0.0])}, {"b": tensor([0.0, 1.0])}  # the first fits label 0 best, the second label 1
TURN = Context(0, None, Seed(0), 4)


def before(shares: Any = None, sizes: Any = None, asked: Any = ()) -> Soft:
    wide = {c: tensor(u, dtype=torch.float64) for c, u in (shares or {}).items()}
    return Soft((ZERO, ONE), {}, ClusterResult({}, 2, ""), wide, sizes or {}, asked)


def test_shares_are_of_the_rows_that_a_model_fits_best():
    method, source = FedSoft(Net(Bias), n_clusters=2), data([0, 0, 0, 1], [1, 1])
    offer = Offer({0: ZERO, 1: ONE}, {}, -1)
    found = [method.estimate(offer, Owner({}, {}), source.site(c, 0), TURN)[1].values["share"] for c in (0, 1)]
    assert [s.tolist() for s in found] == [[0.75, 0.25], [0, 1]]
    same = method.estimate(Offer({0: ZERO, 1: ZERO}, {}, -1), Owner({}, {}), source.site(0, 0), TURN)[1]
    assert same.values["share"].tolist() == [1, 0]  # ties: the lowest number


def test_a_share_of_nothing_is_smoothed():
    """0 -> 0.0001, then both over 1.0001."""
    method = FedSoft(Net(Bias), n_clusters=2)
    told = [Reply(3, 7, Shares({"share": tensor([0.0, 1.0], dtype=torch.float64)}))]
    after = method.weigh(before(), told, TURN)
    assert after.shares[3].tolist() == pytest.approx([0.0001 / 1.0001, 1 / 1.0001])
    assert (after.sizes, after.clusters.labels) == ({3: 7}, {3: 1})


def test_what_is_sent_is_the_mixture_by_shares():
    """.75 [1, 0] + .25 [0, 1]; even shares for a client that was never heard."""
    method, state = FedSoft(Net(Bias), n_clusters=2), before({0: [0.75, 0.25]})
    assert method.mixture(state, 0).shared["b"].tolist() == pytest.approx([0.75, 0.25])
    assert method.mixture(state, 9).shared["b"].tolist() == pytest.approx([0.5, 0.5])


def test_the_pull_to_the_mixture_is_the_pull_to_all_models_by_shares():
    """d/dw lam/2 (.75 |w - 1|^2 + .25 |w - 5|^2) = lam (w - 2): the gradient of lam/2 |w - 2|^2."""
    w = tensor(4.0, requires_grad=True)
    (gradient,) = torch.autograd.grad(0.3 / 2 * (0.75 * (w - 1) ** 2 + 0.25 * (w - 5) ** 2), w)
    loss = FedSoft(Objective(Net(Bias), (squared_error,)), lam=0.3).objective
    (found,) = torch.autograd.grad(loss.terms[-1](w, {"w": w}, {"start": {"w": tensor(2.0)}}, None), w)
    assert float(found) == pytest.approx(float(gradient))
    assert float(found) == pytest.approx(0.6)


def heard(method: Any, state: Soft, models: dict[int, list[float]], rows: int = 1) -> list[Reply[Upload]]:
    return [Reply(c, rows, Upload(sub({"b": tensor(m)}, method.mixture(state, c).shared))) for c, m in models.items()]


def test_if_everybody_is_asked_models_are_means_by_shares_and_sizes():
    """W_0 = (.75 * 1 * [4, 0] + .25 * 3 * [0, 8]) / 1.5 = [2, 4]; W_1 = (.25 [4, 0] + 2.25 [0, 8]) / 2.5."""
    method, state = FedSoft(Net(Bias), n_clusters=2), before({0: [0.75, 0.25], 1: [0.25, 0.75]}, {0: 1, 1: 3})
    replies = heard(method, state, {0: [4.0, 0.0]}) + heard(method, state, {1: [0.0, 8.0]}, rows=3)
    after = method.soften(state, replies, TURN)
    assert [m["b"].tolist() for m in after.models] == [
        pytest.approx([2, 4], abs=1e-6),
        pytest.approx([0.4, 7.2], abs=1e-6),
    ]


def test_clusters_average_whom_they_asked_evenly_and_stay_if_nobody_answers():
    method, state = FedSoft(Net(Bias), n_clusters=2), before(asked=((0, 1), (2,)))
    assert list(method.whom(state, [0, 1, 2, 3], Seed(0))) == [0, 1, 2]
    replies = heard(method, state, {0: [4.0, 0.0], 1: [0.0, 8.0]}, rows=5)
    after = method.soften(state, replies, TURN)
    assert after.models[0]["b"].tolist() == pytest.approx([2, 4], abs=1e-6)
    assert after.models[1] is ONE


def test_each_cluster_draws_by_shares_as_many_as_the_cohort_asks():
    """Half of four clients; two have all their rows in cluster 0, two in cluster 1 (and 0.0001 elsewhere)."""
    method = FedSoft(Net(Bias), n_clusters=2, cohort=fraction(0.5), lam=0.0, optimizer=SGD(0.1), starts="seeds")
    source = data([0] * 5, [0] * 5, [1] * 5, [1] * 5)
    rounds = Rounds(method, source, Local(), Seed(0), state=before())
    log = rounds.play()
    assert [v.exchange for v in log.updates] == ["estimate"] * 4 + ["train"] * 4
    assert [set(group) for group in rounds.state.asked] == [{0, 1}, {2, 3}]
    assert rounds.state.clusters.labels == {0: 0, 1: 0, 2: 1, 3: 1}
    assert [v.exchange for v in rounds.play().updates] == ["train"] * 4  # shares are estimated in every second round
    assert [v.exchange for v in rounds.play().updates] == ["estimate"] * 4 + ["train"] * 4


def test_clients_go_on_with_their_own_models():
    method = FedSoft(Net(Bias), n_clusters=2, optimizer=SGD(0.1))
    download = method.mixture(before(), 0)
    own = {"b": tensor([3.0, 3.0])}
    job = method.go_on(download, Owner({}, own), data([0]).site(0, 0), TURN)
    assert job.params == own
    assert job.fixed["start"] is download.shared
    assert method.personal_model(download, Owner({}, own)) == own
    assert method.personal_model(download, Owner({}, {})) == download.shared


def test_bad_shares_and_settings_are_refused():
    method, state = FedSoft(Net(Bias), n_clusters=2), before()
    for share in ([0.5, 0.6], [-0.5, 1.5]):
        with pytest.raises(InputError, match="shares must not be negative and must sum to 1"):
            method.counted(state, Shares({"share": tensor(share, dtype=torch.float64)}))
    with pytest.raises(InputError, match="should be"):
        method.counted(state, Shares({"share": torch.ones(3, dtype=torch.float64) / 3}))
    with pytest.raises(InputError, match="every >= 1 and smoother > 0"):
        FedSoft(Net(Bias), every=0)
