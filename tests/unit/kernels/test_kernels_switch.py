"""One switch turns all of this library's own kernels off: then PyTorch computes what is written."""

from functools import partial

import pytest
import torch
from torch import Tensor, nn

from fedquilt.core.net import Net
from fedquilt.core.objective import Objective
from fedquilt.core.seed import Seed
from fedquilt.core.table import Batch
from fedquilt.kernels import accelerate, gradients, wide
from fedquilt.models import FedAvgCNN
from fedquilt.pieces.objectives import cross_entropy


def usual() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(1, 8, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 5), nn.ReLU())


def test_a_module_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDQUILT_KERNELS", "plain")
    module = usual()
    accelerate(module, fast=True)
    assert [type(m) for m in module.modules()] == [type(m) for m in usual().modules()]
    with wide(nn.Linear(2, 2)) as nothing:
        assert nothing is None
    monkeypatch.delenv("FEDQUILT_KERNELS")
    accelerate(module, fast=True)
    assert [type(m) for m in module.modules()] != [type(m) for m in usual().modules()]


def gradients_of(net: Net) -> list[Tensor]:
    params, generator = net.init(Seed(0)), torch.Generator().manual_seed(0)
    batch = Batch({"x": torch.randn(4, 1, 28, 28, generator=generator), "y": torch.tensor([0, 1, 2, 3])})
    weights = {n: t.clone().requires_grad_() for n, t in params.items()}
    return gradients(Objective(net, (cross_entropy,))(weights, {}, batch), tuple(weights.values()), torch.ones(()))


def test_nothing_is_captured_and_numbers_are_those_of_ordinary_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    ordinary = gradients_of(Net(partial(FedAvgCNN, channels=1, classes=10), fast_kernels=False))
    fast = gradients_of(Net(partial(FedAvgCNN, channels=1, classes=10)))
    assert set(Net(partial(FedAvgCNN, channels=1, classes=10)).fast_layers.values()) == {"winograd", "pooling"}
    monkeypatch.setenv("FEDQUILT_KERNELS", "plain")
    net = Net(partial(FedAvgCNN, channels=1, classes=10))
    assert (net.captured_steps.wanted, dict(net.fast_layers)) == (False, {})
    assert all(torch.equal(a, b) for a, b in zip(gradients_of(net), ordinary, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(fast, ordinary, strict=True))
