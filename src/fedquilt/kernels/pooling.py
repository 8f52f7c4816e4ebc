"""Max pooling before ReLU instead of after it, and with the convolution before it as one matrix product.

The largest of several numbers is the same before ReLU and after it, unless all are negative, and then both orders give
zero and a gradient of zero: so the order is exchanged, which is exact and moves a quarter of the numbers.

Then a convolution has its pooling next to it, and in the first layer of a network the two may be one product. With one
or few channels to read, a convolution has too little arithmetic for each number that it moves. Here each window of the
pooling is a row: the (r + 1) x (r + 1) inputs from which an r x r kernel makes the window's four outputs. One product
with the kernel, written four times into a matrix, gives the four side by side, in the order that pooling reads them.
The kernel's gradient is one product, too. Results differ from those of an ordinary convolution by rounding. Pooling
chooses the first of equals, as ever, but before the bias is added, which may make equals of others. A number that is
not finite spreads: an input's over the windows it is in, a weight's over its whole map.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules import module as torch_module

from fedquilt.kernels.plain import laid_like, of_many, plain

_MOST = 64  # inputs of a window: with more, the zeros in the matrix cost more than is saved


@cache
def _written(kernel: int) -> Tensor:
    """Where the kernel's entries (columns) go in the matrix (rows: a window's inputs, then its four outputs)."""
    side = kernel + 1
    found = torch.zeros(side, side, 2, 2, kernel, kernel, dtype=torch.float32, device="cpu")
    for row in range(kernel):
        for column in range(kernel):
            for down in range(2):
                for along in range(2):
                    found[row + down, column + along, down, along, row, column] = 1
    return found.view(side * side * 4, kernel * kernel)


@lru_cache(maxsize=8)
def _places(high: int, wide: int, channels: int, kernel: int) -> Tensor:
    """For each window of an image with channels last, where its inputs are."""
    side, line = kernel + 1, wide * channels
    down, along = (high - kernel + 1) // 2, (wide - kernel + 1) // 2
    every = torch.arange(high * line, dtype=torch.int64, device="cpu")
    return every.as_strided((down, along, side, side, channels), (2 * line, 2 * channels, line, channels, 1)).reshape(
        -1
    )


class _ConvPool(torch.autograd.Function):
    """x (images, no gradients), weight, bias, padding -> what ``max_pool2d(conv2d(...), 2)`` gives, channels last."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, padding: tuple[int, int]) -> Tensor:
        outs, channels, kernel, _ = weight.shape
        count, side = len(x), kernel + 1
        around = F.pad(x, (padding[1], padding[1], padding[0], padding[0])) if any(padding) else x
        high, wide = around.shape[2:]
        down, along = (high - kernel + 1) // 2, (wide - kernel + 1) // 2
        flat = around.permute(0, 2, 3, 1).reshape(count, high * wide * channels)
        windows = flat.index_select(1, _places(high, wide, channels, kernel))
        windows = windows.view(count * down * along, side * side * channels)
        entries = weight.permute(2, 3, 1, 0).reshape(kernel * kernel, channels * outs)
        matrix = torch.mm(_written(kernel), entries)
        if channels > 1:
            matrix = matrix.view(side * side, 4, channels, outs).transpose(1, 2)
        made = torch.mm(windows, matrix.reshape(side * side * channels, 4 * outs))
        four = made.view(count, down, along * 4, outs).permute(0, 3, 1, 2)
        out, chosen = F.max_pool2d_with_indices(four, [1, 4], [1, 4])
        out.permute(0, 2, 3, 1).add_(bias)
        ctx.save_for_backward(x, weight, bias, windows, four, chosen)
        ctx.padding = padding
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, windows, four, chosen = ctx.saved_tensors
        if torch.is_grad_enabled() or of_many(gradient):  # as in kernels/winograd.py
            with torch.enable_grad():
                again = F.max_pool2d(F.conv2d(x, weight, bias, padding=ctx.padding), 2)
                wanted = [t for t, needed in zip((weight, bias), ctx.needs_input_grad[1:3], strict=True) if needed]
                found = iter(torch.autograd.grad(again, wanted, gradient, create_graph=True))
            return None, *(next(found) if needed else None for needed in ctx.needs_input_grad[1:3]), None
        outs, channels, kernel, _ = weight.shape
        side = kernel + 1
        heavy = None
        if ctx.needs_input_grad[1]:
            images = gradient.contiguous(memory_format=torch.channels_last)
            back = torch.ops.aten.max_pool2d_with_indices_backward(
                images, four, [1, 4], [1, 4], [0, 0], [1, 1], False, chosen
            )
            matrix = torch.mm(windows.t(), back.permute(0, 2, 3, 1).reshape(len(windows), 4 * outs))
            if channels > 1:
                matrix = matrix.view(side * side, channels, 4, outs).transpose(1, 2)
            entries = torch.mm(matrix.reshape(side * side * 4, channels * outs).t(), _written(kernel))
            heavy = laid_like(entries.view(channels, outs, kernel, kernel).transpose(0, 1), weight)
        return None, heavy, gradient.sum((0, 2, 3)) if ctx.needs_input_grad[2] else None, None


class ConvPool:
    """A convolution and a pooling that are called together."""

    def __init__(self, convolution: nn.Conv2d, pool: nn.MaxPool2d) -> None:
        self.convolution, self.pool = convolution, pool

    def __call__(self, x: Tensor) -> Tensor:
        layer = self.convolution
        if not plain(x, layer.weight) or x.requires_grad or not _fits(layer, x):
            out: Tensor = self.pool(layer(x))
            return out
        out = _ConvPool.apply(x, layer.weight, layer.bias, layer.padding)  # type: ignore[no-untyped-call]
        return out


def suits(layer: nn.Conv2d, after: nn.MaxPool2d) -> bool:
    """Whether these two are such a pair."""
    return _convolves(layer) and _halves(after)


def _convolves(layer: nn.Conv2d) -> bool:
    """Whether it is a plain convolution with a bias, a square kernel and few inputs."""
    if type(layer) is not nn.Conv2d or "forward" in layer.__dict__ or layer.bias is None:
        return False
    kernel = layer.kernel_size[0]
    usual = layer.stride == layer.dilation == (1, 1) and layer.groups == 1 and layer.padding_mode == "zeros"
    square = layer.kernel_size == (kernel, kernel) and isinstance(layer.padding, tuple)
    return usual and square and kernel > 1 and (kernel + 1) ** 2 * layer.in_channels <= _MOST


def _halves(pool: nn.MaxPool2d) -> bool:
    """Whether it is a plain pooling of 2 x 2 numbers each."""
    if type(pool) is not nn.MaxPool2d or "forward" in pool.__dict__ or pool.ceil_mode or pool.return_indices:
        return False
    sizes = (pool.kernel_size, pool.stride, pool.padding, pool.dilation)
    return tuple(map(_pair, sizes)) == ((2, 2), (2, 2), (0, 0), (1, 1))


def _pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def _fits(layer: nn.Conv2d, x: Tensor) -> bool:
    """Whether there is at least one window."""
    sides = [x.shape[2 + d] + 2 * int(layer.padding[d]) - layer.kernel_size[0] + 1 for d in range(2)]
    return len(x) > 0 and x.shape[1] == layer.in_channels and min(sides) >= 2


# The two exchanged

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
Layers = tuple[nn.Module, ...]
Steps = tuple[Callable[[Tensor], Tensor], ...]


class _PoolFirst(nn.Sequential):
    """A sequence that computes so, unless somebody looks at what is between its layers."""

    orders: tuple[Layers, Steps]

    def forward(self, input: Tensor) -> Tensor:
        now = tuple(self._modules.values())
        known, swapped = self.__dict__.get("orders") or (None, now)  # a part of such a sequence has none
        for step in swapped if now == known and not _watched(now) else now:
            input = step(input)
        return input


def pool_first(module: nn.Module, joined: bool = False) -> None:
    """Let the module's sequences compute so where a ReLU and a max pooling are neighbours; ``joined``: and as one with
    a convolution before them, where that suits."""
    for part in module.modules():
        if type(part) is nn.Sequential and "forward" not in part.__dict__:
            layers = tuple(part)
            swapped = _swapped(layers)
            swapped = _joined(swapped) if joined else swapped
            if swapped != layers:
                part.__class__ = _PoolFirst
                part.__dict__["orders"] = (layers, swapped)


def _swapped(layers: Layers) -> Steps:
    order = list(layers)
    for place in range(len(order) - 1):
        after = order[place + 2] if place + 2 < len(order) else None
        if _relu(order[place]) and _pool(order[place + 1]) and not getattr(after, "inplace", False):
            order[place], order[place + 1] = order[place + 1], order[place]
    return tuple(order)


def _joined(steps: Steps) -> Steps:
    found: list[Callable[[Tensor], Tensor]] = []
    for step in steps:
        last = found[-1] if found else None
        if isinstance(last, nn.Conv2d) and isinstance(step, nn.MaxPool2d) and suits(last, step):
            found[-1] = ConvPool(last, step)
        else:
            found.append(step)
    return tuple(found)


def _relu(layer: nn.Module) -> bool:
    """A plain one; one that works in place may also change what its caller holds."""
    return type(layer) is nn.ReLU and not layer.inplace and "forward" not in layer.__dict__


def _pool(layer: nn.Module) -> bool:
    return type(layer) is nn.MaxPool2d and not layer.return_indices and "forward" not in layer.__dict__


def _watched(layers: Layers) -> bool:
    return any(getattr(layer, hooks) for layer in layers for hooks in _HOOKS) or any(
        getattr(torch_module, f"_global{hooks}", None) for hooks in _HOOKS
    )
