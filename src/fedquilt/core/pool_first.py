"""Max pooling before ReLU instead of after it: the same values and slopes, from a quarter of the numbers.

The largest of several numbers is the same before ReLU and after it, unless all are negative, and then both orders give
zero and a slope of zero. Then a convolution has its pooling next to it, and the two may be one (``core/conv_pool.py``).
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from fedquilt.core.conv_pool import ConvPool, suits

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
