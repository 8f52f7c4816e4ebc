"""The quick gradient is that of torch, bit for bit."""

import pytest
import torch

from fedquilt.kernels import gradients


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_it_is_what_torch_gives(kind):
    generator = torch.Generator().manual_seed(0)
    used, unused = (torch.randn(3, 4, generator=generator, dtype=kind).requires_grad_() for _ in range(2))
    found = gradients((used.exp() * 2).sum(), (used, unused), torch.ones(()))
    wanted = torch.autograd.grad((used.exp() * 2).sum(), (used, unused), materialize_grads=True)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
    assert used.grad is None


def test_a_loss_without_a_gradient_says_so():
    weight = torch.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="does not require grad"):
        gradients(torch.ones(()), (weight,), torch.ones(()))


def test_a_loss_with_several_numbers_says_so():
    weight = torch.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="scalar"):
        gradients(weight * 2, (weight,), torch.ones(()))
