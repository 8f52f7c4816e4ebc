"""The form of every network here: ``head(features(x))``, so that methods can keep the one and share the other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedquilt.errors import InputError

IDS = (torch.int32, torch.int64)


class Split(nn.Module):
    """A network in two parts: ``features`` makes a vector of each row, ``head`` makes class scores of the vector.

    Attributes:
        ids: Whether rows are token ids (whole numbers) rather than measurements.
        flat: Whether the network flattens its input first, so that any shape with the right count will do.
        frozen: Prefixes of names that are neither trained nor sent; ``fedquilt.models.net`` hands them to ``Net``.
    """

    ids: ClassVar[bool] = False
    flat: ClassVar[bool] = False
    frozen: tuple[str, ...] = ()

    def __init__(self, features: nn.Module, head: nn.Linear, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.features = features
        self.head = head
        self.shape = shape

    def forward(self, x: Tensor) -> Tensor:
        """Class scores, one row for each row of x."""
        if x.shape[1:] != self.shape:
            self._check_shape(x)
        if x.dtype not in IDS if self.ids else not x.is_floating_point():
            self._check_dtype(x)
        scores: Tensor = self.head(self.features(x))
        return scores

    def _check_shape(self, x: Tensor) -> None:
        if self.flat and math.prod(x.shape[1:]) == self.shape[0] and x.dim() >= 2:
            return
        wanted = text_of(self.shape) + (f" (or any shape with {self.shape[0]} numbers)" if self.flat else "")
        axes = "" if self.flat else _AXES if len(self.shape) == 3 else " A single row needs a batch axis, x[None]."
        raise InputError(f"{type(self).__name__} takes {wanted}, got {text_of(x.shape[1:])}.{axes}")

    def _check_dtype(self, x: Tensor) -> None:
        wanted = "token ids of type int64 or int32" if self.ids else "floating-point numbers"
        advice = "Tokenise the text first." if self.ids else "Convert them, x.float(), or use a model for token ids."
        raise InputError(f"{type(self).__name__} takes {wanted}, got {str(x.dtype).removeprefix('torch.')}. {advice}")


_AXES = " Images are channels first; a single one needs a batch axis, x[None]."


def text_of(shape: Sequence[int]) -> str:
    """A shape in words."""
    return "rows of shape (" + ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "") + ")"


MOST_LAYERS = 200


def check_counts(**counts: int) -> None:
    """Raise unless every value is a whole number of at least 1."""
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(f"{name} must be a whole number of at least 1, got {value!r}.")
        if name.endswith(("depth", "layers")) and value > MOST_LAYERS:  # each is made one by one, before any memory
            raise InputError(f"{name} must be at most {MOST_LAYERS}, got {value}.")


def check_share(**shares: float) -> None:
    """Raise unless every value is a number from 0 up to, but not including, 1."""
    for name, value in shares.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
            raise InputError(f"{name} must be a number in [0, 1), got {value!r}.")


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Raise unless the value is one of the choices."""
    if value not in choices:
        raise InputError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}.")


def check_switch(**switches: bool) -> None:
    """Raise unless every value is True or False."""
    for name, value in switches.items():
        if not isinstance(value, bool):
            raise InputError(f"{name} must be true or false, got {value!r}.")
