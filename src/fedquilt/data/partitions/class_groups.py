"""Partitions in which a client sees only some classes: hidden groups of clients, and a few classes each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from fedquilt.core.plain import Ints
from fedquilt.core.seed import Seed
from fedquilt.data.checks import check_clients
from fedquilt.data.partitions.shares import owners_of, parts_of, whole_shares
from fedquilt.errors import InputError


def _repeated(classes: Iterable[int]) -> set[int]:
    """Those that come more than once."""
    return {label for label, times in Counter(classes).items() if times > 1}


@dataclass(frozen=True)
class ClassGroups:
    """Hidden groups: each client sees only the classes of its group, and a group's rows are divided evenly at random.

    Clients are numbered group by group: the first clients belong to the first group, and so on. With ``overlap`` a
    class may be in several groups; its rows are then divided evenly among those groups, never copied, so that no
    client's training sample is another's test sample. The groups of clustered federated learning studies on MNIST are
    ``((0, 1, 2, 3, 4), (4, 5, 6, 7), (7, 8, 9))`` with 18, 17 and 15 clients.

    Args:
        groups: Tuples of class numbers that together name every class of the data.
        clients_per_group: How many clients each group has; by default as equal as possible.
        overlap: Whether groups may share classes.
        noise_ratio: The share of its rows, int(noise_ratio * rows), that each group gives away at random, dealt
            evenly to the other groups.

    Example:
        >>> from fedquilt import Federation
        >>> groups = ClassGroups(((0, 1, 2, 3), (4, 5, 6), (7, 8, 9)))
        >>> clients = Federation.from_source("digits", partition=groups, clients=4)
        >>> clients.groups
        {0: 0, 1: 0, 2: 1, 3: 2}
    """

    groups: tuple[tuple[int, ...], ...] = ((0, 1, 2, 3), (4, 5, 6), (7, 8, 9))
    clients_per_group: tuple[int, ...] | None = None
    overlap: bool = False
    noise_ratio: float = 0.0

    def __post_init__(self) -> None:
        if not self.groups or not all(self.groups):
            raise InputError(f"ClassGroups: every group needs a class, got {self.groups!r}.")
        again = sorted({c for group in self.groups for c in _repeated(group)})
        if again:
            raise InputError(f"ClassGroups: classes {again} are twice in one group. Name each once.")
        twice = sorted(_repeated(c for group in self.groups for c in group))
        if twice and not self.overlap:
            raise InputError(
                f"ClassGroups: classes {twice} are in more than one group. Make the groups disjoint, or set "
                "overlap=True to divide the rows of shared classes."
            )
        self._check_numbers()

    def _check_numbers(self) -> None:
        per = self.clients_per_group
        if per is not None and (len(per) != len(self.groups) or min(per) < 1):
            raise InputError(
                f"ClassGroups: clients_per_group is {per!r}; give one number of at least 1 for each of the "
                f"{len(self.groups)} groups."
            )
        if not 0 <= self.noise_ratio < 1 or (self.noise_ratio and len(self.groups) == 1):
            raise InputError(
                f"ClassGroups: noise_ratio must be from 0 to below 1, and needs a second group to give rows to; got "
                f"{self.noise_ratio!r} with {len(self.groups)} groups."
            )

    def __call__(self, labels: Ints, clients: int, seed: Seed) -> list[Ints]:
        check_clients(len(labels), clients)
        missing = sorted(set(np.unique(labels).tolist()) - {c for group in self.groups for c in group})
        if missing:
            raise InputError(f"ClassGroups: classes {missing} are in no group. Add them to one, or drop their rows.")
        parts: list[Ints] = []
        held, shares = self._exchanged(self._held(labels, seed), seed), self.sizes(clients)
        for number, (rows, share) in enumerate(zip(held, shares, strict=True)):
            if len(rows) < share:
                raise InputError(
                    f"ClassGroups: group {number} (classes {list(self.groups[number])}) has {len(rows)} rows for "
                    f"{share} clients. Ask for fewer clients."
                )
            order = seed.fold("group", number).numpy().permutation(rows)
            parts += [np.sort(part) for part in np.array_split(order, share)]
        return parts

    def _held(self, labels: Ints, seed: Seed) -> list[Ints]:
        """The rows of each group, ascending."""
        owner = np.full(len(labels), -1, np.int64)
        for label in sorted({c for group in self.groups for c in group}):
            holders = [number for number, group in enumerate(self.groups) if label in group]
            rows = np.flatnonzero(labels == label)
            if len(holders) > 1:
                rows = seed.fold("shared", label).numpy().permutation(rows)
            for holder, part in zip(holders, np.array_split(rows, len(holders)), strict=True):
                owner[part] = holder
        return [np.flatnonzero(owner == number) for number in range(len(self.groups))]

    def _exchanged(self, held: list[Ints], seed: Seed) -> list[Ints]:
        """The same after every group gave ``noise_ratio`` of its rows to the others."""
        if not self.noise_ratio:
            return held
        kept, received = [], [list[Ints]() for _ in held]
        for number, rows in enumerate(held):
            mixed = seed.fold("noise", number).numpy().permutation(rows)
            many = int(self.noise_ratio * len(rows))
            kept.append(mixed[many:])
            others = [g for g in range(len(held)) if g != number]
            for other, gift in zip(others, np.array_split(mixed[:many], len(others)), strict=True):
                received[other].append(gift)
        return [np.sort(np.concatenate([own, *gifts])) for own, gifts in zip(kept, received, strict=True)]

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
class Pathological:
    """A few classes per client: each holds exactly ``classes_per_client`` of them.

    Every client takes the classes that fewest others hold so far, ties at random, so holders differ by at most one
    between classes. A class's rows are divided evenly among its holders. :class:`fedquilt.data.Shards` is the original
    of McMahan et al.

    Args:
        classes_per_client: How many classes each client holds.

    Reference: Collins et al., Exploiting Shared Representations, 2021, arXiv:2102.07078.

    Example:
        >>> from fedquilt import Federation
        >>> clients = Federation.from_source("digits", partition=Pathological(3), clients=4)
        >>> [int((row > 0).sum()) for row in clients.label_counts()]
        [3, 3, 3, 3]
    """

    classes_per_client: int = 2

    def __post_init__(self) -> None:
        if self.classes_per_client < 1:
            raise InputError(f"Pathological: classes_per_client must be at least 1, got {self.classes_per_client!r}.")

    def __call__(self, labels: Ints, clients: int, seed: Seed) -> list[Ints]:
        check_clients(len(labels), clients)
        kinds, sizes = np.unique(labels, return_counts=True)
        each, many = self.classes_per_client, len(kinds)
        if each > many:
            raise InputError(f"Pathological: {each} classes per client, but the data have {many}. Lower it.")
        if clients * each < many:
            raise InputError(
                f"Pathological: {clients} clients x {each} classes leave some of the {many} classes without a client. "
                f"Ask for {-(-many // each)} clients or more, or for more classes per client."
            )
        draw = seed.fold("pathological").numpy()
        holds = np.zeros((many, clients))
        for client in range(clients):
            holds[np.lexsort((draw.random(many), holds.sum(axis=1)))[:each], client] = 1
        holders = holds.sum(axis=1)
        short = np.flatnonzero(sizes < holders)
        if len(short):
            worst = short[0]
            raise InputError(
                f"Pathological: class {kinds[worst]} has {sizes[worst]} rows for {int(holders[worst])} clients. "
                "Ask for fewer clients or fewer classes per client."
            )
        counts = whole_shares(holds / holders[:, None], sizes)
        return parts_of(owners_of(labels, counts, draw), clients)
