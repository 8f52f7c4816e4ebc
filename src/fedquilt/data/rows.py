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
class ClientRows:
    """The row numbers of n clients: client i holds ``index[offsets[i]:offsets[i + 1]]``.

    Args:
        index: Row numbers (int64) of all clients, one client after the other.
        offsets: n + 1 places in the index (int64), from 0 to its length.
    """

    index: Tensor
    offsets: Tensor

    @staticmethod
    def of(parts: Sequence[Array]) -> ClientRows:
        """From one array of row numbers for each client."""
        index = np.concatenate([np.zeros(0, np.int64), *parts]).astype(np.int64)
        return ClientRows.cut(index, np.fromiter((len(p) for p in parts), np.int64, len(parts)))

    @staticmethod
    def cut(index: Array, counts: Ints) -> ClientRows:
        """From all row numbers and how many belong to each client."""
        offsets = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, out=offsets[1:])
        return ClientRows(torch.from_numpy(np.ascontiguousarray(index, np.int64)), torch.from_numpy(offsets))

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

    def together(self) -> ClientRows:
        """One client that holds everything; shares the index."""
        return ClientRows(self.index, torch.tensor([0, len(self.index)]))

    def keep(self, chosen: NDArray[np.bool_]) -> ClientRows:
        """Only the chosen clients."""
        return ClientRows.cut(self.index.numpy()[chosen[self.owners()]], self.counts()[chosen])


def moved(rows: ClientRows, by: int) -> ClientRows:
    """The same rows of columns that begin ``by`` rows later."""
    return ClientRows(rows.index + by, rows.offsets) if by else rows


def chosen(rows: ClientRows, mask: NDArray[np.bool_]) -> ClientRows:
    """Of every client the rows for which the mask over all row numbers is true."""
    kept = mask[rows.index.numpy()]
    return ClientRows.cut(rows.index.numpy()[kept], np.bincount(rows.owners()[kept], minlength=len(rows)))


def shuffled(rows: ClientRows, keys: Floats) -> ClientRows:
    """Each client's samples in the order of their random keys."""
    order = np.lexsort((keys, rows.owners()))
    return ClientRows(torch.from_numpy(rows.index.numpy()[order]), rows.offsets)


def split(rows: ClientRows, test: float, valid: float, keys: Floats) -> tuple[ClientRows, ClientRows, ClientRows]:
    """Training, validation and test samples of every client, chosen by random keys; each part ascending.

    A client with n rows gives round(test * n) and round(valid * n) of them, halves rounded up; where that would leave
    no training sample, the validation samples give way first.
    """
    mixed, counts = shuffled(rows, keys), rows.counts()
    spare = np.maximum(counts - 1, 0)
    tests = np.minimum(np.floor(counts * test + 0.5).astype(np.int64), spare)
    valids = np.minimum(np.floor(counts * valid + 0.5).astype(np.int64), spare - tests)
    owners, index = mixed.owners(), mixed.index.numpy()
    rank = np.arange(len(index)) - mixed.offsets.numpy()[owners]
    part = np.where(rank < tests[owners], 2, np.where(rank < (tests + valids)[owners], 1, 0))
    order = np.lexsort((index, owners, part))
    train, held, evaluation = np.split(index[order], np.cumsum([(part == 0).sum(), (part == 1).sum()]))
    return (
        ClientRows.cut(train, counts - tests - valids),
        ClientRows.cut(held, valids),
        ClientRows.cut(evaluation, tests),
    )


def merged(a: ClientRows, b: ClientRows) -> ClientRows:
    """For every client its rows of ``a``, then those of ``b``."""
    owners = np.concatenate([a.owners(), b.owners()])
    index = np.concatenate([a.index.numpy(), b.index.numpy()])
    return ClientRows.cut(index[np.argsort(owners, kind="stable")], a.counts() + b.counts())


def united(a: ClientRows, b: ClientRows) -> ClientRows:
    """As :func:`merged`, but a row that a client has in both counts once, where it came first."""
    both = merged(a, b)
    owners, index = both.owners(), both.index.numpy()
    _, first = np.unique(np.stack([owners, index]), axis=1, return_index=True)
    if len(first) == len(index):
        return both
    kept = np.sort(first)
    return ClientRows.cut(index[kept], np.bincount(owners[kept], minlength=len(both)))
