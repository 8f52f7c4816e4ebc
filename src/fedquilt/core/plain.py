"""Whether a layer is called in the plain way: what is computed differently elsewhere must step aside for the rest."""

from __future__ import annotations

import torch
from torch import Tensor


def plain(x: Tensor, weight: Tensor) -> bool:
    """Whether these are images and weights of float32 on a CPU, with no transformation of torch.func at work."""
    if x.dim() != 4 or x.device.type != "cpu" or x.dtype != torch.float32 or weight.dtype != torch.float32:
        return False
    if torch.is_autocast_enabled("cpu") or torch._C._are_functorch_transforms_active():
        return False
    return torch.autograd.forward_ad._current_level < 0


def of_many(slope: Tensor) -> bool:
    """Whether slopes of many are asked for at once."""
    known = torch._C._functorch
    return bool(known.is_batchedtensor(slope) or known.is_legacy_batchedtensor(slope))
