"""What every system does here: the same data, the same network, the same start. Needs torch and numpy alone."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

BATCH, CLASSES, TEST_ROWS = 10, 10, 2000


@dataclass(frozen=True)
class Work:
    """A workload: so many clients with so many rows, so many of them per round, one pass in batches of ten.

    ``rounds`` are played by each process; where ``whole`` is true, the time of all of them counts, with the start of
    the engine (but not that of Python) and the final score, and otherwise that of a round after the first.
    """

    about: str
    model: str
    clients: int
    rows: int
    cohort: int
    rounds: int
    noise: float
    lr: float
    whole: bool = False


WORKS = {
    "V1": Work("FedAvgCNN, 20 clients x 500 rows, all of them", "cnn", 20, 500, 20, 4, 4.0, 0.05),
    "V2": Work("FedAvgCNN, 100 clients x 100 rows, 10 per round", "cnn", 100, 100, 10, 11, 4.0, 0.05),
    "V3": Work(
        "logistic regression, 1,000 clients x 60 rows, 10 per round", "logistic", 1000, 60, 10, 100, 14.0, 0.01, True
    ),
}


class CNN(nn.Module):
    """Two 5 x 5 convolutions with pooling and one hidden layer; named as fedquilt's ``fedavg_cnn``."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(1024, 512),
            nn.ReLU(),
        )
        self.head = nn.Linear(512, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Class scores."""
        return self.head(self.features(x))


class Logistic(nn.Module):
    """One linear layer; named as fedquilt's ``logistic``."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.head = nn.Flatten(), nn.Linear(784, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Class scores."""
        return self.head(self.features(x))


def network(work: Work) -> nn.Module:
    """The network of a workload."""
    return CNN() if work.model == "cnn" else Logistic()


def write(work: Work, path: Path) -> None:
    """Images of ten patterns under noise, for every client and for the test; and the weights all systems start from."""
    rng = np.random.default_rng(0)
    patterns = np.kron(rng.normal(size=(CLASSES, 1, 7, 7)), np.ones((4, 4))).astype(np.float32)

    def drawn(count: int) -> tuple[np.ndarray, np.ndarray]:
        y = rng.integers(0, CLASSES, count)
        x = patterns[y] + work.noise * rng.normal(size=(count, 1, 28, 28)).astype(np.float32)
        return (x / np.float32(np.sqrt(1 + work.noise**2))).astype(np.float32), y

    x, y = drawn(work.clients * work.rows)
    test_x, test_y = drawn(TEST_ROWS)
    with torch.random.fork_rng():
        torch.random.manual_seed(0)
        start = {f"start.{n}": t.numpy() for n, t in network(work).state_dict().items()}
    np.savez(path, x=x, y=y, test_x=test_x, test_y=test_y, **start)


def start_of(path: str | Path) -> dict[str, torch.Tensor]:
    """The weights all systems start from."""
    with np.load(path) as arrays:
        return {n[6:]: torch.from_numpy(arrays[n]) for n in arrays.files if n.startswith("start.")}


class Data:
    """The arrays of a workload; client c has the rows from c * rows on."""

    def __init__(self, path: str | Path, work: Work) -> None:
        self.work = work
        with np.load(path) as arrays:
            self.x, self.y = torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["y"])
            self.test = torch.from_numpy(arrays["test_x"]), torch.from_numpy(arrays["test_y"])
        self.start = start_of(path)

    def client(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The rows of one client."""
        low = number * self.work.rows
        return self.x[low : low + self.work.rows], self.y[low : low + self.work.rows]

    def network(self) -> nn.Module:
        """The network with the weights all systems start from."""
        module = network(self.work)
        module.load_state_dict(self.start)
        return module

    def accuracy(self, module: nn.Module) -> float:
        """The share of test samples that a network gets right."""
        x, y = self.test
        with torch.inference_mode():
            right = sum(int((module(a).argmax(1) == b).sum()) for a, b in zip(x.split(100), y.split(100), strict=True))
        return right / len(y)


def asked() -> tuple[Work, Data, int]:
    """The workload, its data and the number of rounds that this process was asked for."""
    work = WORKS[os.environ["PEERS_WORK"]]
    return work, Data(os.environ["PEERS_DATA"], work), int(os.environ["PEERS_ROUNDS"])


def told(ends: list[float], accuracy: float, **more: Any) -> None:
    """Report when rounds ended (``time.time``) and how good the result is."""
    Path(os.environ["PEERS_OUT"]).write_text(json.dumps({"ends": ends, "accuracy": accuracy, "told": now(), **more}))


def now() -> float:
    """Seconds, on a clock that all processes share."""
    return time.time()
