"""Scoring a network with convolutions."""

import torch
from torch import nn

from fedquilt.core.net import Net
from fedquilt.core.seed import Seed
from fedquilt.core.table import Batch


def small():
    """A network for grey images."""
    return nn.Sequential(nn.Conv2d(1, 16, 3), nn.Flatten(), nn.Linear(16 * 16, 2))


def test_scoring_lays_kernels_out_once_and_follows_changes():
    net = Net(small)
    params, batch = net.init(Seed(0)), Batch({"x": torch.ones(3, 1, 6, 6)})
    with torch.no_grad():
        before = net(params, batch)
        first = net._resident().bound
        net(params, batch)
        assert net._resident().bound is first  # nothing was converted anew
        params["0.weight"].mul_(2.0)
        after = net(params, batch)
    assert torch.allclose(before, net(params | {"0.weight": params["0.weight"] / 2}, batch))
    assert not torch.allclose(before, after)
