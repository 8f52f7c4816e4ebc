"""Pooling before ReLU gives what ReLU before pooling gives, values and gradients, to the last bit."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from fedquilt.kernels.pooling import pool_first


def sequence() -> nn.Sequential:
    return nn.Sequential(nn.ReLU(), nn.MaxPool2d(2), nn.Tanh(), nn.ReLU(), nn.MaxPool2d(3, 2, 1))


def pictures() -> Tensor:
    """With equal neighbours, zeros, places where all are negative, and something that is no number."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(6, 3, 12, 12, generator=draw)
    x[0] = x[0].round()
    x[1] = -x[1].abs()
    x[2, :, :4] = 0.0
    x[3, 0, 0, 0] = torch.nan
    return x.requires_grad_()


def ran(module: nn.Module) -> tuple[Tensor, Tensor]:
    x = pictures()
    out = module(x)
    (gradient,) = torch.autograd.grad(out, x, torch.arange(out.numel()).view(out.shape).float())
    return out, gradient


def test_values_and_gradients_are_the_same(monkeypatch):
    plain, swapped = sequence(), sequence()
    pool_first(swapped)
    seen: list[torch.Size] = []
    real = nn.ReLU.forward
    wanted = ran(plain)
    monkeypatch.setattr(nn.ReLU, "forward", lambda self, x: (seen.append(x.shape), real(self, x))[1])
    for one, other in zip(wanted, ran(swapped), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
    assert seen == [torch.Size((6, 3, 6, 6)), torch.Size((6, 3, 3, 3))]  # what ReLU saw was pooled already


@pytest.mark.parametrize("what", ["hook", "hook for all", "changed"])
def test_who_looks_at_what_is_between_sees_the_usual_order(what):
    seen: list[torch.Size] = []
    module = sequence()
    pool_first(module)
    if what == "hook":
        module[0].register_forward_hook(lambda layer, given, out: seen.append(out.shape))
    elif what == "hook for all":
        handle = nn.modules.module.register_module_forward_hook(lambda layer, given, out: seen.append(out.shape))
        module(pictures())
        handle.remove()
        assert seen[:2] == [torch.Size((6, 3, 12, 12)), torch.Size((6, 3, 6, 6))]
        return
    else:
        module[0] = nn.Identity()
        module[1].register_forward_hook(lambda layer, given, out: seen.append(given[0].shape))
    module(pictures())
    assert seen == [torch.Size((6, 3, 12, 12))]


def test_sequences_without_such_neighbours_stay_as_they_are():
    for module in (
        nn.Sequential(nn.ReLU(), nn.AvgPool2d(2)),
        nn.Sequential(nn.Tanh(), nn.MaxPool2d(2)),
        nn.Sequential(nn.MaxPool2d(2), nn.ReLU()),
        nn.Sequential(nn.ReLU(), nn.MaxPool2d(2, return_indices=True)),
        nn.Sequential(nn.ReLU(inplace=True), nn.MaxPool2d(2)),  # whoever holds its input sees it change
        nn.ModuleList([nn.ReLU(), nn.MaxPool2d(2)]),
    ):
        pool_first(module)
        assert type(module) in (nn.Sequential, nn.ModuleList)


def test_copies_have_their_own_layers():
    module = nn.Sequential(nn.Conv2d(1, 1, 1), nn.ReLU(), nn.MaxPool2d(2))
    pool_first(module)
    copied = copy.deepcopy(module)  # noqa: TID251 - as whoever gets the module may do
    for value in copied.parameters():
        value.data.zero_()
    x = torch.ones(1, 1, 4, 4)
    assert not copied(x).any()
    assert copied.orders[0] == tuple(copied)


def test_a_part_of_a_sequence_is_a_plain_one():
    module = sequence()
    pool_first(module)
    x = pictures().detach()
    torch.testing.assert_close(module[:2](x), nn.MaxPool2d(2)(x.relu()), equal_nan=True)


def test_what_is_written_into_next_is_not_the_output_of_relu():
    """ReLU needs its output for its gradient, max pooling does not."""
    module = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.5, inplace=True))
    pool_first(module)
    x = pictures()
    module(x).nansum().backward()
    assert x.grad is not None
