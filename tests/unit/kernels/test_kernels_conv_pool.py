"""A convolution and its pooling as one product: the same numbers but for rounding, and only where it is meant to be."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedquilt.core.net import Net
from fedquilt.core.seed import Seed
from fedquilt.core.table import Batch
from fedquilt.kernels import pooling
from fedquilt.kernels.pooling import pool_first
from fedquilt.models import FedAvgCNN

FORMS = [  # rows, channels in, channels out, height, width, kernel, padding
    (10, 1, 32, 28, 28, 5, 0),
    (3, 1, 4, 9, 12, 5, 2),
    (2, 3, 5, 8, 11, 3, 1),
    (1, 2, 3, 7, 6, 2, 0),
    (4, 1, 2, 3, 4, 3, (2, 0)),
]


@pytest.fixture
def calls(monkeypatch) -> list[Any]:
    """The calls that are made in the other way."""
    seen: list[Any] = []
    real = pooling._ConvPool.apply

    def apply(*given: Any) -> Any:
        seen.append(tuple(given[0].shape))
        return real(*given)

    monkeypatch.setattr(pooling._ConvPool, "apply", apply)
    return seen


def sequence(ins: int = 1, outs: int = 8, kernel: int = 5, **settings: Any) -> nn.Sequential:
    with Seed(1).ambient():
        return nn.Sequential(nn.Conv2d(ins, outs, kernel, **settings), nn.ReLU(), nn.MaxPool2d(2))


def joined(module: nn.Sequential) -> nn.Sequential:
    found = nn.Sequential(*module)  # the same layers, and so the same weights
    pool_first(found, joined=True)
    return found


def images(*shape: int) -> Tensor:
    """With zeros and with equal neighbours, where the largest of a window is the first of several."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(2))
    x[:, :, : shape[2] // 2] = 0.0
    x[0, :, :, : shape[3] // 2] = 0.5
    return x


def gradients(module: nn.Module, x: Tensor, **settings: Any) -> list[Tensor]:
    out = module(x)
    ends = torch.randn(out.shape, generator=torch.Generator().manual_seed(3))
    return [out.detach(), *torch.autograd.grad(out, list(module.parameters()), ends, **settings)]


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_it_gives_what_the_two_give(form, layout, calls):
    rows, ins, outs, high, wide, kernel, padding = form
    module = sequence(ins, outs, kernel, padding=padding).to(memory_format=layout)
    x = images(rows, ins, high, wide).contiguous(memory_format=layout)
    found, wanted = gradients(joined(module), x), gradients(module, x)
    assert calls == [tuple(x.shape)]
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5 * float(other.abs().max()))
    assert found[0].is_contiguous(memory_format=torch.channels_last)


def test_of_equals_the_first_is_chosen(calls):
    """Windows in which all outputs are equal, but inputs are not: the gradient of the kernel tells which was chosen."""
    module = nn.Sequential(nn.Conv2d(1, 1, 3), nn.ReLU(), nn.MaxPool2d(2))
    nn.init.zeros_(module[0].weight)
    nn.init.ones_(module[0].bias)
    x = torch.arange(16.0).view(1, 1, 4, 4)
    _, heavy, _ = gradients(joined(module), x)
    _, wanted, _ = gradients(module, x)
    assert len(calls) == 1
    assert torch.equal(heavy, wanted)


def test_where_inputs_are_zero_it_gives_the_bias():
    module = sequence()
    out = joined(module)(torch.zeros(2, 1, 28, 28))
    assert torch.equal(out, F.relu(module[0].bias).view(1, -1, 1, 1).expand_as(out))


@pytest.mark.parametrize("what", ["gradients of inputs", "float64", "vmap", "too small", "no rows", "a hook"])
def test_it_steps_aside(what, calls):
    module = sequence()
    fast, x = joined(module), images(3, 1, 28, 28)
    if what == "float64":
        fast, x = fast.double(), x.double()
    if what == "a hook":
        fast[0].register_forward_hook(lambda *given: None)
    if what == "vmap":
        torch.testing.assert_close(torch.func.vmap(fast)(x[:, None]), torch.func.vmap(module)(x[:, None]))
    elif what == "too small":
        with pytest.raises(RuntimeError):
            fast(x[:, :, :5, :5])
    elif what == "no rows":
        assert fast(x[:0]).shape == (0, 8, 12, 12)
    elif what == "gradients of inputs":
        found, wanted = (torch.autograd.grad(m(x.requires_grad_()).sum(), x)[0] for m in (fast, module))
        assert torch.equal(found, wanted)
    else:
        assert torch.equal(fast(x), module(x))
    assert not calls


def test_gradients_of_gradients(calls):
    module, x = sequence(), images(2, 1, 12, 12)
    second = []
    for each in (joined(module), module):
        _, heavy, light = gradients(each, x, create_graph=True)
        total = heavy.square().sum() + light.square().sum()
        second.append(torch.autograd.grad(total, list(each.parameters()), allow_unused=True, materialize_grads=True))
    assert calls
    for one, other in zip(*second, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_one_gradient_alone():
    for name in ("weight", "bias"):
        found = []
        for each in (joined(sequence()), sequence()):
            (gradient,) = torch.autograd.grad(each(images(2, 1, 12, 12)).sum(), [getattr(each[0], name)])
            found.append(gradient)
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "pair",
    [
        (nn.Conv2d(3, 8, 5), nn.MaxPool2d(2)),  # too much to read
        (nn.Conv2d(1, 8, 5, stride=2), nn.MaxPool2d(2)),
        (nn.Conv2d(1, 8, 5, dilation=2), nn.MaxPool2d(2)),
        (nn.Conv2d(2, 8, 3, groups=2), nn.MaxPool2d(2)),
        (nn.Conv2d(1, 8, 5, bias=False), nn.MaxPool2d(2)),
        (nn.Conv2d(1, 8, 5, padding="same"), nn.MaxPool2d(2)),
        (nn.Conv2d(1, 8, 5, padding=1, padding_mode="circular"), nn.MaxPool2d(2)),
        (nn.Conv2d(1, 8, (5, 3)), nn.MaxPool2d(2)),
        (nn.Conv2d(1, 8, 5), nn.MaxPool2d(3)),
        (nn.Conv2d(1, 8, 5), nn.MaxPool2d(2, stride=1)),
        (nn.Conv2d(1, 8, 5), nn.MaxPool2d(2, padding=1)),
        (nn.Conv2d(1, 8, 5), nn.MaxPool2d(2, ceil_mode=True)),
        (nn.Conv2d(1, 8, 5), nn.MaxPool2d(2, return_indices=True)),
    ],
    ids=lambda pair: f"{pair[0]} {pair[1]}",
)
def test_other_pairs_are_left_alone(pair):
    assert not pooling.suits(*pair)
    assert pooling.suits(nn.Conv2d(1, 8, 5), nn.MaxPool2d((2, 2), stride=(2, 2)))


def test_a_net_computes_so_unless_it_is_told_not_to(calls):
    batch = Batch({"x": images(2, 1, 28, 28), "y": torch.zeros(2, dtype=torch.int64)})
    outs = []
    for fast in (True, False):
        net = Net(FedAvgCNN, fast_kernels=fast)
        outs.append(net(net.init(Seed(0)), batch))
    assert calls == [(2, 1, 28, 28)]
    torch.testing.assert_close(*outs, rtol=1e-3, atol=1e-4)


def test_gradients_are_laid_out_as_their_weights():
    for layout in (torch.contiguous_format, torch.channels_last):
        for ins, kernel in ((1, 5), (2, 3)):
            module = joined(sequence(ins, 4, kernel).to(memory_format=layout))
            _, heavy, _ = gradients(module, images(2, ins, 12, 12))
            assert heavy.stride() == module[0].weight.stride()


def test_torch_defaults_of_the_first_call_do_not_stay():
    pooling._written.cache_clear()
    pooling._places.cache_clear()
    module, x = joined(sequence()), images(2, 1, 28, 28)
    wanted = sequence()(x)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            first = module(x)
    finally:
        torch.set_default_dtype(before)
    for found in (first, module(x)):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_layers_that_give_other_layouts_are_left_alone(calls):
    """Whoever asked for no channels last may ask for views that only the other layout has."""

    class Viewed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = sequence()

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.first(x)
            return out.view(len(x), -1)

    net = Net(Viewed, channels_last=False)
    assert net(net.init(Seed(0)), Batch({"x": images(2, 1, 28, 28)})).shape == (2, 8 * 12 * 12)
    assert not calls


def test_few_sizes_of_images_are_remembered():
    module = joined(sequence())
    for side in range(20, 50):
        module(torch.zeros(1, 1, side, side))
    assert pooling._places.cache_info().currsize <= 8
