"""What was learned, kept and forgotten over a sequence of tasks, from a matrix of scores.

How good features are without training them: a linear layer on top, and the nearest neighbours' vote.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from fedquilt.core.seed import Seed
from fedquilt.errors import InputError

BLOCK = 1024  # rows whose neighbours are sought at a time


@dataclass(frozen=True)
class LinearProbe:
    """Accuracy of a linear layer on features of length 1, trained with AdamW and cross-entropy from zero weights.

    Before the layer, every dimension is standardised by the training samples, as in the linear probing of He et al.
    2022: features that almost all point the same way are as easy to tell apart for a linear map, but not for few steps.

    Args:
        lr, weight_decay: Of AdamW.
        epochs, batch_size: Passes over the training samples.
        least: At least so many steps; five passes over few rows would leave the layer half trained.
        standardise: Whether dimensions are standardised.
    """

    lr: float = 1e-2
    weight_decay: float = 1e-4
    epochs: int = 5
    batch_size: int = 512
    least: int = 300
    standardise: bool = True

    def __call__(
        self, train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], seed: Seed, classes: int | None = None
    ) -> Tensor:
        """Which test samples are right [n], as booleans; (features, labels) of both."""
        (x, y), (new, truth) = train, test
        _check(x, y)
        width = classes or int(torch.cat([y, truth]).max()) + 1
        layer = torch.nn.utils.skip_init(torch.nn.Linear, x.shape[1], width)
        with torch.no_grad():
            layer.weight.zero_()
            layer.bias.zero_()
        x, new = F.normalize(x.float(), dim=1), F.normalize(new.float(), dim=1)
        if self.standardise:
            mean, spread = x.mean(0), x.std(0, correction=0).clamp(min=1e-6)
            x, new = (x - mean) / spread, (new - mean) / spread
        draw, made = seed.fold("probe").torch(), 0
        steps = max(self.epochs * -(-len(x) // self.batch_size), self.least)
        step = torch.optim.AdamW(layer.parameters(), lr=self.lr, weight_decay=self.weight_decay)
        with torch.enable_grad():
            while made < steps:
                for rows in torch.randperm(len(x), generator=draw).split(self.batch_size)[: steps - made]:
                    step.zero_grad()
                    F.cross_entropy(layer(x[rows]), y[rows]).backward()
                    step.step()
                    made += 1
        with torch.no_grad():
            return torch.as_tensor(layer(new).argmax(1) == truth)


@dataclass(frozen=True)
class Neighbours:
    """Accuracy of the majority among the ``k`` training samples of greatest cosine (of equal votes the lowest
    class)."""

    k: int = 20

    def __post_init__(self) -> None:
        if self.k < 1:
            raise InputError(f"k must be at least 1, got {self.k}.")

    def __call__(self, train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor]) -> Tensor:
        """Which test samples are right [n], as booleans; (features, labels) of both."""
        (x, y), (new, truth) = train, test
        _check(x, y)
        known, classes = F.normalize(x.float(), dim=1), int(y.max()) + 1
        right = []
        for rows, labels in zip(F.normalize(new.float(), dim=1).split(BLOCK), truth.split(BLOCK), strict=True):
            near = (rows @ known.T).topk(min(self.k, len(known)), dim=1).indices
            right.append(F.one_hot(y[near], classes).sum(1).argmax(1) == labels)
        return torch.cat(right)


def _check(x: Tensor, y: Tensor) -> None:
    if not len(x) or len(x) != len(y):
        raise InputError(f"A probe needs labelled training samples, got {len(x)} rows and {len(y)} labels.")


Row = Sequence[float | None]
Scores = NDArray[np.float64]


@dataclass(frozen=True)
class Continual:
    """Numbers of a matrix A[t, i], the score on task i after task t, for T tasks (None: cannot be said).

    Args:
        average: mean_i A[T, i].
        forgetting: mean over i < T of max_{t < T} A[t, i] - A[T, i]: how far each task is below its best.
        backward: mean over i < T of A[T, i] - A[i, i], backward transfer.
        forward: mean over i > 1 of A[i - 1, i] - b_i, forward transfer; b scores the model before any task.
        incremental: mean over t of the average over the tasks met so far, mean_{i <= t} A[t, i].
    """

    average: float
    forgetting: float | None
    backward: float | None
    forward: float | None
    incremental: float


def continual(matrix: Sequence[Row], before: Row | None = None) -> Continual:
    """The numbers of a T x T matrix; scores of tasks not yet met may be missing (None or nan).

    Args:
        matrix: Row t holds the scores after task t.
        before: The scores b of the model before the first task, for forward transfer.
    """
    a = _square(matrix)
    tasks = len(a)
    old = range(tasks - 1)
    return Continual(
        average=float(a[-1].mean()),
        forgetting=float(np.mean([np.nanmax(a[:-1, i]) - a[-1, i] for i in old])) if old else None,
        backward=float(np.mean([a[-1, i] - a[i, i] for i in old])) if old else None,
        forward=None if before is None else _forward(a, _line(before, tasks)),
        incremental=float(np.mean([a[t, : t + 1].mean() for t in range(tasks)])),
    )


def _forward(a: Scores, start: Scores) -> float | None:
    gains = [a[i - 1, i] - start[i] for i in range(1, len(a))]
    return float(np.mean(gains)) if gains and not any(map(math.isnan, gains)) else None


def _square(matrix: Sequence[Row]) -> Scores:
    rows = [_line(row, len(matrix)) for row in matrix]
    if not rows:
        raise InputError("Without a task there is nothing to remember or to forget: the matrix is empty.")
    a = np.stack(rows)
    if bool(np.isnan(a[np.tril_indices(len(a))]).any()):
        raise InputError("The score of a task that was already met is missing from the matrix.")
    return a


def _line(row: Row, tasks: int) -> Scores:
    if len(row) != tasks:
        raise InputError(f"Every row needs a score for each of the {tasks} tasks, got one with {len(row)}.")
    return np.array([math.nan if v is None else v for v in row], dtype=np.float64)
