"""Ways to divide one data set over clients.

A partition is called with the labels, the number of clients and a seed, and gives each client its row numbers,
ascending. The parts are disjoint, together they hold every row, and the same seed gives the same parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedquilt.core.plain import Ints
from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId
from fedquilt.data.checks import check_clients, check_minimum, check_positive, client_id, ordered_ids
from fedquilt.data.partitions.shares import filled_up, owners_of, parts_of, whole_shares
from fedquilt.errors import InputError

Partition = Callable[[Ints, int, Seed], list[Ints]]
"""How a data set is divided: ``(labels, clients, seed) -> rows``, the row numbers of each client."""


@dataclass(frozen=True)
class IID:
    """Every client gets an equal random share (sizes differ by at most one).

    Example:
        >>> from fedquilt import Federation
        >>> clients = Federation.from_source("digits", partition=IID(), clients=4)
        >>> [clients.size(c) for c in clients.ids]
        [315, 314, 314, 314]
    """

    by_label: ClassVar[bool] = False

    def __call__(self, labels: Ints, clients: int, seed: Seed) -> list[Ints]:
        check_clients(len(labels), clients)
        order = seed.fold("iid").numpy().permutation(len(labels))
        return [np.sort(part) for part in np.array_split(order, clients)]


@dataclass(frozen=True)
class Concentrated:
    """What every partition by a Dirichlet draw takes.

    Args:
        alpha: Small is skewed (0.1), large is even (100).
        minimum: The fewest rows a client may end with.
    """

    alpha: float
    minimum: int = 1

    def __post_init__(self) -> None:
        check_positive(type(self).__name__, "alpha", self.alpha, "Try 0.1 to 1")
        check_minimum(type(self).__name__, self.minimum)


@dataclass(frozen=True)
class Dirichlet(Concentrated):
    """Label skew: for each class, the shares of the clients are drawn p ~ Dir(alpha, ..., alpha).

    The n_k rows of class k are dealt out as near to n_k * p as whole numbers can be (largest remainders), so all rows
    are used. Clients below ``minimum`` are then filled up with random rows of the clients that have most at that
    moment; nothing is ever drawn again.

    Args:
        alpha: Small is skewed (0.1), large is even (100).
        minimum: The fewest rows a client may end with.

    Reference: Hsu, Qi and Brown, Measuring the Effects of Non-Identical Data Distribution, 2019, arXiv:1909.06335.

    Example:
        >>> from fedquilt import Federation
        >>> clients = Federation.from_source("digits", partition=Dirichlet(0.3), clients=4)
        >>> len(clients.ids)
        4
    """

    def __call__(self, labels: Ints, clients: int, seed: Seed) -> list[Ints]:
        check_clients(len(labels), clients, "Dirichlet", self.minimum)
        draw = seed.fold("dirichlet").numpy()
        kinds, sizes = np.unique(labels, return_counts=True)
        shares = draw.dirichlet(np.full(clients, self.alpha), size=len(kinds))
        owner = owners_of(labels, whole_shares(shares, sizes), draw)
        return parts_of(filled_up(owner, clients, self.minimum, draw), clients)


@dataclass(frozen=True)
class DirichletPerClient(Concentrated):
    """Label skew at nearly equal sizes: each client draws its own mixture of classes, q_i ~ Dir(alpha, ..., alpha).

    The n_c rows of class c are dealt out in proportion q_ic / sum_j q_jc, as near as whole numbers can be, so all rows
    are used. Unlike :class:`Dirichlet`, which draws over clients for each class, sizes stay close: with alpha 0.1 and
    50 clients nobody has more than a few times the mean. The form of clustered federated learning studies.

    Args:
        alpha: Small is skewed (0.1), large is even (100).
        minimum: The fewest rows a client may end with.

    Example:
        >>> from fedquilt import Federation
        >>> clients = Federation.from_source("digits", partition=DirichletPerClient(0.3), clients=4)
        >>> len(clients.ids)
        4
    """

    def __call__(self, labels: Ints, clients: int, seed: Seed) -> list[Ints]:
        check_clients(len(labels), clients, "DirichletPerClient", self.minimum)
        draw = seed.fold("dirichlet per client").numpy()
        kinds, sizes = np.unique(labels, return_counts=True)
        mixtures = draw.dirichlet(np.full(len(kinds), self.alpha), size=clients).T
        total = mixtures.sum(axis=1, keepdims=True)
        shares = np.where(total > 0, mixtures / np.where(total > 0, total, 1), 1 / clients)  # nobody drew it: evenly
        owner = owners_of(labels, whole_shares(shares, sizes), draw)
        return parts_of(filled_up(owner, clients, self.minimum, draw), clients)


@dataclass(frozen=True)
class Shards:
    """Few classes per client: rows sorted by label are cut into equal shards, and each client is dealt some.

    Args:
        per_client: Shards for each client.

    Reference: McMahan et al. 2017, arXiv:1602.05629 (200 shards of 300 rows, two for each of 100 clients).

    Example:
        >>> from fedquilt import Federation
        >>> clients = Federation.from_source("digits", partition=Shards(2), clients=4)
        >>> len(clients.ids)
        4
    """

    per_client: int = 2

    def __post_init__(self) -> None:
        if self.per_client < 1:
            raise InputError(f"Shards: per_client must be at least 1, got {self.per_client!r}.")

    def __call__(self, labels: Ints, clients: int, seed: Seed) -> list[Ints]:
        check_clients(len(labels), clients)
        many = clients * self.per_client
        if many > len(labels):
            raise InputError(
                f"Shards: {clients} clients x {self.per_client} shards need {many} rows, but there are {len(labels)}. "
                "Lower per_client or clients."
            )
        draw = seed.fold("shards").numpy()
        shards = np.array_split(np.lexsort((draw.random(len(labels)), labels)), many)
        dealt = draw.permutation(many).reshape(clients, self.per_client)
        return [np.sort(np.concatenate([shards[s] for s in hand])) for hand in dealt]


def by_user(user: object, rows: int, clients: int | None, seed: Seed) -> tuple[tuple[ClientId, ...], list[Ints]]:
    """The natural partition: one client for each user, or ``clients`` of them drawn at random."""
    users = np.asarray(user)
    if users.shape != (rows,):
        raise InputError(f"user has shape {users.shape}, but there are {rows} rows. Give one user for each row.")
    names, inverse = np.unique(users, return_inverse=True)
    parts = np.split(np.argsort(inverse, kind="stable"), np.cumsum(np.bincount(inverse))[:-1])
    chosen: Sequence[int] = range(len(names))
    if clients is not None:
        if not 1 <= clients <= len(names):
            raise InputError(f"clients is {clients}, but there are {len(names)} users. Ask for 1 to {len(names)}.")
        chosen = seed.fold("users").numpy().choice(len(names), clients, replace=False).tolist()
    own = {client_id(names[i]): parts[i] for i in chosen}
    ids = ordered_ids(own)
    return ids, [own[c] for c in ids]


def check_parts(parts: Sequence[Ints], clients: int, rows: int) -> None:
    """Raise unless a partition, perhaps someone's own, gave no row to two clients."""
    if len(parts) != clients:
        raise InputError(f"The partition made {len(parts)} parts for {clients} clients. Return one array for each.")
    flat = np.concatenate(parts)
    if len(flat) and (flat.min() < 0 or flat.max() >= rows or np.bincount(flat).max() > 1):
        raise InputError(f"The partition must give each of the rows 0 to {rows - 1} to one client at most.")
