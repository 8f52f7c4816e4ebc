"""bfloat16: where a device has it, products in 16 bits and everything kept in 32; elsewhere a clear no."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedquilt.core import tree
from fedquilt.core.describe import build, describe
from fedquilt.core.net import Net
from fedquilt.core.objective import Objective
from fedquilt.core.seed import Seed
from fedquilt.core.table import Batch
from fedquilt.errors import InputError
from fedquilt.pieces.objectives import cross_entropy
from helpers.toy import site_of, trained


def net(**settings) -> Net:
    return Net(layer, **settings)


def layer() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))


def rows():
    draw = torch.Generator().manual_seed(0)
    return torch.randn(40, 16, generator=draw), torch.arange(40) % 3


def test_products_are_in_sixteen_bits_and_weights_in_thirty_two(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tree, "has_bfloat16", lambda place: True)
    x, y = rows()
    start = net().init(Seed(0))
    assert net(precision="bfloat16")(start, Batch({"x": x})).dtype == torch.bfloat16
    site = site_of(x=x, y=y)
    found = trained(Objective(net(precision="bfloat16"), (cross_entropy,)), start, site, lr=0.1, batch_size=8, epochs=3)
    exact = trained(Objective(net(), (cross_entropy,)), start, site, lr=0.1, batch_size=8, epochs=3)
    for name, value in exact.params.items():
        assert found.params[name].dtype == torch.float32
        assert not torch.equal(found.params[name], value)
        assert torch.allclose(found.params[name], value, atol=0.02)  # bfloat16 has three digits


def test_a_device_without_it_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tree, "has_bfloat16", lambda place: False)
    with pytest.raises(InputError, match="bfloat16"):
        net(precision="bfloat16")(net().init(Seed(0)), Batch({"x": rows()[0]}))


def test_other_processes_build_it_with_its_precision():
    assert build(describe(net(precision="bfloat16"))).precision == "bfloat16"
