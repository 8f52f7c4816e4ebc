"""The quick first convolution gives what torch gives."""

import pytest
import torch
from torch import nn

from fedquilt.core.convolution import quicken
from fedquilt.core.net import Net
from fedquilt.core.seed import Seed
from fedquilt.core.table import Batch

SHAPES = [(5, 1, 0, True), (3, 2, 1, True), ((3, 5), (2, 1), (0, 2), False)]


def pair(*shape, bias=True):
    """A layer as torch has it, and a quick one with the same weights."""
    plain, quick = (nn.Conv2d(1, 16, *shape, bias=bias) for _ in range(2))
    quick.load_state_dict(plain.state_dict())
    quicken(quick)
    assert "forward" in vars(quick)
    return plain, quick


@pytest.mark.parametrize(("kernel", "stride", "padding", "bias"), SHAPES, ids=["plain", "padded", "oblong"])
def test_gradients_are_those_of_torch(kernel, stride, padding, bias):
    layers = pair(kernel, stride, padding, bias=bias)
    x = torch.randn(4, 1, 13, 12, generator=torch.Generator().manual_seed(0))
    for layer in layers:
        layer(x).square().sum().backward()
    assert torch.equal(layers[0](x), layers[1](x))
    for a, b in zip(*(layer.parameters() for layer in layers), strict=True):
        assert torch.allclose(a.grad, b.grad, rtol=1e-4, atol=1e-3)


def test_second_gradients_are_those_of_torch():
    x = torch.randn(2, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    found = []
    for layer in pair(3):
        (slope,) = torch.autograd.grad(layer(x).pow(3).sum(), [layer.weight], create_graph=True)
        found.append(torch.autograd.grad(slope.square().sum(), [layer.weight])[0])
    assert float(found[0].abs().max()) > 0
    assert torch.allclose(found[0], found[1], rtol=1e-3, atol=1e-3 * float(found[0].abs().max()))


def test_an_input_that_needs_a_gradient_gets_it():
    plain, quick = pair(3)
    x = torch.randn(2, 1, 6, 6, requires_grad=True)
    slopes = [torch.autograd.grad(layer(x).square().sum(), [x])[0] for layer in (plain, quick)]
    assert torch.allclose(*slopes)


def test_other_layers_stay_as_they_are():
    others = nn.ModuleList([nn.Conv2d(3, 16, 3), nn.Conv2d(1, 8, 3), nn.Conv2d(1, 16, 3, padding="same")])
    quicken(others)
    assert not any("forward" in vars(layer) for layer in others)


def small():
    """A network for grey images."""
    return nn.Sequential(nn.Conv2d(1, 16, 3), nn.Flatten(), nn.Linear(16 * 16, 2))


def test_a_net_of_grey_images_learns_with_it():
    net = Net(small)
    params = net.own(net.init(Seed(0)))
    weights = [t.requires_grad_() for t in params.values()]
    node = net(params, Batch({"x": torch.ones(3, 1, 6, 6)}), train=True).sum().grad_fn
    names = set()
    while node is not None:
        names.add(type(node).__name__)
        ahead = [n for n, _ in node.next_functions if n is not None and "Accumulate" not in type(n).__name__]
        node = ahead[0] if ahead else None
    assert "_GreyBackward" in names
    assert len(weights) == 4


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
