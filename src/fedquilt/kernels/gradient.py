"""The gradient of a loss, without what ``torch.autograd.grad`` checks in Python before it begins.

For a linear model those checks take as long as the gradient itself.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_engine: Any = torch.autograd.Variable._execution_engine  # what ``grad`` calls, too


def gradients(loss: Tensor, weights: tuple[Tensor, ...], one: Tensor) -> list[Tensor]:
    """As ``torch.autograd.grad(loss, weights, materialize_grads=True)``, bit for bit; ``one`` is a 1."""
    if loss.dim() or not loss.requires_grad or loss.dtype != one.dtype or loss.device != one.device:
        return list(torch.autograd.grad(loss, weights, materialize_grads=True))
    found = _engine.run_backward((loss,), (one,), False, False, weights, allow_unreachable=True, accumulate_grad=False)
    return [torch.zeros_like(w) if g is None else g for g, w in zip(found, weights, strict=True)]
