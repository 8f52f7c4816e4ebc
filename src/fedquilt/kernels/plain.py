"""Whether a layer is called in the plain way: what is computed differently elsewhere must step aside for the rest."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_USUAL = (Tensor, nn.Parameter)


def plain(x: Tensor, weight: Tensor) -> bool:
    """Whether these are images and weights of float32 on a CPU, with no transformation of torch.func at work."""
    if type(x) not in _USUAL or type(weight) not in _USUAL:
        return False
    if x.dim() != 4 or x.device.type != "cpu" or x.dtype != torch.float32 or weight.dtype != torch.float32:
        return False
    if torch.is_autocast_enabled("cpu") or torch._C._are_functorch_transforms_active():
        return False
    return torch.autograd.forward_ad._current_level < 0


def laid_like(gradient: Tensor, weight: Tensor) -> Tensor:
    """The gradient in the layout of its weight, which is what autograd's own kernels give."""
    if gradient.stride() == weight.stride():
        return gradient
    if gradient.is_contiguous() and weight.is_contiguous():  # the same order: strides differ where there is but one
        return gradient.as_strided(weight.shape, weight.stride())
    return torch.empty_strided(weight.shape, weight.stride(), dtype=gradient.dtype, device=gradient.device).copy_(
        gradient
    )


def of_many(gradient: Tensor) -> bool:
    """Whether gradients of many are asked for at once."""
    known = torch._C._functorch
    return bool(known.is_batchedtensor(gradient) or known.is_legacy_batchedtensor(gradient))
