"""What a package of one's own may bring to fedquilt: a method, a data set, a model, an engine, and more."""

from dataclasses import dataclass, replace

import numpy as np
import torch

from fedquilt import Context, Exchange, FedAvg, OnBase
from fedquilt.data import Arrays
from fedquilt.engines.local import Local


@dataclass(frozen=True, init=False)
class Damped(OnBase):
    """FedAvg, but the server goes only a part of the way to the average.

    Args:
        base: How clients train, and what the average is.
        step: How far the server goes, 1 for all the way.
    """

    base: FedAvg
    step: float = 0.5

    def exchanges(self) -> tuple[Exchange, ...]:
        """The base's exchange with another end."""
        (train,) = self.base.exchanges()
        return (replace(train, up=self.up),)

    def up(self, state, replies, context: Context):
        """w <- w + step (average - w)."""
        after = self.base.up(state, replies, context)
        shared = {n: torch.lerp(w, after.shared[n], self.step) for n, w in state.shared.items()}
        return replace(after, shared=shared)


def two_moons() -> Arrays:
    """Two half circles in the plane, one class each."""
    draw, y = np.random.default_rng(0), np.arange(400) % 2
    angle = draw.uniform(0, np.pi, 400)
    x = np.stack([np.cos(angle) + y, np.sin(angle) * (1 - 2 * y) + 0.5 * y], axis=1)
    return Arrays((x + draw.normal(0, 0.1, x.shape)).astype(np.float32), y, classes=2, licence="made up")


class Wave(torch.nn.Module):
    """A linear layer on sines of the inputs.

    Args:
        rate: How fast they swing.
    """

    def __init__(self, shape: tuple[int, ...], classes: int, rate: float = 1.0) -> None:
        super().__init__()
        self.rate, self.head = rate, torch.nn.Linear(int(np.prod(shape)), classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Class scores."""
        return self.head((self.rate * x).sin().flatten(1))


class Counting(Local):
    """The engine of one process by another name."""

    name = "counting"

    def __init__(self, devices=()) -> None:
        super().__init__(*devices[:1])


@dataclass(frozen=True)
class InOrder:
    """Rows as they come, in blocks of equal size."""

    def __call__(self, labels, clients: int, seed) -> list:
        return np.array_split(np.arange(len(labels)), clients)


@dataclass(frozen=True)
class Jitter:
    """In training: every number moved a little at random."""

    scale: float = 0.05

    def drawn(self, x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """x + scale z."""
        return x + self.scale * torch.randn(x.shape, generator=generator)
