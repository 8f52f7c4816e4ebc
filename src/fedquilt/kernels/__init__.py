"""The same arithmetic, faster: what a network and its training steps are computed with. It knows nothing else here.

:func:`accelerate` exchanges layers of a module, :class:`Tape` plays a recorded training step, :func:`gradients` skips
checks of ``torch.autograd.grad``, and :func:`wide` serves several clients at once. ``FEDQUILT_KERNELS=plain`` turns
all of them off: then PyTorch computes everything as it is written, more slowly and, where ``fast`` kernels were in use,
with other last digits.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fedquilt.kernels.captured import CannotRecord, CapturedStep, Player, Recorder
from fedquilt.kernels.pooling import pool_first
from fedquilt.kernels.wide_linear import wide as _wide
from fedquilt.kernels.winograd import swift

__all__ = ["CannotRecord", "CapturedStep", "Player", "Recorder", "accelerate", "enabled", "gradients", "wide"]


_engine: Any = torch.autograd.Variable._execution_engine  # what ``torch.autograd.grad`` calls, too


def enabled() -> bool:
    """Whether kernels of this folder are used: unless the environment says FEDQUILT_KERNELS=plain."""
    return os.environ.get("FEDQUILT_KERNELS") != "plain"


def accelerate(module: nn.Module, fast: bool) -> None:
    """Let a module's layers compute the same from fewer numbers; ``fast`` also with fewer multiplications, which moves
    results by about 1e-5 of their size."""
    if enabled():
        pool_first(module, joined=fast)
        if fast:
            swift(module)


def gradients(loss: Tensor, weights: tuple[Tensor, ...], one: Tensor) -> list[Tensor]:
    """As ``torch.autograd.grad(loss, weights, materialize_grads=True)``, bit for bit; ``one`` is a 1.

    Without what that checks in Python before it begins: for a linear model it takes as long as the gradient itself.
    """
    like_one = not loss.dim() and loss.dtype == one.dtype and loss.device == one.device
    if not (enabled() and like_one and loss.requires_grad):
        return list(torch.autograd.grad(loss, weights, materialize_grads=True))
    found = _engine.run_backward((loss,), (one,), False, False, weights, allow_unreachable=True, accumulate_grad=False)
    return [torch.zeros_like(w) if g is None else g for g, w in zip(found, weights, strict=True)]


@contextmanager
def wide(module: nn.Module) -> Iterator[None]:
    """Inside, the module's plain linear layers serve several clients at once in shapes that batched kernels like."""
    if not enabled():
        yield
        return
    with _wide(module):
        yield
