"""The same arithmetic, faster: what a network and its training steps are computed with. It knows nothing else here.

:func:`accelerate` exchanges layers of a module, :class:`Tape` plays a recorded training step, :func:`gradients` skips
checks of ``torch.autograd.grad``, and :func:`wide` serves several clients at once. ``FEDQUILT_KERNELS=plain`` turns
all of them off: then PyTorch computes everything as it is written, more slowly and, where ``fast`` kernels were in use,
with other last digits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from fedquilt.kernels.gradient import gradients as _gradients
from fedquilt.kernels.pooling import pool_first
from fedquilt.kernels.switch import enabled
from fedquilt.kernels.tape import CannotRecord, Player, Recorder, Tape
from fedquilt.kernels.wide_linear import wide as _wide
from fedquilt.kernels.winograd import swift

__all__ = ["CannotRecord", "Player", "Recorder", "Tape", "accelerate", "enabled", "gradients", "wide"]


def accelerate(module: nn.Module, fast: bool) -> None:
    """Let a module's layers compute the same from fewer numbers; ``fast`` also with fewer multiplications, which moves
    results by about 1e-5 of their size."""
    if enabled():
        pool_first(module, joined=fast)
        if fast:
            swift(module)


def gradients(loss: Tensor, weights: tuple[Tensor, ...], one: Tensor) -> list[Tensor]:
    """As ``torch.autograd.grad(loss, weights, materialize_grads=True)``, bit for bit; ``one`` is a 1."""
    if enabled():
        return _gradients(loss, weights, one)
    return list(torch.autograd.grad(loss, weights, materialize_grads=True))


@contextmanager
def wide(module: nn.Module) -> Iterator[None]:
    """Inside, the module's plain linear layers serve several clients at once in shapes that batched kernels like."""
    if not enabled():
        yield
        return
    with _wide(module):
        yield
