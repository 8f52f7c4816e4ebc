"""Small federations, networks and runs that tests share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from fedquilt.core.exchange import Context, Method
from fedquilt.core.net import Net
from fedquilt.core.objective import Objective
from fedquilt.core.params import Params
from fedquilt.core.seed import Seed
from fedquilt.core.table import Batch, ClientId, Site, Table
from fedquilt.core.train import Job, Train, Trained
from fedquilt.data import Federation
from fedquilt.engines.local import Local
from fedquilt.methods.fedavg import FedAvg
from fedquilt.pieces.optimizers import SGD
from fedquilt.runs.runner import Snapshot, run
from fedquilt.testing.toy import digits as digits


class OneWeight(nn.Module):
    """out = w * x: gradients that one can do by hand."""

    def __init__(self, start: float = 0.0) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(start))

    def forward(self, x: Tensor) -> Tensor:
        """w * x."""
        return self.w * x


class Normed(nn.Module):
    """A small classifier with BatchNorm."""

    def __init__(self, features: int = 64, classes: int = 10, width: int = 16) -> None:
        super().__init__()
        self.first = nn.Linear(features, width)
        self.bn = nn.BatchNorm1d(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores."""
        return self.head(torch.relu(self.bn(self.first(x.flatten(1)))))


def weight_itself(out: Any, params: Params, fixed: Mapping[str, Any], batch: Batch) -> Tensor:
    """loss = w, whose gradient is 1 everywhere."""
    return params["w"]


def squared_error(out: Any, params: Params, fixed: Mapping[str, Any], batch: Batch) -> Tensor:
    """loss = mean of (out - y)^2 / 2."""
    return (out - batch.y).square().mean() / 2


def site_of(**columns: Any) -> Site:
    """A site whose training samples are these columns."""
    return Site(Table({n: torch.as_tensor(c) for n, c in columns.items()}))


def start_from(download: Any, client: Any, site: Site, context: Context) -> Job:
    """Train what was sent."""
    return Job(params=download, fixed={"start": download})


def give_back(job: Job, trained: Trained, client: Any, site: Site, context: Context) -> tuple[Any, Any]:
    """Upload the model."""
    return client, trained.params


def trained(
    objective: Objective, params: Params, site: Site, *, lr: float = 1.0, seed: int = 0, round: int = 0, **settings: Any
) -> Trained:
    """What local training makes of params; by default one pass in one batch with plain SGD."""
    settings = {"optimizer": SGD(lr), "batch_size": 1000, **settings}
    work = Train(start=start_from, objective=objective, finish=give_back, **settings)
    return work.run(params, None, site, Context(round, 0, Seed(seed)))[3]


@cache
def points(*sizes: int) -> Federation:
    """Two classes in the plane; client k has sizes[k] training samples, and as many test samples."""
    draw = torch.Generator().manual_seed(7)
    parts = {}
    for client, size in enumerate(sizes):
        y = torch.arange(2 * size) % 2
        x = torch.randn(2 * size, 2, generator=draw) + 2.0 * y[:, None] + 0.3 * client
        parts[client] = {"train": (x[:size], y[:size]), "test": (x[size:], y[size:])}
    return Federation.from_clients(parts, classes=2, standardise=None)


def linear() -> Net:
    """A network for ``points``."""
    return Net.of(nn.Linear, 2, 2)


def fedavg(**settings: Any) -> FedAvg:
    """FedAvg for ``points``."""
    return FedAvg(**{"objective": linear(), "optimizer": SGD(0.1), "batch_size": 8, **settings})


@dataclass(frozen=True)
class first:
    """Asks the first so many clients, in every round."""

    count: int

    def __call__(self, state: Any, ids: Sequence[ClientId], seed: Seed) -> Sequence[ClientId]:
        return ids[: self.count]


def last(method: Method, federation: Federation, rounds: int = 2, engine: Any = None, **options: Any) -> Snapshot:
    """The snapshot after the last round; without evaluation unless a score is given."""
    found = None
    for snapshot in run(method, federation, rounds=rounds, engine=engine or Local(), **{"score": None, **options}):
        found = snapshot
    assert found is not None
    return found
