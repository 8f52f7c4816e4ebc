"""Linear layers of several clients at once, with products in the shapes that batched kernels are fast in.

Under ``vmap``, torch computes the gradient of a weight as the transpose of (inputs^T gradients), a tall and narrow
product, which takes several times as long as (gradients^T inputs).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class _Linear(torch.autograd.Function):
    """x w^T + b of rows x."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        out = x @ weight.t()
        return out if bias is None else out + bias

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, bias = inputs
        ctx.save_for_backward(x, weight)
        ctx.biased = bias is not None

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        down = gradient @ weight if ctx.needs_input_grad[0] else None
        return down, gradient.t() @ x, gradient.sum(0) if ctx.biased else None


def _forward(layer: nn.Linear, x: Tensor) -> Tensor:
    if x.dim() != 2:
        return F.linear(x, layer.weight, layer.bias)
    out: Tensor = _Linear.apply(x, layer.weight, layer.bias)  # type: ignore[no-untyped-call]
    return out


@contextmanager
def wide(module: nn.Module) -> Iterator[None]:
    """Inside, the module's plain linear layers compute so."""
    layers = [m for m in module.modules() if type(m) is nn.Linear and "forward" not in m.__dict__]
    for layer in layers:
        layer.__dict__["forward"] = partial(_forward, layer)
    try:
        yield
    finally:
        for layer in layers:
            del layer.__dict__["forward"]
