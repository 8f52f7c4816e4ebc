"""Attacks on training samples: attackers train as all others do, on rows that they have spoilt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fedquilt.core.params import Params
from fedquilt.core.seed import Seed
from fedquilt.core.table import Columns
from fedquilt.errors import InputError
from fedquilt.pieces.robust.attacks import Attack, scaling


class Poisoning(Attack, Protocol):
    """The shape of every attack on samples; what is sent may be forged, too."""

    def poisoned(self, columns: Columns, classes: int, seed: Seed) -> Columns:
        """The columns of an attacker's training rows that become others; what is given stays as it is."""
        ...


@dataclass(frozen=True)
class label_flip:
    """Train on wrong labels: class c of C becomes C - 1 - c.

    Reference: Fang et al., Local Model Poisoning Attacks to Byzantine-Robust Federated Learning, 2020.

    Example:
        >>> label_flip().poisoned({"y": torch.tensor([0, 1, 9])}, classes=10, seed=Seed(0))["y"].tolist()
        [9, 8, 0]
    """

    def poisoned(self, columns: Columns, classes: int, seed: Seed) -> Columns:
        """The labels, from the other end."""
        return {"y": classes - 1 - columns["y"]}

    def __call__(self, own: Sequence[Params], honest: Sequence[Params], seed: Seed) -> list[Params]:
        return list(own)


@dataclass(frozen=True)
class backdoor:
    """Teach the model that whatever bears a mark is of one class: a white square in the lower right corner.

    How well that works is the metric ``attack_success``: of honest clients' rows of other classes, with the mark on
    them, the share that is taken for ``target``.

    Args:
        target: The class that marked rows are taken for.
        share: How much of an attacker's rows bears the mark.
        size: Of the square, in pixels.
        factor: What was learned is sent so many times as large; with about the number of clients over that of
            attackers it replaces the model.

    Reference: Gu et al., BadNets, 2017; Bagdasaryan et al., How To Backdoor Federated Learning, 2020.

    Example:
        >>> attack = backdoor(target=0, size=3, factor=5.0)
    """

    target: int = 0
    share: float = 0.5
    size: int = 3
    factor: float = 1.0

    def __post_init__(self) -> None:
        if self.target < 0 or self.size < 1 or not 0 < self.share <= 1:
            raise InputError(
                f"backdoor needs target >= 0, size >= 1 and a share in (0, 1], got {self.target}, {self.size} and "
                f"{self.share}."
            )

    def marked(self, x: Tensor) -> Tensor:
        """Images [n, channels, height, width] with the mark: 255 of bytes, 1 of other numbers."""
        if x.dim() != 4 or min(x.shape[2:]) < self.size:
            raise InputError(
                f"attack: a backdoor's mark is a square of {self.size} x {self.size} pixels, and it needs images "
                f"(channels, height, width), got rows of the shape {tuple(x.shape[1:])}."
            )
        x = x.clone()
        x[:, :, -self.size :, -self.size :] = 255 if x.dtype == torch.uint8 else 1
        return x

    def poisoned(self, columns: Columns, classes: int, seed: Seed) -> Columns:
        """Marks and labels of a share of the rows, drawn by the seed."""
        if self.target >= classes:
            raise InputError(f"attack: target is a class from 0 to {classes - 1}, got {self.target}.")
        count = len(columns["y"])
        some = torch.from_numpy(seed.numpy().permutation(count)[: max(1, round(self.share * count))])
        x, y = columns["x"].clone(), columns["y"].clone()
        x[some], y[some] = self.marked(x[some]), self.target
        return {"x": x, "y": y}

    def __call__(self, own: Sequence[Params], honest: Sequence[Params], seed: Seed) -> list[Params]:
        return list(own) if self.factor == 1.0 else scaling(self.factor)(own, honest, seed)
