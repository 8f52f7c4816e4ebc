"""Max pooling before ReLU instead of after it: the same values and slopes, from a quarter of the numbers.

The largest of several numbers is the same before ReLU and after it, unless all are negative, and then both orders give
zero and a slope of zero.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def pool_first(module: nn.Module) -> None:
    """Let the module's sequences compute so where a ReLU and a max pooling are neighbours."""
    for part in module.modules():
        if type(part) is nn.Sequential and "forward" not in part.__dict__:
            layers = tuple(part)
            swapped = _swapped(layers)
            if swapped != layers:
                part.__dict__["forward"] = partial(_forward, part, layers, swapped)


def _swapped(layers: tuple[nn.Module, ...]) -> tuple[nn.Module, ...]:
    order = list(layers)
    for place in range(len(order) - 1):
        first, then = order[place], order[place + 1]
        if type(first) is nn.ReLU and type(then) is nn.MaxPool2d and not then.return_indices:
            order[place], order[place + 1] = then, first
    return tuple(order)


def _forward(
    sequence: nn.Sequential, layers: tuple[nn.Module, ...], swapped: tuple[nn.Module, ...], x: Tensor
) -> Tensor:
    now = tuple(sequence._modules.values())
    if now != layers or any(getattr(m, hooks) for m in now for hooks in _HOOKS):  # somebody looks at what is between
        swapped = now
    for layer in swapped:
        x = layer(x)
    return x
