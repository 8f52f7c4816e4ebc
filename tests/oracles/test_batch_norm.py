"""BatchNorm over unlike clients: running statistics are averaged over all of them, or stay at home as declared.

One batch moves them to 0.9 * before + 0.1 * the batch's mean (variance: with n - 1), so all is known by hand.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedquilt.core.net import Net
from fedquilt.core.params import Parts, everything_but, under
from fedquilt.core.table import Batch
from fedquilt.data import Federation
from fedquilt.methods.fedavg import FedAvg
from fedquilt.methods.personalised.fedbn import FedBN
from fedquilt.pieces.aggregators import uniform_mean
from fedquilt.pieces.optimizers import SGD
from helpers.toy import last

SIZES = (4, 6, 10)
X = [np.random.default_rng(k).normal(3.0 * k, 1.0 + k, (n, 2)).astype(np.float32) for k, n in enumerate(SIZES)]
DATA = Federation.from_clients(
    {k: (x, np.arange(len(x)) % 2) for k, x in enumerate(X)}, test=0, valid=0, standardise=None
)
STATISTICS = ("bn.running_mean", "bn.running_var")


class Scaled(nn.Module):
    """The layer sees the inputs themselves, so its statistics do not depend on what is learned."""

    def __init__(self) -> None:
        super().__init__()
        self.bn = nn.BatchNorm1d(2)
        self.head = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores."""
        return self.head(self.bn(x))


NET = Net(Scaled)
WORK = {"optimizer": SGD(0.1), "batch_size": 100}


def after_a_update(k, mean, var):
    """A client's statistics after one batch of all its rows."""
    return 0.9 * mean + 0.1 * X[k].mean(0), 0.9 * var + 0.1 * X[k].var(0, ddof=1)


@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize(("aggregate", "shares"), [(None, np.array(SIZES) / 20), (uniform_mean, np.full(3, 1 / 3))])
def test_shared_statistics_are_the_mean_over_all_clients(rounds, aggregate, shares):
    mean, var = np.zeros(2), np.ones(2)
    for _ in range(rounds):
        updates = [after_a_update(k, mean, var) for k in range(3)]
        mean, var = (sum(s * v[i] for s, v in zip(shares, updates, strict=True)) for i in range(2))
    method = FedAvg(objective=NET, **WORK, **({} if aggregate is None else {"aggregate": aggregate}))
    shared = last(method, DATA, rounds=rounds).state.shared
    assert shared["bn.running_mean"].tolist() == pytest.approx(mean, rel=1e-5)
    assert shared["bn.running_var"].tolist() == pytest.approx(var, rel=1e-5)
    assert int(shared["bn.num_batches_tracked"]) == rounds  # the largest, never a mean
    first = after_a_update(0, np.zeros(2), np.ones(2))[0]
    assert not np.allclose(shared["bn.running_mean"], first, rtol=0.1)  # not those of whoever came first


@pytest.mark.parametrize(
    "method",
    [
        FedBN(NET, **WORK),
        FedAvg(objective=NET, parts=Parts(everything_but(under(*STATISTICS)), under(*STATISTICS)), **WORK),
    ],
    ids=["fedbn", "statistics only"],
)
def test_private_statistics_are_each_clients_own_and_never_travel(method):
    snapshot = last(method, DATA, rounds=3)
    assert not set(STATISTICS) & snapshot.state.shared.keys()
    for k in range(3):
        mean, var = np.zeros(2), np.ones(2)
        for _ in range(3):
            mean, var = after_a_update(k, mean, var)
        model = snapshot.personal_model(k)
        assert model["bn.running_mean"].tolist() == pytest.approx(mean, rel=1e-5)
        assert model["bn.running_var"].tolist() == pytest.approx(var, rel=1e-5)
    assert ("bn.weight" in snapshot.state.shared) == (method.parts.shared("bn.weight"))


def test_the_averaged_statistics_are_used_where_the_model_is_scored():
    model = last(FedAvg(objective=NET, **WORK), DATA, rounds=1).state.shared
    x = torch.from_numpy(X[1])
    mean, var = model["bn.running_mean"], model["bn.running_var"]
    expected = ((x - mean) / (var + 1e-5).sqrt() * model["bn.weight"] + model["bn.bias"]) @ model["head.weight"].T
    found = NET(model, Batch({"x": x}))
    assert torch.allclose(found, expected + model["head.bias"], atol=1e-5)
