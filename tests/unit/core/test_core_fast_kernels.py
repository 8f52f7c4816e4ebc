"""A user's network computes what PyTorch computes, bit for bit; the library's own ones are faster and say so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedquilt.core.net import Net
from fedquilt.core.objective import Objective
from fedquilt.core.params import Params
from fedquilt.core.seed import Seed
from fedquilt.kernels.winograd import _Swift
from fedquilt.models import FedAvgCNN
from fedquilt.pieces.objectives import cross_entropy
from fedquilt.rounds.client import one_thread
from helpers.toy import site_of, trained


class Usual(nn.Module):
    """What many users would write: all layers in one sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
        )
        self.head = nn.Linear(1024, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


class ByHand(nn.Module):
    """The same with functions between layers, and a padded kernel of 3 x 3."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
        self.head = nn.Linear(32 * 49, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.one(x)), 2)
        return self.head(F.max_pool2d(F.relu(self.two(x)), 2).flatten(1))


class Ours(FedAvgCNN):
    """A user's network on top of the library's."""


DRAW = torch.Generator().manual_seed(5)
SITE = site_of(x=torch.randn(40, 1, 28, 28, generator=DRAW), y=torch.arange(40) % 10)


def by_torch(build: Callable[[], nn.Module], start: Params, layout: Any) -> tuple[Params, float]:
    """Plain PyTorch on the same batches: modules, autograd, SGD."""
    module = build()
    module.load_state_dict(start)
    module = module.to(memory_format=layout)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    losses = []
    for batch in SITE.train.batches(10, 3, Seed(0).fold("batches"), None, True):
        optimizer.zero_grad()
        loss = F.cross_entropy(module(batch.columns["x"].contiguous(memory_format=layout)), batch.y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return {n: t.detach() for n, t in module.named_parameters()}, float(torch.stack(losses).mean())


@pytest.mark.parametrize("last", [True, False], ids=["channels last", "contiguous"])
@pytest.mark.parametrize("build", [Usual, ByHand, Ours], ids=lambda b: b.__name__)
def test_a_users_network_learns_as_in_pytorch_to_the_last_bit(build: Any, last: bool):
    """Twelve steps in the same memory layout: plain ones at first, then captured ones."""
    net = Net(build, channels_last=last)
    start = net.init(Seed(0))
    with one_thread():
        ours = trained(Objective(net, (cross_entropy,)), start, SITE, batch_size=10, epochs=3, lr=0.1)
        theirs, loss = by_torch(build, start, torch.channels_last if last else torch.contiguous_format)
    assert ours.loss == loss
    for name, value in theirs.items():
        assert torch.equal(ours.params[name], value), name
    assert any(known.captured is not None for known in net.captured_steps.known.values())


def kinds(net: Net) -> set[str]:
    return {type(m).__name__ for m in net._resident().module.modules()}


def test_fast_kernels_are_for_the_librarys_networks_and_for_who_asks():
    assert "_Swift" in kinds(Net.of(FedAvgCNN))
    assert "_Swift" not in kinds(Net(Usual))
    assert "_Swift" not in kinds(Net(Ours))
    assert "_Swift" in kinds(Net(Usual, fast_kernels=True))
    assert "_Swift" not in kinds(replace(Net.of(FedAvgCNN), fast_kernels=False))
    assert issubclass(_Swift, nn.Conv2d)


def test_a_network_with_a_users_part_is_a_users():
    def build() -> nn.Module:
        module = FedAvgCNN()
        module.head = Usual().head
        module.extra = ByHand()
        return module

    assert "_Swift" not in kinds(Net(build))


def test_the_former_name_still_works_and_says_so():
    with pytest.warns(DeprecationWarning, match="fast_kernels"):
        net = Net(FedAvgCNN, winograd=False)
    assert net.fast_kernels is False
    assert replace(net, seed=3).fast_kernels is False
    with pytest.warns(DeprecationWarning, match="fast_kernels"):
        assert replace(Net(Usual), winograd=True).fast_kernels is True
