"""Dirichlet splits as published code makes them, flaws included, to repeat its runs. For new work use Dirichlet.

They may leave clients empty: give ``drop_empty=True`` to the federation. The first two draw from a generator that is
seeded with a plain number of their own, as published scripts do; the federation's seed does not change them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedquilt.core.plain import Floats, Ints
from fedquilt.core.seed import Seed
from fedquilt.data.checks import check_clients, check_positive
from fedquilt.data.partitions.shares import owners_of, parts_of
from fedquilt.errors import InputError


@dataclass(frozen=True)
class DirichletChoice:
    """FedLoGe's split: for each class p ~ Dir(alpha, ..., alpha) over clients, then every row draws its client from p.

    Bit-exact with the project's logs: numpy's legacy generator, one unused draw of clients x classes coin flips
    first. Counts are random about n_k * p instead of exact.

    Args:
        alpha: Small is skewed.
        random_state: What the project calls its seed.

    Reference: Xiao et al., FedLoGe, 2024, arXiv:2401.08977.

    Example:
        >>> from fedquilt import Federation
        >>> clients = Federation.from_source("digits", partition=DirichletChoice(0.5), clients=4)
        >>> len(clients.ids)
        4
    """

    alpha: float
    random_state: int = 3407

    def __post_init__(self) -> None:
        check_positive("DirichletChoice", "alpha", self.alpha, "Try 0.5 or 1")

    def __call__(self, labels: Ints, clients: int, seed: Seed) -> list[Ints]:
        check_clients(len(labels), clients)
        draw = np.random.RandomState(self.random_state)
        counts = np.bincount(labels)
        draw.binomial(1, 1, size=(clients, len(counts)))  # class availability, always 1 in the project
        owner = np.empty(len(labels), np.int64)
        for label, count in enumerate(counts):
            shares = _usable(draw.dirichlet([self.alpha] * clients), self.alpha)
            owner[labels == label] = draw.choice(clients, size=count, p=shares)
        return parts_of(owner, clients)


@dataclass(frozen=True)
class DirichletCuts:
    """Localize-and-Stitch's split: per class p ~ Dir(alpha, ..., alpha), shuffled rows cut at floor(cumsum(p) * n).

    The common form of many published scripts; the last client gets what rounding leaves. It follows the project's
    description (numpy's default generator is our reading); no published client sizes were at hand to check it against.

    Args:
        alpha: Small is skewed; the project uses 0.15 and 0.1.
        random_state: The number that seeds numpy's generator.

    Reference: He et al., Localize-and-Stitch, 2025.

    Example:
        >>> from fedquilt import Federation
        >>> clients = Federation.from_source("digits", partition=DirichletCuts(0.5), clients=4)
        >>> len(clients.ids)
        4
    """

    alpha: float
    random_state: int = 42

    def __post_init__(self) -> None:
        check_positive("DirichletCuts", "alpha", self.alpha, "Try 0.15")

    def __call__(self, labels: Ints, clients: int, seed: Seed) -> list[Ints]:
        check_clients(len(labels), clients)
        draw = np.random.default_rng(self.random_state)
        parts: list[list[Ints]] = [[np.zeros(0, np.int64)] for _ in range(clients)]
        for label in np.unique(labels):
            rows = np.flatnonzero(labels == label)
            draw.shuffle(rows)
            shares = _usable(draw.dirichlet([self.alpha] * clients), self.alpha)
            cuts = np.floor(np.cumsum(shares) * len(rows)).astype(np.int64)[:-1]
            for own, piece in zip(parts, np.split(rows, cuts), strict=True):
                own.append(piece)
        return [np.sort(np.concatenate(own)) for own in parts]


@dataclass(frozen=True)
class TruncatedPerClient:
    """The split of published clustered studies: as DirichletPerClient, shares truncated, the rest to the last client.

    The last client thus gets up to clients - 1 extra rows of every class. (The scripts also drop clients with fewer
    than 64 rows; here they stay.)

    Args:
        alpha: Small is skewed; the scripts use 0.1.

    Example:
        >>> from fedquilt import Federation
        >>> clients = Federation.from_source("digits", partition=TruncatedPerClient(0.5), clients=4)
        >>> len(clients.ids)
        4
    """

    alpha: float

    def __post_init__(self) -> None:
        check_positive("TruncatedPerClient", "alpha", self.alpha, "Try 0.1")

    def __call__(self, labels: Ints, clients: int, seed: Seed) -> list[Ints]:
        check_clients(len(labels), clients)
        draw = seed.fold("truncated per client").numpy()
        kinds, sizes = np.unique(labels, return_counts=True)
        mixtures = draw.dirichlet(np.full(len(kinds), self.alpha), size=clients).T
        shares = mixtures / np.maximum(mixtures.sum(axis=1, keepdims=True), np.finfo(np.float64).tiny)
        counts = np.floor(shares * sizes[:, None]).astype(np.int64)
        counts[:, -1] += sizes - counts.sum(axis=1)
        return parts_of(owners_of(labels, counts, draw), clients)


def _usable(shares: Floats, alpha: float) -> Floats:
    if not np.isfinite(shares).all():
        raise InputError(f"alpha {alpha!r} is too small for numpy to draw shares from. Raise it.")
    return shares
