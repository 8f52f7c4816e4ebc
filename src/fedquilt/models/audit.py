"""How much of a model is frozen, trained and sent: as data, and as a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class Audit:
    """Numbers in the parameters of a model, tied ones once.

    Args:
        total, frozen, trainable: How many in all, never trained, and trained.
        bytes: Of the model without its adapters: what would travel if it were trained as a whole.
        sent: Bytes of the trainable ones: what travels each way in a round.
        parts: For each part of the model: its numbers, and those of them that are trained.

    Example:
        >>> from fedquilt.models import MLP
        >>> found = audit(MLP(features=4, classes=2, hidden=(3,)))
        >>> found.total, found.frozen
        (23, 0)
    """

    total: int
    frozen: int
    trainable: int
    bytes: int
    sent: int
    parts: dict[str, tuple[int, int]]

    @property
    def percent(self) -> float:
        """The trainable share of the total, in percent."""
        return 100 * self.trainable / self.total if self.total else 0.0

    @property
    def ratio(self) -> float | None:
        """How many times less travels than if the model were trained as a whole; None if nothing is trained."""
        return self.bytes / self.sent if self.sent else None

    def rows(self) -> list[dict[str, str]]:
        """The same as a table for people."""
        parts = [_row(name, whole, trained) for name, (whole, trained) in self.parts.items()]
        return [*parts, _row("total", self.total, self.trainable)]


def _row(name: str, whole: int, trained: int) -> dict[str, str]:
    share = f"{100 * trained / whole:.2f} %" if whole else ""
    numbers = {"total": whole, "frozen": whole - trained, "trainable": trained}
    return {"part": name, **{k: f"{v:,}" for k, v in numbers.items()}, "percent": share}


def audit(model: nn.Module | Callable[[], nn.Module]) -> Audit:
    """The audit of a module, or of what a builder makes; for a builder, no memory is used and no weight read.

    Example:
        >>> from functools import partial
        >>> from fedquilt.models import MaskedAutoencoder, adapted
        >>> audit(partial(adapted, MaskedAutoencoder, size=8)).trainable
        4384
    """
    if not isinstance(model, nn.Module):
        with torch.device("meta"):
            model = model()
    found = dict(model.named_parameters())
    parts: dict[str, tuple[int, int]] = {}
    for name, p in found.items():
        top = name.split(".")[0]
        whole, trained = parts.get(top, (0, 0))
        parts[top] = whole + p.numel(), trained + p.numel() * p.requires_grad
    trained_ones = [p for p in found.values() if p.requires_grad]
    total, trainable = sum(p.numel() for p in found.values()), sum(p.numel() for p in trained_ones)
    return Audit(
        total=total,
        frozen=total - trainable,
        trainable=trainable,
        parts=parts,
        bytes=sum(p.numel() * p.element_size() for n, p in found.items() if not n.startswith("adapters.")),
        sent=sum(p.numel() * p.element_size() for p in trained_ones),
    )
