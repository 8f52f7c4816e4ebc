"""BatchNorm: pairs of rows, declared statistics, and parameters that ``build`` froze itself."""

from __future__ import annotations

import torch
from torch import nn

from fedquilt import Context, Net, Objective, Seed
from fedquilt.core.table import Table
from fedquilt.core.train import Train
from fedquilt.pieces.objectives import cross_entropy
from fedquilt.pieces.optimizers import SGD
from helpers.toy import give_back, site_of, start_from


class Normed(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


class HalfFrozen(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(3, 4), nn.Linear(4, 2))
        self[0].requires_grad_(False)


def trained(net: Net, rows: int, batch: int):
    site = site_of(x=torch.randn(rows, 3, generator=Seed(1).torch()), y=torch.arange(rows) % 2)
    work = Train(start_from, Objective(net, (cross_entropy,)), give_back, SGD(0.1), batch_size=batch)
    start = net.init(Seed(0))
    return start, work.run(start, None, site, Context(0, "a", Seed(2)))[3]


def test_a_last_batch_of_one_row_joins_the_one_before_it() -> None:
    """9 rows in batches of 4 are 4 + 4 + 1 rows: two steps, the second of five rows."""
    _, done = trained(Net(Normed), 9, 4)
    assert done.steps == 2
    sizes = [len(b) for b in Table({"x": torch.zeros(9, 1)}).batches(4, 2, Seed(0), lone=False)]
    assert sizes == [4, 5, 4, 5]


def test_without_batch_norm_a_single_row_is_a_batch() -> None:
    _, done = trained(Net(HalfFrozen), 9, 4)
    assert done.steps == 3


def test_parameters_that_the_module_froze_stay() -> None:
    net = Net(HalfFrozen)
    before = {n: t.clone() for n, t in net.full({}).items()}
    start, done = trained(net, 8, 4)
    assert net.names == net.trainable == ("1.weight", "1.bias")
    assert before.keys() == {"0.weight", "0.bias"}
    assert all(torch.equal(t, net.full(done.params)[n]) for n, t in before.items())
    assert not torch.equal(start["1.weight"], done.params["1.weight"])


class Keeps(nn.Module):
    """A module with a buffer that no state dict shows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.register_buffer("calls", torch.zeros(()), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls = self.calls + 1
        return self.layer(x) * self.calls


def test_what_a_module_keeps_for_itself_does_not_pass_to_the_next_client() -> None:
    net = Net(Keeps)
    first, second = trained(net, 8, 4)[1], trained(net, 8, 4)[1]
    assert all(torch.equal(t, second.params[n]) for n, t in first.params.items())
