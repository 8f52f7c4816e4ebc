"""Ways to divide one data set over clients.

A partition is called with the labels, the number of clients and a seed, and gives each client its row numbers,
ascending. The parts are disjoint, together they hold every row, and the same seed gives the same parts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedquilt.core.errors import InputError
from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId
from fedquilt.data.checks import client_id, ordered_ids
from fedquilt.data.rows import Ints
from fedquilt.data.shares import filled_up, parts_of, whole_shares

Partition = Callable[[Ints, int, Seed], list[Ints]]


@dataclass(frozen=True)
class IID:
    """Every client gets an equal random share (sizes differ by at most one)."""

    def __call__(self, labels: NDArray[Any], clients: int, seed: Seed) -> list[Ints]:
        check_clients(len(labels), clients)
        order = seed.fold("iid").numpy().permutation(len(labels))
        return [np.sort(part) for part in np.array_split(order, clients)]


@dataclass(frozen=True)
class Dirichlet:
    """Label skew: for each class, the shares of the clients are drawn p ~ Dir(alpha, ..., alpha).

    The n_k rows of class k are dealt out as near to n_k * p as whole numbers can be (largest remainders), so all rows
    are used. Clients below ``minimum`` are then filled up with random rows of the clients that have most at that
    moment; nothing is ever drawn again. Hsu, Qi, Brown 2019, arXiv:1909.06335.

    Args:
        alpha: Small is skewed (0.1), large is even (100).
        minimum: The fewest rows a client may end with.
    """

    alpha: float
    minimum: int = 1

    def __post_init__(self) -> None:
        if not (math.isfinite(self.alpha) and self.alpha > 0):
            raise InputError(f"Dirichlet: alpha must be more than 0, got {self.alpha!r}. Try 0.1 to 1.")
        if self.minimum < 0:
            raise InputError(f"Dirichlet: minimum must be 0 or more, got {self.minimum!r}.")

    def __call__(self, labels: NDArray[Any], clients: int, seed: Seed) -> list[Ints]:
        check_clients(len(labels), clients)
        if self.minimum * clients > len(labels):
            raise InputError(
                f"Dirichlet: {clients} clients with at least {self.minimum} rows each need {self.minimum * clients} "
                f"rows, but there are {len(labels)}. Lower minimum or clients."
            )
        draw = seed.fold("dirichlet").numpy()
        kinds, sizes = np.unique(labels, return_counts=True)
        shares = draw.dirichlet(np.full(clients, self.alpha), size=len(kinds))
        counts = whole_shares(shares, sizes)
        order = np.lexsort((draw.random(len(labels)), labels))
        owner = np.empty(len(labels), np.int64)
        owner[order] = np.repeat(np.tile(np.arange(clients), len(kinds)), counts.ravel())
        return parts_of(filled_up(owner, clients, self.minimum, draw), clients)


@dataclass(frozen=True)
class ClassGroups:
    """Hidden groups: each client sees only the classes of its group, and a group's rows are divided evenly at random.

    Clients are numbered group by group: the first clients belong to the first group, and so on.

    Args:
        groups: Disjoint tuples of class numbers that together name every class of the data.
        clients_per_group: How many clients each group has; by default as equal as possible.
    """

    groups: tuple[tuple[int, ...], ...] = ((0, 1, 2, 3), (4, 5, 6), (7, 8, 9))
    clients_per_group: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        flat = [c for group in self.groups for c in group]
        twice = sorted({c for c in flat if flat.count(c) > 1})
        if twice:
            raise InputError(f"ClassGroups: classes {twice} are in more than one group. Groups must be disjoint.")
        if not flat or not all(self.groups):
            raise InputError(f"ClassGroups: every group needs a class, got {self.groups!r}.")
        per = self.clients_per_group
        if per is not None and (len(per) != len(self.groups) or min(per) < 1):
            raise InputError(
                f"ClassGroups: clients_per_group is {per!r}; give one number of at least 1 for each of the "
                f"{len(self.groups)} groups."
            )

    def __call__(self, labels: NDArray[Any], clients: int, seed: Seed) -> list[Ints]:
        check_clients(len(labels), clients)
        missing = sorted(set(np.unique(labels).tolist()) - {c for group in self.groups for c in group})
        if missing:
            raise InputError(f"ClassGroups: classes {missing} are in no group. Add them to one, or drop their rows.")
        parts: list[Ints] = []
        for number, (group, share) in enumerate(zip(self.groups, self.sizes(clients), strict=True)):
            rows = np.flatnonzero(np.isin(labels, group))
            if len(rows) < share:
                raise InputError(
                    f"ClassGroups: group {number} (classes {list(group)}) has {len(rows)} rows for {share} clients. "
                    "Ask for fewer clients."
                )
            order = seed.fold("group", number).numpy().permutation(rows)
            parts += [np.sort(part) for part in np.array_split(order, share)]
        return parts

    def sizes(self, clients: int) -> tuple[int, ...]:
        """How many clients each group has."""
        per, many = self.clients_per_group, len(self.groups)
        if per is not None and sum(per) != clients:
            raise InputError(f"ClassGroups: clients_per_group {per!r} adds up to {sum(per)}, not to {clients} clients.")
        if clients < many:
            raise InputError(f"ClassGroups: {many} groups need at least {many} clients, got {clients}.")
        return per or tuple(clients // many + (g < clients % many) for g in range(many))

    def group_of(self, clients: int) -> Ints:
        """The true group of each client: what a method that looks for groups should find."""
        return np.repeat(np.arange(len(self.groups)), self.sizes(clients))


@dataclass(frozen=True)
class Shards:
    """Few classes per client: rows sorted by label are cut into equal shards, and each client is dealt some.

    McMahan et al. 2017, arXiv:1602.05629 (200 shards of 300 rows, two for each of 100 clients).
    """

    per_client: int = 2

    def __post_init__(self) -> None:
        if self.per_client < 1:
            raise InputError(f"Shards: per_client must be at least 1, got {self.per_client!r}.")

    def __call__(self, labels: NDArray[Any], clients: int, seed: Seed) -> list[Ints]:
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


def check_clients(rows: int, clients: int) -> None:
    """Raise unless there can be this many clients."""
    if isinstance(clients, bool) or not isinstance(clients, int | np.integer) or clients < 1:
        raise InputError(f"clients must be a whole number of at least 1, got {clients!r}.")
    if clients > rows:
        raise InputError(f"{clients} clients cannot share {rows} rows: some would have none. Ask for fewer clients.")


def by_user(user: Any, rows: int, clients: int | None, seed: Seed) -> tuple[tuple[ClientId, ...], list[Ints]]:
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
    if len(flat) and (flat.min() < 0 or flat.max() >= rows or len(np.unique(flat)) < len(flat)):
        raise InputError(f"The partition must give each of the rows 0 to {rows - 1} to one client at most.")
