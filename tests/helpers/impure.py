"""Networks and losses of a user that are not pure, each in a way of its own; and two that are."""

from __future__ import annotations

import decimal
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedquilt.core.params import Params
from fedquilt.core.table import Batch


class Small(nn.Module):
    """Pure: a user's own network."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(64, 12), nn.Linear(12, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores."""
        return self.head(torch.tanh(self.first(x.flatten(1))))


class Tempered(Small):
    """A temperature that falls with the number of calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        """Class scores, sharper with every call."""
        self.calls += 1
        return super().forward(x) * (1 + self.calls / 100)


class TemperedAside(Small):
    """The same, with the counting done where no attribute is set."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        """Class scores, sharper with every call."""
        self.log.append(len(self.log))
        return super().forward(x) * (1 + len(self.log) / 100)


class TemperedByClass(Small):
    """The same, counted on the class."""

    seen: ClassVar[dict[str, int]] = {"calls": 0}

    def forward(self, x: Tensor) -> Tensor:
        """Class scores, sharper with every call."""
        self.seen["calls"] = (self.seen["calls"] + 1) % 50
        return super().forward(x) * (1 + self.seen["calls"] / 100)


class Coin(Small):
    """A branch by Python's own generator."""

    def __init__(self) -> None:
        super().__init__()
        random.seed(7)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores, or twice that."""
        out = super().forward(x)
        return out if random.random() < 0.5 else 2 * out


class Noisy(Small):
    """Noise by numpy's global generator."""

    def __init__(self) -> None:
        super().__init__()
        np.random.seed(7)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores and noise."""
        return super().forward(x) + torch.from_numpy(np.random.randn(10).astype(np.float32))


class Printing(Small):
    """Says so at every call."""

    def forward(self, x: Tensor) -> Tensor:
        """Class scores."""
        self.tell(len(x))
        return super().forward(x)

    def tell(self, rows: int) -> None:
        """Say how many rows there are."""
        print("rows", rows)


class Buffered(Small):
    """A running mean that is put in the place of a buffer."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        """Class scores less a running mean."""
        out = super().forward(x)
        self._buffers["mean"] = 0.9 * self.mean + 0.1 * out.detach().mean()
        return out - self.mean


class Peeking(Small):
    """A branch by numbers that are taken out of a tensor past its kernels."""

    def forward(self, x: Tensor) -> Tensor:
        """Class scores, or twice that."""
        out = super().forward(x)
        return out if out.detach().numpy().sum() > 0 else 2 * out


class PeekingBehind(Small):
    """The same by a function of numpy's."""

    def forward(self, x: Tensor) -> Tensor:
        """Class scores, or twice that."""
        out = super().forward(x)
        return out if np.sum(np.asarray(out.detach())) > 0 else 2 * out


HEARD: list[int] = []


def heard(module: nn.Module, given: Any, out: Tensor) -> None:
    """A hook."""
    HEARD.append(len(out))


def hooked() -> nn.Module:
    """A network with a hook on one of its layers."""
    module = Small()
    module.first.register_forward_hook(heard)
    return module


class Drawn(Small):
    """First values by numpy's global generator."""

    def __init__(self) -> None:
        super().__init__()
        self.head.weight.data = torch.from_numpy(np.random.randn(10, 12).astype(np.float32))


class Numbered(Small):
    """First values by how many there are."""

    made = 0

    def __init__(self) -> None:
        super().__init__()
        Numbered.made = (Numbered.made + 1) % 1000
        self.head.bias.data = torch.full((10,), float(Numbered.made))


def pure(out: Any, params: Params, fixed: Mapping[str, Any], batch: Batch) -> Tensor:
    """A user's own loss."""
    return F.cross_entropy(out, batch.y, label_smoothing=0.1)


SCALE = {"by": 1.0}


def scaled(out: Any, params: Params, fixed: Mapping[str, Any], batch: Batch) -> Tensor:
    """A loss that depends on a global."""
    return F.cross_entropy(out, batch.y) * SCALE["by"]


class CALLS:
    """A number that no value of Python's holds: it is kept inside an extension."""

    @staticmethod
    def get() -> int:
        """As it is now."""
        return decimal.getcontext().prec - 1

    @staticmethod
    def set(number: int) -> None:
        """From now on."""
        held = decimal.getcontext()
        held.prec = number + 1


@dataclass(frozen=True)
class late:
    """A loss that changes with its ``after``-th call, counted where nobody can look."""

    after: int

    def __call__(self, out: Any, params: Params, fixed: Mapping[str, Any], batch: Batch) -> Tensor:
        CALLS.set(CALLS.get() + 1)
        return F.cross_entropy(out, batch.y) * (1.0 if CALLS.get() < self.after else 0.5)
