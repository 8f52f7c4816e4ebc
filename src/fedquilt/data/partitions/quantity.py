"""Quantity skew: clients differ in how much they hold; what each holds is a random sample of the whole."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedquilt.core.plain import Floats, Ints
from fedquilt.core.seed import Seed
from fedquilt.data.checks import check_clients, check_minimum
from fedquilt.data.partitions.labels import Concentrated
from fedquilt.data.partitions.shares import raised, whole_shares
from fedquilt.errors import InputError


@dataclass(frozen=True)
class LogNormal:
    """Client sizes in proportion to exp(sigma * z_i), z_i standard normal. Sigma 0 is even, 1 to 2 is usual.

    Args:
        sigma: The spread of the logarithm of the sizes.
        minimum: The fewest rows a client may end with.

    Example:
        >>> from fedquilt import Federation
        >>> clients = Federation.from_source("digits", partition=LogNormal(1.0), clients=4)
        >>> len(clients.ids)
        4
    """

    by_label: ClassVar[bool] = False
    sigma: float
    minimum: int = 1

    def __post_init__(self) -> None:
        if not (math.isfinite(self.sigma) and self.sigma >= 0):
            raise InputError(f"LogNormal: sigma must be 0 or more, got {self.sigma!r}. Try 1.")
        check_minimum("LogNormal", self.minimum)

    def __call__(self, labels: Ints, clients: int, seed: Seed) -> list[Ints]:
        check_clients(len(labels), clients, "LogNormal", self.minimum)
        draw = seed.fold("log-normal").numpy()
        exponents = self.sigma * draw.standard_normal(clients)
        return _dealt(np.exp(exponents - exponents.max()), len(labels), self.minimum, draw)


@dataclass(frozen=True)
class PowerLaw:
    """Client sizes in proportion to (i + 1) ** -exponent: client 0 has most. Exponent 0 is even, 1 is Zipf's law.

    Args:
        exponent: How fast sizes fall.
        minimum: The fewest rows a client may end with.

    Example:
        >>> from fedquilt import Federation
        >>> clients = Federation.from_source("digits", partition=PowerLaw(1.0), clients=4)
        >>> [clients.size(c) for c in clients.ids]
        [604, 302, 201, 151]
    """

    by_label: ClassVar[bool] = False
    exponent: float
    minimum: int = 1

    def __post_init__(self) -> None:
        if not (math.isfinite(self.exponent) and self.exponent >= 0):
            raise InputError(f"PowerLaw: exponent must be 0 or more, got {self.exponent!r}. Try 1.")
        check_minimum("PowerLaw", self.minimum)

    def __call__(self, labels: Ints, clients: int, seed: Seed) -> list[Ints]:
        check_clients(len(labels), clients, "PowerLaw", self.minimum)
        weights = np.arange(1, clients + 1, dtype=np.float64) ** -self.exponent
        return _dealt(weights, len(labels), self.minimum, seed.fold("power law").numpy())


@dataclass(frozen=True)
class DirichletSizes(Concentrated):
    """Client sizes in proportion to one draw p ~ Dir(alpha, ..., alpha) over clients.

    Args:
        alpha: Small is skewed (0.5), large is even (100).
        minimum: The fewest rows a client may end with.

    Reference: Li et al., Federated Learning on Non-IID Data Silos, 2022, arXiv:2102.02079.

    Example:
        >>> from fedquilt import Federation
        >>> clients = Federation.from_source("digits", partition=DirichletSizes(1.0), clients=4)
        >>> len(clients.ids)
        4
    """

    by_label: ClassVar[bool] = False

    def __call__(self, labels: Ints, clients: int, seed: Seed) -> list[Ints]:
        check_clients(len(labels), clients, "DirichletSizes", self.minimum)
        draw = seed.fold("dirichlet sizes").numpy()
        return _dealt(draw.dirichlet(np.full(clients, self.alpha)), len(labels), self.minimum, draw)


def _dealt(weights: Floats, rows: int, minimum: int, draw: np.random.Generator) -> list[Ints]:
    """Random parts whose sizes are as near to the weights as whole numbers and the minimum allow."""
    sizes = raised(whole_shares(weights[None] / weights.sum(), np.array([rows]))[0], minimum)
    return [np.sort(part) for part in np.split(draw.permutation(rows), np.cumsum(sizes)[:-1])]
