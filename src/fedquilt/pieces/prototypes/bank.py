"""Prototype bank at the server: what arrives is merged with what is like it, or added."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fedquilt.core.seed import Seed
from fedquilt.errors import InputError
from fedquilt.records.record import record

SUSPICIOUS = 10  # prototypes that arrived while there is still one row


@record
class Bank:
    """Unit rows [M, D]; of each the data rows behind it, how often it was merged into, and when first and last."""

    rows: Tensor
    counts: Tensor
    merges: Tensor
    born: Tensor
    used: Tensor

    def __len__(self) -> int:
        return len(self.rows)


@record
class Arrivals:
    """What became of the prototypes of a round, and the cosines between each two of them (0 for less than two)."""

    arrived: int = 0
    merged: int = 0
    added: int = 0
    dropped: int = 0
    evicted: int = 0
    cos_mean: float = 0.0
    cos_min: float = 0.0
    cos_max: float = 0.0


def no_prototypes(width: int) -> Bank:
    """An empty bank."""
    none = torch.zeros(0, dtype=torch.int64)
    return Bank(torch.zeros(0, width), none, none, none, none)


def cosines(rows: Tensor) -> tuple[float, float, float]:
    """(mean, least, greatest) cosine between each two rows; zeros for less than two."""
    if len(rows) < 2:
        return 0.0, 0.0, 0.0
    unit = F.normalize(rows.float(), dim=1)
    pairs = (unit @ unit.T)[tuple(torch.triu_indices(len(unit), len(unit), 1))]
    return float(pairs.mean()), float(pairs.min()), float(pairs.max())


def collapsed(bank: Bank, arrived: int) -> str | None:
    """What to say when many prototypes became one: they differ by less than the threshold can tell."""
    if len(bank) != 1 or arrived < SUSPICIOUS:
        return None
    return (
        f"The prototype bank holds 1 row although {arrived} prototypes arrived: the features all point the same way. "
        "Centre them (center = true), or raise merge_threshold."
    )


@dataclass(frozen=True)
class MergeOrAdd:
    """One after another: m = max_j G_j p; m >= threshold: G_j <- (1 - alpha) G_j + alpha p at length 1; else add p.

    Args:
        threshold: The least cosine for merging, in [-1, 1].
        alpha: How far a row moves, in (0, 1].
        by_counts: Use alpha = n_p / (n_G + n_p) instead: rows are means of all that was merged into them.
        capacity: The most rows; a full bank still merges.
        evict: What a full bank does with a prototype that is like no row: give it the place of the row that was merged
            into least (then the one longest unused), instead of dropping it.
        concatenate_first: What comes to an empty bank in one round is added without merging.
        shuffle: Process a round's prototypes in an order drawn from the seed, instead of the given one.
    """

    threshold: float = 0.85
    alpha: float = 0.1
    by_counts: bool = False
    capacity: int | None = None
    evict: bool = False
    concatenate_first: bool = False
    shuffle: bool = False

    def __post_init__(self) -> None:
        if not (-1 <= self.threshold <= 1 and 0 < self.alpha <= 1):
            given = f"{self.threshold} and {self.alpha}"
            raise InputError(f"merge_threshold must be in [-1, 1] and server_ema_alpha in (0, 1], got {given}.")
        if self.capacity is not None and self.capacity < 1:
            raise InputError(f"max_prototypes must be at least 1, got {self.capacity}.")

    def __call__(
        self, bank: Bank, arriving: Sequence[tuple[Tensor, Tensor]], round: int, seed: Seed
    ) -> tuple[Bank, Arrivals]:
        """The bank after (prototypes [K, D], counts [K]) of some clients, in the order given."""
        if not sum(len(rows) for rows, _ in arriving):
            return bank, Arrivals()
        given, counts = (torch.cat(parts) for parts in zip(*arriving, strict=True))
        lengths = given.norm(dim=1)
        points = lengths > 1e-6  # what is zero has no direction
        rows, counts = F.normalize(given[points].float(), dim=1), counts[points].long()
        if self.shuffle:
            order = torch.randperm(len(rows), generator=seed.fold("order").torch())
            rows, counts = rows[order], counts[order]
        work = _Work(bank, len(rows), round)
        plain = self.concatenate_first and not len(bank)
        for row, count in zip(rows, counts.tolist(), strict=True):
            self._one(work, row, count, plain)
        dropped = work.dropped + len(given) - len(rows)
        tally = Arrivals(len(given), work.merged, work.added, dropped, work.evicted, *cosines(rows))
        return work.done(), tally

    def _one(self, work: _Work, row: Tensor, count: int, plain: bool) -> None:
        if work.size and not plain:
            best, j = (work.rows[: work.size] @ row).max(0)
            if float(best) >= self.threshold:
                share = count / max(int(work.counts[j]) + count, 1) if self.by_counts else self.alpha
                work.merge(int(j), row, count, share)
                return
        if self.capacity is None or work.size < self.capacity:
            work.place(work.size, row, count)
            work.size, work.added = work.size + 1, work.added + 1
        elif self.evict:
            work.place(work.least_used(), row, count)
            work.evicted += 1
        else:
            work.dropped += 1


class _Work:
    """A bank that is being changed, with room for what may come."""

    def __init__(self, bank: Bank, more: int, round: int) -> None:
        self.size, self.round = len(bank), round
        self.merged = self.added = self.dropped = self.evicted = 0
        self.rows = F.pad(bank.rows, (0, 0, 0, more))
        self.counts, self.merges, self.born, self.used = (
            F.pad(t, (0, more)) for t in (bank.counts, bank.merges, bank.born, bank.used)
        )

    def merge(self, j: int, row: Tensor, count: int, share: float) -> None:
        moved = (1 - share) * self.rows[j] + share * row
        if float(moved.norm()) > 1e-6:  # opposite rows, below any sensible threshold, could cancel out
            self.rows[j] = moved / moved.norm()
        self.counts[j] += count
        self.merges[j] += 1
        self.used[j] = self.round
        self.merged += 1

    def place(self, j: int, row: Tensor, count: int) -> None:
        self.rows[j], self.counts[j], self.merges[j] = row, count, 0
        self.born[j] = self.used[j] = self.round

    def least_used(self) -> int:
        keys = zip(self.merges[: self.size].tolist(), self.used[: self.size].tolist(), range(self.size), strict=True)
        return min(keys)[2]

    def done(self) -> Bank:
        kept = (t[: self.size].clone() for t in (self.rows, self.counts, self.merges, self.born, self.used))
        return Bank(*kept)
