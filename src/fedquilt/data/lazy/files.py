"""Rows of one large array in a file, mapped into memory and read when they are asked for."""

from __future__ import annotations

import mmap
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedquilt.core.lazy import LazyColumn
from fedquilt.core.memory import check_bytes
from fedquilt.core.plain import Array, Ints
from fedquilt.core.seed import Seed
from fedquilt.data.checks import input_column
from fedquilt.errors import InputError

_APART = 2**16  # bytes of a row from which on its pages are let go after it was read


@dataclass(frozen=True, eq=False)
class FileRows:
    """An array in a file, as numpy sees one: choosing rows gives another of these, and only ``rows`` reads.

    Args:
        path: The file. It is mapped, so it may be removed, but must not be changed, while it is in use.
        offset: Where in it the array begins.
        whole: The shape of the array in the file.
        kind: The type of its numbers, as numpy writes it.
        index: Which of its rows these are, or None for all.
        sums: A file with the CRC-32 of every row (uint32), by which damage is found when a row is first read.
    """

    path: str
    offset: int
    whole: tuple[int, ...]
    kind: str
    index: Tensor | None = None
    sums: str | None = None

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the numbers in the file."""
        return np.dtype(self.kind)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape that an array of these rows would have."""
        return (len(self), *self.whole[1:])

    @property
    def ndim(self) -> int:
        """How many dimensions that has."""
        return len(self.whole)

    def __len__(self) -> int:
        return self.whole[0] if self.index is None else len(self.index)

    def __getitem__(self, rows: Any) -> FileRows:
        """Some of the rows: a slice, row numbers, or a mask."""
        own = np.arange(self.whole[0]) if self.index is None else self.index.numpy()
        return replace(self, index=torch.from_numpy(np.ascontiguousarray(own[rows]).reshape(-1)))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        check_bytes(int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize, f"{self.path}, read whole,")
        found = self.rows(np.arange(len(self)))
        return found if dtype is None else found.astype(dtype)

    def column(self, where: str) -> LazyColumn:
        """The rows as a column; they are stored in a federation as such an array would be."""
        like = input_column(np.zeros((0, *self.whole[1:]), self.dtype), where)
        return LazyColumn(_Stored(self, where), (len(self), *like.shape[1:]), like.dtype)

    def rows(self, rows: Ints) -> Array:
        """These rows as they are in the file."""
        places = rows if self.index is None else self.index.numpy()[rows]
        found: Array = self._mapped.take(places, axis=0)
        if self._sums is not None:
            self._check(places, found)
        if found[:1].nbytes >= _APART:
            self._let_go(places, found[:1].nbytes)
        return found

    @cached_property
    def _mapped(self) -> Array:
        try:
            return np.memmap(self.path, self.dtype, "r", self.offset, self.whole)
        except (OSError, ValueError) as error:
            raise InputError(f"{self.path} cannot be read: {error}. Make the data again.") from error

    @cached_property
    def _sums(self) -> NDArray[np.uint32] | None:
        return None if self.sums is None else np.load(self.sums, allow_pickle=False)

    @cached_property
    def _seen(self) -> NDArray[np.bool_]:
        return np.zeros(self.whole[0], np.bool_)

    def _check(self, places: Ints, found: Array) -> None:
        """Compare rows that this process reads for the first time with their checksums."""
        assert self._sums is not None
        for number in np.flatnonzero(~self._seen[places]):
            place = int(places[number])
            if zlib.crc32(np.ascontiguousarray(found[number]).data) != int(self._sums[place]):
                with suppress(OSError):  # whoever looks for it next makes it anew
                    (Path(self.path).parent / "facts.json").unlink()
                raise InputError(f"{self.path} is damaged in row {place}. Start again: it is then made anew.")
            self._seen[place] = True

    def _let_go(self, places: Ints, size: int) -> None:
        """Pages that were read stay in the system's cache, but do not count as memory of this process."""
        held = getattr(self._mapped, "_mmap", None)
        if not isinstance(held, mmap.mmap) or not hasattr(mmap, "MADV_DONTNEED"):
            return
        skipped = self.offset % mmap.ALLOCATIONGRANULARITY  # numpy maps from the page in which the array begins
        for place in places.tolist():
            first = (skipped + place * size) // mmap.PAGESIZE * mmap.PAGESIZE
            last = skipped + (place + 1) * size
            held.madvise(mmap.MADV_DONTNEED, first, last - first)


@dataclass(frozen=True, eq=False)
class _Stored:
    """Rows of a file as a federation stores them."""

    rows: FileRows
    where: str

    def read(self, rows: Tensor, seed: Seed | None = None) -> Tensor:
        return as_stored(self.rows.rows(rows.numpy()), rows.tolist(), self.where)


def as_stored(x: Any, numbers: Sequence[int], where: str) -> Tensor:
    """Rows as a federation stores them; what is wrong with one is told with its own number."""
    try:
        return input_column(x, where)
    except InputError:
        for number, row in zip(numbers, x, strict=True):
            input_column(row[None], f"{where}, item {number}")
        raise


def file_rows(x: object) -> FileRows | None:
    """The rows of an array that is mapped from a file and not changed in memory; None for any other array."""
    if isinstance(x, FileRows):
        return x
    if not isinstance(x, np.memmap) or not isinstance(x.base, mmap.mmap) or x.mode not in ("r", "r+"):
        return None
    if x.filename is None or not x.flags.c_contiguous or x.ndim < 2 or x.dtype.kind not in "biuf":
        return None
    return FileRows(str(Path(x.filename).resolve()), x.offset, x.shape, x.dtype.str)
