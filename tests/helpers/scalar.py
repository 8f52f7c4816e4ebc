"""A model with one weight on three unlike clients, and its gradients in plain Python: what oracles are transcribed on.

out = w x, loss = mean (w x - y)^2 / 2 over a client's samples, one batch of all rows a step; so a client's gradient is
a (w - t) with a = mean x^2 and t = mean x y / a.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fedquilt.core.net import Net
from fedquilt.core.objective import Objective
from fedquilt.data import Federation
from helpers.toy import OneWeight, last, squared_error

X = np.array([1.0, 0.5, 2.0, 1.0, 1.0, 0.5, 0.25])
Y = np.array([4, 1, 1, 0, 1, 2, 3])
ROWS = {0: [0], 1: [1, 2], 2: [3, 4, 5, 6]}
N = {k: len(rows) for k, rows in ROWS.items()}
START = 1.0

DATA = Federation.from_rows(
    {"x": torch.tensor(X, dtype=torch.float32), "y": torch.tensor(Y)}, {k: {"train": r} for k, r in ROWS.items()}
)
LOSS = Objective(Net.of(OneWeight, start=START), (squared_error,))


def gradient(client: int, w: float) -> float:
    """The gradient of a client's loss."""
    x, y = X[ROWS[client]], Y[ROWS[client]]
    return float(np.mean(x * (w * x - y)))


def loss(client: int, w: float) -> float:
    """A client's loss."""
    x, y = X[ROWS[client]], Y[ROWS[client]]
    return float(np.mean((w * x - y) ** 2) / 2)


def descend(client: int, w: float, lr: float, steps: int) -> float:
    """Plain gradient descent on a client's loss."""
    for _ in range(steps):
        w -= lr * gradient(client, w)
    return w


def mean(values: dict[int, float]) -> float:
    """Weighted by examples."""
    return sum(N[k] * v for k, v in values.items()) / sum(N[k] for k in values)


def weight(method: Any, rounds: int) -> float:
    """The server's weight after some rounds."""
    return float(last(method, DATA, rounds=rounds).state.shared["w"])
