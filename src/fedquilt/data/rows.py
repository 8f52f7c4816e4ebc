"""Whose rows are whose, in compact form: one index for all clients and where each client's part begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedquilt.core.plain import Array, Floats, Ints


@dataclass(frozen=True, eq=False)
class Rows:
    """The row numbers of n clients: client i holds ``index[offsets[i]:offsets[i + 1]]``.

    Args:
        index: Row numbers (int64) of all clients, one client after the other.
        offsets: n + 1 places in the index (int64), from 0 to its length.
    """

    index: Tensor
    offsets: Tensor

    @staticmethod
    def of(parts: Sequence[Array]) -> Rows:
        """From one array of row numbers for each client."""
        index = np.concatenate([np.zeros(0, np.int64), *parts]).astype(np.int64)
        return Rows.cut(index, np.fromiter((len(p) for p in parts), np.int64, len(parts)))

    @staticmethod
    def cut(index: Array, counts: Ints) -> Rows:
        """From all row numbers and how many belong to each client."""
        offsets = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, out=offsets[1:])
        return Rows(torch.from_numpy(np.ascontiguousarray(index, np.int64)), torch.from_numpy(offsets))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, position: int) -> Tensor:
        ends = self._ends
        return self.index[ends[position] : ends[position + 1]]

    @cached_property
    def _ends(self) -> memoryview:
        """The offsets as Python sees numbers fastest; they are not copied."""
        return memoryview(cast(Any, self.offsets.numpy()))

    def counts(self) -> Ints:
        """How many rows each client holds."""
        return np.diff(self.offsets.numpy())

    def owners(self) -> Ints:
        """For every entry of the index, the position of the client that holds it."""
        return np.repeat(np.arange(len(self), dtype=np.int64), self.counts())

    def together(self) -> Rows:
        """One client that holds everything; shares the index."""
        return Rows(self.index, torch.tensor([0, len(self.index)]))

    def keep(self, chosen: NDArray[np.bool_]) -> Rows:
        """Only the chosen clients."""
        return Rows.cut(self.index.numpy()[chosen[self.owners()]], self.counts()[chosen])


def moved(rows: Rows, by: int) -> Rows:
    """The same rows of columns that begin ``by`` rows later."""
    return Rows(rows.index + by, rows.offsets) if by else rows


def chosen(rows: Rows, mask: NDArray[np.bool_]) -> Rows:
    """Of every client the rows for which the mask over all row numbers is true."""
    kept = mask[rows.index.numpy()]
    return Rows.cut(rows.index.numpy()[kept], np.bincount(rows.owners()[kept], minlength=len(rows)))


def shuffled(rows: Rows, keys: Floats) -> Rows:
    """Each client's rows in the order of their random keys."""
    order = np.lexsort((keys, rows.owners()))
    return Rows(torch.from_numpy(rows.index.numpy()[order]), rows.offsets)


def split(rows: Rows, test: float, valid: float, keys: Floats) -> tuple[Rows, Rows, Rows]:
    """Training, validation and test rows of every client, chosen by random keys; each part ascending.

    A client with n rows gives round(test * n) and round(valid * n) of them, halves rounded up; where that would leave
    no training row, the validation rows give way first.
    """
    mixed, counts = shuffled(rows, keys), rows.counts()
    spare = np.maximum(counts - 1, 0)
    tests = np.minimum(np.floor(counts * test + 0.5).astype(np.int64), spare)
    valids = np.minimum(np.floor(counts * valid + 0.5).astype(np.int64), spare - tests)
    owners, index = mixed.owners(), mixed.index.numpy()
    rank = np.arange(len(index)) - mixed.offsets.numpy()[owners]
    part = np.where(rank < tests[owners], 2, np.where(rank < (tests + valids)[owners], 1, 0))
    order = np.lexsort((index, owners, part))
    train, held, exam = np.split(index[order], np.cumsum([(part == 0).sum(), (part == 1).sum()]))
    return Rows.cut(train, counts - tests - valids), Rows.cut(held, valids), Rows.cut(exam, tests)


def merged(a: Rows, b: Rows) -> Rows:
    """For every client its rows of ``a``, then those of ``b``."""
    owners = np.concatenate([a.owners(), b.owners()])
    index = np.concatenate([a.index.numpy(), b.index.numpy()])
    return Rows.cut(index[np.argsort(owners, kind="stable")], a.counts() + b.counts())


def united(a: Rows, b: Rows) -> Rows:
    """As :func:`merged`, but a row that a client has in both counts once, where it came first."""
    both = merged(a, b)
    owners, index = both.owners(), both.index.numpy()
    _, first = np.unique(np.stack([owners, index]), axis=1, return_index=True)
    if len(first) == len(index):
        return both
    kept = np.sort(first)
    return Rows.cut(index[kept], np.bincount(owners[kept], minlength=len(both)))
