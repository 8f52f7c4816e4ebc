"""The first convolution of a network for grey images, whose weights' gradient is one matrix product here.

On CPUs, oneDNN (torch 2.13) takes three to four times as long for it when there is one input channel: with FedAvgCNN
and batches of ten, a sixth of the whole step.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FEWEST = 16  # output channels; with fewer there is nothing to gain


class _Grey(torch.autograd.Function):
    """A convolution of an input that needs no gradient, with one channel."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any) -> Tensor:
        ctx.save_for_backward(x)
        ctx.how = weight.shape, stride, padding, bias is not None
        return F.conv2d(x, weight, bias, stride, padding)

    @staticmethod
    def backward(ctx: Any, *slopes: Any) -> Any:
        (x,), (shape, stride, padding, biased) = ctx.saved_tensors, ctx.how
        rows = slopes[0].permute(0, 2, 3, 1).reshape(-1, shape[0])
        weight = (rows.t() @ _patches(x, shape[2:], stride, padding)).view(shape)
        return None, weight, rows.sum(0) if biased else None, None, None


def _patches(x: Tensor, size: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int]) -> Tensor:
    """What the kernel sees at each place, as rows."""
    if any(padding):
        x = F.pad(x, (padding[1], padding[1], padding[0], padding[0]))
    x = x.squeeze(1).contiguous()
    count, height, width = x.shape
    high, wide = (height - size[0]) // stride[0] + 1, (width - size[1]) // stride[1] + 1
    steps = (height * width, stride[0] * width, stride[1], width, 1)
    return x.as_strided((count, high, wide, *size), steps).reshape(-1, size[0] * size[1])


def _forward(layer: nn.Conv2d, x: Tensor) -> Tensor:
    """As the layer's own ``forward``."""
    plain = x.requires_grad or x.dim() != 4 or x.device.type != "cpu" or x.dtype != layer.weight.dtype
    if plain or not layer.weight.requires_grad or torch._C._are_functorch_transforms_active():
        return nn.Conv2d.forward(layer, x)
    out: Tensor = _Grey.apply(x, layer.weight, layer.bias, layer.stride, layer.padding)
    return out


def quicken(module: nn.Module) -> None:
    """Let those convolutions of a module that it pays for learn in this way."""
    for layer in module.modules():
        if (
            type(layer) is nn.Conv2d and layer.in_channels == 1 and layer.out_channels >= FEWEST
            and layer.groups == 1 and layer.dilation == (1, 1) and layer.padding_mode == "zeros"
            and not isinstance(layer.padding, str)
        ):  # fmt: skip
            layer.forward = partial(_forward, layer)  # type: ignore[method-assign]
