"""A client's data as engines and methods see it: named columns, batches, and what a site may show."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from fedquilt.core.errors import InputError
from fedquilt.core.seed import Seed

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
        columns: Tensors of equal length.
        index: Row numbers (int64) into the columns, or None for all rows.
        prepare: Turns raw rows into what the network takes, for example bytes into floats. If it has a method
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

    def _gathered(self, index: Tensor) -> Columns:
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
        for made, chosen in enumerate(self.draws(size, epochs, seed, steps, lone)):
            if augmented is None:
                yield self.rows(chosen)
            else:
                yield Batch(augmented(self._gathered(chosen), seed.fold("augment", made)))

    def draws(
        self, size: int, epochs: int, seed: Seed, steps: int | None = None, lone: bool = True
    ) -> Iterator[Tensor]:
        """The absolute row numbers of :meth:`batches`."""
        rows, generator, made, epoch = self.all_rows(), seed.torch(), 0, 0
        count = len(rows)
        while count and (epoch < epochs if steps is None else made < steps):
            order = rows[torch.randperm(count, generator=generator)]
            starts = list(range(0, count, size))
            if not lone and count % size == 1 and len(starts) > 1:
                starts.pop()
            for low, high in zip(starts, [*starts[1:], count], strict=True):
                if steps is not None and made == steps:
                    return
                yield order[low:high]
                made += 1
            epoch += 1


@dataclass(frozen=True)
class Site:
    """What a method may see of a client: its training rows and its held-out rows, never its test rows.

    Args:
        train: Training rows, with labels.
        valid: Held-out rows.
        unlabelled: Further training rows, without the column y: only methods that need no labels use them.
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

    @property
    def examples(self) -> int:
        """How much data stands behind this client's uploads: its labelled training rows."""
        return len(self.train)


class Source(Protocol):
    """Where engines get data from. ``site`` may depend on the round, so a stream of tasks is a source too."""

    @property
    def ids(self) -> Sequence[ClientId]:
        """The clients that train, in ascending order."""
        ...

    @property
    def examined(self) -> Sequence[ClientId]:
        """The clients whose models are scored, in ascending order."""
        ...

    def site(self, client: ClientId, round: int) -> Site:
        """The client's data in this round."""
        ...

    def exam(self, client: ClientId, split: str, round: int = 0) -> Table | None:
        """The rows on which a client's model is scored after this round: split 'valid' or 'test'."""
        ...

    def size(self, client: ClientId) -> int:
        """How many training rows the client has; for balancing load."""
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
