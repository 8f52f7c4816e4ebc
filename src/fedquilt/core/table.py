"""A client's data as engines and methods see it: named columns, batches, and what a site may show."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from fedquilt.core.lazy import drawn, row_bytes
from fedquilt.core.seed import Seed
from fedquilt.errors import InputError
from fedquilt.moved import renamed

AT_ONCE = 2**19  # bytes of a pass over a table, up to which its rows are gathered at once: they stay in the cache
ClientId = Hashable  # in practice an int, a string, or a tuple of them
Columns = dict[str, Tensor]
Prepare = Callable[[Columns], Columns]


@dataclass(frozen=True, slots=True)
class Batch:
    """Some rows of a table, ready for a network.

    ``weight`` is None, or one number per row (0 for padding); objectives must average with
    :func:`fedquilt.pieces.objectives.weighted_mean`, which honours it.
    """

    columns: Columns
    weight: Tensor | None = None

    @property
    def x(self) -> Tensor:
        """The input column."""
        return self.columns["x"]

    @property
    def y(self) -> Tensor:
        """The label column."""
        return self.columns["y"]

    def __getitem__(self, column: str) -> Tensor:
        return self.columns[column]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))


@dataclass(frozen=True)
class Table:
    """Rows of named columns. Columns may be shared by all clients; ``index`` says which rows are here.

    Args:
        columns: Tensors of equal length, in memory or read when rows are asked for
            (:class:`fedquilt.core.lazy.LazyColumn`).
        index: Row numbers (int64) into the columns, or None for all rows.
        prepare: Turns raw rows, each by itself, into what the network takes: bytes into floats. If it has a method
            ``augmented(columns, seed)``, training batches are prepared with that instead; see :meth:`batches`.
    """

    columns: Mapping[str, Tensor]
    index: Tensor | None = None
    prepare: Prepare | None = field(default=None, compare=False)

    def __len__(self) -> int:
        if self.index is not None:
            return len(self.index)
        return len(next(iter(self.columns.values())))

    def rows(self, index: Tensor) -> Batch:
        """The batch of these absolute row numbers."""
        columns = self._gathered(index)
        return Batch(columns if self.prepare is None else self.prepare(columns))

    def training(self, index: Tensor, seed: Seed) -> Batch:
        """The batch of these absolute row numbers with what is random in training, which follows from the seed."""
        columns = self._gathered(index, seed.fold("read"))
        augmented = getattr(self.prepare, "augmented", None)
        if augmented is not None:
            return Batch(augmented(columns, seed.fold("augment")))
        return Batch(columns if self.prepare is None else self.prepare(columns))

    def _gathered(self, index: Tensor, seed: Seed | None = None) -> Columns:
        if seed is not None:
            return {name: drawn(column, index, seed) for name, column in self.columns.items()}
        return {name: column.index_select(0, index) for name, column in self.columns.items()}

    def all_rows(self) -> Tensor:
        """The absolute row numbers of this table, in order."""
        return torch.arange(len(self)) if self.index is None else self.index

    def whole(self) -> Batch:
        """All rows as one batch."""
        return self.rows(self.all_rows())

    def blocks(self, size: int) -> Iterator[Batch]:
        """All rows once, in order, in blocks of at most ``size``."""
        rows = self.all_rows()
        count = len(rows)
        for low in range(0, count, size):
            yield self.rows(rows if count <= size else rows[low : low + size])

    def steps(self, size: int, epochs: int, steps: int | None = None, lone: bool = True) -> int:
        """How many :meth:`batches` there are."""
        count = len(self)
        if steps is not None:
            return steps if count else 0
        joined = not lone and count > size and count % size == 1
        return epochs * (-(-count // size) - joined)

    def batches(
        self, size: int, epochs: int, seed: Seed, steps: int | None = None, lone: bool = True
    ) -> Iterator[Batch]:
        """Shuffled batches: ``epochs`` passes, or exactly ``steps`` batches over as many passes as needed.

        Without ``lone``, a last batch of one row joins the batch before it. These are the batches of training: the only
        ones that random transforms change, batch k by a seed of its own.
        """
        augmented = getattr(self.prepare, "augmented", None)
        made = 0
        for number, (order, sizes) in enumerate(self._passes(size, epochs, seed, steps, lone)):
            for columns in self._parts(order, sizes, seed.fold("read", number)):
                if augmented is not None:
                    columns = augmented(columns, seed.fold("augment", made))
                elif self.prepare is not None:
                    columns = self.prepare(columns)
                yield Batch(columns)
                made += 1

    def draws(
        self, size: int, epochs: int, seed: Seed, steps: int | None = None, lone: bool = True
    ) -> Iterator[Tensor]:
        """The absolute row numbers of :meth:`batches`."""
        for order, sizes in self._passes(size, epochs, seed, steps, lone):
            yield from order.split(sizes)

    def _passes(
        self, size: int, epochs: int, seed: Seed, steps: int | None, lone: bool
    ) -> Iterator[tuple[Tensor, list[int]]]:
        """For each pass over the rows their order, and how it is cut into batches."""
        rows, generator = self.all_rows(), seed.torch()
        count, left = len(rows), steps
        sizes = [size] * (count // size) + [count % size] * (count % size > 0)
        if not lone and count % size == 1 and len(sizes) > 1:
            sizes[-2:] = [size + 1]
        for _ in itertools.repeat(None, epochs) if left is None else itertools.count():
            if not count or left == 0:
                return
            order = rows[torch.randperm(count, generator=generator)]
            now = sizes if left is None else sizes[:left]
            left = None if left is None else left - len(now)
            yield order[: sum(now)], now

    def _parts(self, order: Tensor, sizes: list[int], seed: Seed) -> Iterator[Columns]:
        """The columns of these rows, cut into batches; small ones are gathered all at once."""
        width = sum(map(row_bytes, self.columns.values()))
        if width * len(order) > AT_ONCE:
            for chosen in order.split(sizes):
                yield self._gathered(chosen, seed)
        else:
            gathered = self._gathered(order, seed)
            for parts in zip(*(column.split(sizes) for column in gathered.values()), strict=True):
                yield dict(zip(gathered, parts, strict=True))


@dataclass(frozen=True)
class Site:
    """What a method may see of a client: its training samples and its held-out samples, never its test samples.

    Args:
        train: Training rows, with labels.
        valid: Held-out rows.
        unlabelled: Further training samples, without the column y: only methods that need no labels use them.
    """

    train: Table
    valid: Table | None = None
    unlabelled: Table | None = None

    @property
    def inputs(self) -> Table:
        """All rows to train on, labelled or not, without the column y."""
        columns = {name: column for name, column in self.train.columns.items() if name != "y"}
        tables = [self.train] if self.unlabelled is None else [self.train, self.unlabelled]
        return Table(columns, torch.cat([table.all_rows() for table in tables]), self.train.prepare)

    examples = renamed("examples", "samples")

    @property
    def samples(self) -> int:
        """How much data stands behind this client's uploads: its labelled training samples."""
        return len(self.train)


class Source(Protocol):
    """Where engines get data from. ``site`` may depend on the round, so a stream of tasks is a source too."""

    @property
    def ids(self) -> Sequence[ClientId]:
        """The clients that train, in ascending order."""
        ...

    @property
    def evaluated(self) -> Sequence[ClientId]:
        """The clients whose models are scored, in ascending order."""
        ...

    def site(self, client: ClientId, round: int) -> Site:
        """The client's data in this round."""
        ...

    def evaluation(self, client: ClientId, split: str, round: int = 0) -> Table | None:
        """The rows on which a client's model is scored after this round: split 'valid' or 'test'."""
        ...

    def size(self, client: ClientId) -> int:
        """How many training samples the client has, in its largest round: for balancing load, and because a reply that
        claims more of them is refused. 0 where nobody knows."""
        ...


class Divided(Source, Protocol):
    """Data divided among clients, as a run takes them: a federation, a stream, or the sites of a real federation."""

    @property
    def classes(self) -> int | None:
        """How many classes the labels have; of another task, how many numbers a model makes of a row. None where there
        are no labels."""
        ...

    def fingerprint(self) -> str:
        """What data this is: equal data give equal prints anywhere."""
        ...

    def pooled(self) -> Source:
        """The same with one training client, for all rows; evaluations stay as they are."""
        ...


def in_order(ids: Sequence[ClientId]) -> tuple[ClientId, ...]:
    """Client ids in the one order used everywhere: numbers, then strings, then tuples, each ascending."""
    return tuple(sorted(ids, key=_order))


def _order(client: ClientId) -> tuple[int, object]:
    if isinstance(client, int) and not isinstance(client, bool):
        return (0, client)
    if isinstance(client, str):
        return (1, client)
    if isinstance(client, tuple):
        return (2, tuple(_order(part) for part in client))
    raise InputError(f"A client id must be an int, a string, or a tuple of them, got {client!r}.")
