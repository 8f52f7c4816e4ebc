"""Convolutions that save multiplications: the same numbers but for rounding, and only where they are meant to be."""

from __future__ import annotations

import copy
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from fedquilt.core.net import Net
from fedquilt.core.seed import Seed
from fedquilt.core.table import Batch
from fedquilt.kernels import winograd
from fedquilt.kernels.winograd import OUT, matrices, suits, swift
from fedquilt.models import FedAvgCNN

FORMS = [  # rows, channels in, channels out, height, width, kernel, padding
    (10, 32, 64, 12, 12, 5, 0),
    (3, 5, 7, 9, 14, 5, 2),
    (2, 4, 6, 6, 5, 5, 4),
    (1, 3, 2, 8, 8, 3, 0),
    (4, 16, 8, 7, 10, 3, 1),
    (2, 2, 3, 3, 3, 3, 2),
]


@pytest.fixture
def always(monkeypatch):
    """Also where it does not pay."""
    monkeypatch.setattr(winograd, "_SAVED", 0.0)


@pytest.fixture
def calls(monkeypatch) -> list[Any]:
    """The calls that are made in the other way."""
    seen: list[Any] = []
    real = winograd._Convolution.apply

    def apply(*given: Any) -> Any:
        seen.append(given[0].shape)
        return real(*given)

    monkeypatch.setattr(winograd._Convolution, "apply", apply)
    return seen


def layer_of(ins: int, outs: int, kernel: int, **settings: Any) -> nn.Conv2d:
    layer = nn.Conv2d(ins, outs, kernel, **settings)
    draw = torch.Generator().manual_seed(1)
    for value in layer.parameters():
        value.data = torch.randn(value.shape, generator=draw) / (ins * kernel**2) ** 0.5
    return layer


def images(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("kernel", [3, 5])
@given(st.data())
def test_the_matrices_convolve_exactly(kernel, data):
    """y_i = sum_k d_(i + k) g_k for four i, in exact fractions."""
    numbers = st.fractions(-5, 5, max_denominator=9)
    ends, taps, inputs = matrices(kernel)
    d = data.draw(st.lists(numbers, min_size=kernel + 3, max_size=kernel + 3))
    g = data.draw(st.lists(numbers, min_size=kernel, max_size=kernel))

    def times(matrix: list[list[Fraction]], vector: list[Fraction]) -> list[Fraction]:
        return [sum((a * b for a, b in zip(row, vector, strict=True)), Fraction(0)) for row in matrix]

    found = times(ends, [a * b for a, b in zip(times(taps, g), times(inputs, d), strict=True)])
    assert found == [sum(d[i + k] * g[k] for k in range(kernel)) for i in range(OUT)]


def test_the_matrices_of_three_taps_are_the_known_ones():
    """F(4, 3) of the paper by Lavin and Gray, up to factors that cancel: B^T has these rows, made of whole numbers."""
    _, _, inputs = matrices(3)
    wanted = [
        [4, 0, -5, 0, 1, 0],
        [0, -4, -4, 1, 1, 0],
        [0, 4, -4, -1, 1, 0],
        [0, -2, -1, 2, 1, 0],
        [0, 2, -1, -2, 1, 0],
        [0, 4, 0, -5, 0, 1],
    ]
    for row, known in zip(inputs, wanted, strict=True):
        place = next(i for i, number in enumerate(known) if number)
        assert [number / row[place] for number in row] == [Fraction(n, known[place]) for n in known]


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format], ids=["last", "first"])
def test_values_and_gradients_are_those_of_a_convolution(form, layout, always, calls):
    rows, ins, outs, high, wide, kernel, padding = form
    layer = layer_of(ins, outs, kernel, padding=padding)
    precise = layer_of(ins, outs, kernel, padding=padding).double()
    swift(nn.Sequential(layer))
    x = images(rows, ins, high, wide).contiguous(memory_format=layout).requires_grad_()
    exact = x.detach().double().requires_grad_()
    found, wanted = layer(x), precise(exact)
    gradient = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(3))
    gradients = torch.autograd.grad(found, [x, *layer.parameters()], gradient)
    known = torch.autograd.grad(wanted, [exact, *precise.parameters()], gradient.double())
    assert calls == [x.shape]
    assert found.is_contiguous(memory_format=torch.channels_last)
    for one, other in zip((found, *gradients), (wanted, *known), strict=True):
        assert one.shape == other.shape
        assert float((one - other).detach().abs().max()) < 3e-5 * float(other.detach().abs().max())


def test_gradients_that_nobody_wants_are_not_made(always, monkeypatch):
    """Forward takes two products of many matrices at once; backward two for the kernels and one for the images."""
    many: list[Any] = []
    real = torch.bmm
    monkeypatch.setattr(torch, "bmm", lambda *given: (many.append(given[0].shape), real(*given))[1])

    def products(wants_x: bool, wants_kernels: bool) -> int:
        layer = layer_of(4, 4, 5).requires_grad_(wants_kernels)
        swift(nn.Sequential(layer))
        many.clear()
        layer(images(2, 4, 9, 9).requires_grad_(wants_x)).sum().backward()
        return len(many) - 2

    assert [products(*wants) for wants in ((True, True), (False, True), (True, False))] == [3, 2, 1]


def test_others_may_write_into_what_it_gives(always, calls):
    """ReLU in place, and sums in place, as in many residual networks."""
    found = []
    for fast in (True, False):
        layer = layer_of(6, 6, 3, padding=1)
        if fast:
            swift(nn.Sequential(layer))
        x = images(2, 6, 9, 9).requires_grad_()
        out = layer(x)
        out += x
        torch.relu_(out)
        found.append((out.detach(), *torch.autograd.grad(out.square().sum(), [x, layer.weight])))
    assert len(calls) == 1
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4 * float(other.abs().max()))


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # torch's own forward mode
def test_gradients_of_many_at_once_and_gradients_forward(always):
    results = []
    for fast in (True, False):
        layer = layer_of(3, 4, 5)
        if fast:
            swift(nn.Sequential(layer))
        x = images(1, 3, 9, 9).requires_grad_()
        out = layer(x).sum((0, 2, 3))
        (found,) = torch.autograd.grad(out, x, torch.eye(4), is_grads_batched=True)
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(x.detach(), torch.ones_like(x))
            ahead = torch.autograd.forward_ad.unpack_dual(layer(dual)).tangent
        results.append((found, ahead))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


def test_gradients_of_gradients_are_those_of_a_convolution(always, calls):
    """An attack that matches gradients descends through them."""
    found = []
    for fast in (True, False):
        layer = layer_of(3, 4, 5)
        if fast:
            swift(nn.Sequential(layer))
        x = images(2, 3, 9, 9).requires_grad_()
        first = torch.autograd.grad(layer(x).tanh().sum(), [layer.weight, x], create_graph=True)
        found.append(torch.autograd.grad(sum(f.square().sum() for f in first), [x, layer.weight]))
    assert len(calls) == 1
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3 * float(other.abs().max()))


OTHERS: dict[str, dict[str, Any]] = {
    "stride": {"stride": 2},
    "dilation": {"dilation": 2},
    "groups": {"groups": 2},
    "words": {"padding": "same"},
    "mode": {"padding": 1, "padding_mode": "reflect"},
    "much padding": {"padding": 5},
    "no bias": {"bias": False},
}


@pytest.mark.parametrize("settings", OTHERS.values(), ids=list(OTHERS))
def test_other_convolutions_stay_as_they_are(settings):
    assert not suits(nn.Conv2d(4, 4, 5, **settings))


@pytest.mark.parametrize("kernel", [1, 2, 4, 7, (3, 5)], ids=str)
def test_so_do_other_kernels(kernel):
    assert not suits(nn.Conv2d(4, 4, kernel))


def test_where_it_does_not_pay_or_cannot_be_the_ordinary_way_is_gone(calls):
    wide, narrow = layer_of(32, 64, 5), layer_of(4, 4, 5)
    for layer in (wide, narrow):
        swift(nn.Sequential(layer))
    assert torch.equal(narrow(images(2, 4, 12, 12)), layer_of(4, 4, 5)(images(2, 4, 12, 12)))
    x = images(2, 32, 12, 12)
    torch.func.vmap(lambda one: wide(one[None])[0])(x)
    with torch.autocast("cpu", torch.bfloat16):
        wide(x)
    wide(images(400, 32, 12, 12))  # more than caches hold
    assert wide(images(0, 32, 12, 12)).shape == (0, 64, 8, 8)
    with pytest.raises(RuntimeError, match="Kernel size can't be greater"):
        wide(images(2, 32, 4, 4))
    assert calls == []
    wide(images(10, 32, 12, 12))
    assert len(calls) == 1
    assert wide.double()(x.double()).dtype is torch.float64


def test_copies_have_their_own_kernels(always, calls):
    layer = layer_of(4, 4, 5)
    swift(nn.Sequential(layer))
    for copied in (copy.copy(layer), copy.deepcopy(layer)):  # noqa: TID251 - as whoever gets the module may do
        copied._parameters = {n: nn.Parameter(torch.zeros_like(p)) for n, p in layer.named_parameters()}
        assert not copied(input=images(2, 4, 9, 9)).any()
    assert len(calls) == 2


def test_a_net_may_do_without(calls):
    batch = Batch({"x": images(10, 1, 28, 28), "y": torch.zeros(10, dtype=torch.long)})
    found = {}
    for fast in (True, False):
        net = Net(FedAvgCNN, fast_kernels=fast)
        found[fast] = net(net.init(Seed(0)), batch)
        assert len(calls) == 1
    torch.testing.assert_close(found[True], found[False], rtol=1e-4, atol=1e-5)
    assert not torch.equal(found[True], found[False])
    plain = FedAvgCNN().to(memory_format=torch.channels_last)
    net = Net(FedAvgCNN, fast_kernels=False)
    params = net.init(Seed(0))
    plain.load_state_dict(params)
    x = batch.columns["x"].contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        torch.testing.assert_close(net(params, batch), plain(x), rtol=0, atol=5e-7)
