"""Networks by name, made to measure for an input shape."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from fedquilt.core.errors import InputError
from fedquilt.models.small import MLP, FedAvgCNN, LeNet5, LogisticRegression

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Entry:
    """A network that can be asked for: which shapes fit, how the shape becomes arguments, and its options."""

    build: Callable[..., nn.Module]
    description: str
    takes: str
    fits: Callable[[Shape], bool]
    arguments: Callable[[Shape], dict[str, int]]
    options: tuple[str, ...] = ()


def _any_shape(shape: Shape) -> bool:
    return True


def _lenet_shape(shape: Shape) -> bool:
    return len(shape) == 3 and shape[1] == shape[2] and shape[1] in (28, 32)


def _cnn_shape(shape: Shape) -> bool:
    return len(shape) == 3 and shape[1] == shape[2] and shape[1] >= 16


def _flat(shape: Shape) -> dict[str, int]:
    return {"features": math.prod(shape)}


def _image(shape: Shape) -> dict[str, int]:
    return {"channels": shape[0], "size": shape[1]}


MODELS = {
    "logistic": Entry(LogisticRegression, "one linear layer", "any shape", _any_shape, _flat),
    "mlp": Entry(MLP, "linear layers with ReLU (hidden=(200,))", "any shape", _any_shape, _flat, ("hidden",)),
    "lenet5": Entry(
        LeNet5, "LeNet-5 with tanh and average pooling", "(C, 28, 28) or (C, 32, 32)", _lenet_shape, _image
    ),
    "fedavg_cnn": Entry(
        FedAvgCNN, "two 5x5 convolutions and a hidden layer (hidden=512)", "(C, H, H) with H of 16 or more",
        _cnn_shape, _image, ("hidden",),
    ),
}  # fmt: skip


def make(name: str, shape: Sequence[int], classes: int, **options: Any) -> partial[nn.Module]:
    """A builder without arguments for inputs of this shape, (C, H, W) or (F,): what ``Net`` takes.

    Example:
        >>> build = make("fedavg_cnn", (1, 28, 28), 10)
        >>> type(build()).__name__
        'FedAvgCNN'
    """
    entry = MODELS.get(name)
    if entry is None:
        raise InputError(f"There is no model called {name!r}.{_hint(name, MODELS)} There are: {', '.join(MODELS)}.")
    for option in options:
        if option not in entry.options:
            known = f"Its options are: {', '.join(entry.options)}." if entry.options else "It has none."
            raise InputError(f"The model {name} has no option {option!r}.{_hint(option, entry.options)} {known}")
    builder = partial(entry.build, **entry_arguments(name, entry, shape), classes=classes, **_plain(options))
    _bare(builder)  # a wrong value speaks up here, not in the middle of a run
    return builder


def entry_arguments(name: str, entry: Entry, shape: Sequence[int]) -> dict[str, int]:
    """The arguments that follow from the shape; refused when the network cannot take it."""
    wanted = tuple(int(s) for s in shape)
    if not wanted or min(wanted) < 1:
        raise InputError(f"The shape of one input must be like (1, 28, 28) or (20,), got {tuple(shape)}.")
    if not entry.fits(wanted):
        fitting = [other for other, e in MODELS.items() if e.fits(wanted)]
        raise InputError(f"The model {name} takes {entry.takes}, not {wanted}. These fit: {', '.join(fitting)}.")
    return entry.arguments(wanted)


def available() -> list[dict[str, Any]]:
    """Every name with its description, the shapes it takes, and its size for 1x28x28 inputs and 10 classes."""
    return [
        {
            "name": name,
            "description": entry.description,
            "takes": entry.takes,
            "parameters": sum(
                p.numel() for p in _bare(partial(entry.build, **entry.arguments((1, 28, 28)), classes=10))
            ),
        }
        for name, entry in MODELS.items()
    ]


def _bare(builder: partial[nn.Module]) -> list[nn.Parameter]:
    """The parameters of the module, without memory and without drawing random numbers."""
    with torch.device("meta"):
        return list(builder().parameters())


def _plain(options: dict[str, Any]) -> dict[str, Any]:
    return {n: tuple(v) if isinstance(v, list) else v for n, v in options.items()}  # TOML has lists only


def _hint(name: str, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(str(name), list(names), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""
