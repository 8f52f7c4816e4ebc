"""Merging rules as aggregators, with plain options."""

from __future__ import annotations

from fedquilt.pieces.merging.rule import merging
from fedquilt.pieces.merging.stitch import Conflicts, Counted, Stitch
from fedquilt.pieces.merging.ties import Dare, TaskArithmetic, Ties
from fedquilt.pieces.merging.trim import Per


def stitch(
    keep: float = 0.05,
    per: Per = "all",
    count: Counted = "mask",
    conflicts: Conflicts = "mean",
    by_samples: bool = False,
) -> merging:
    """The masked mean; whole changes travel, and the server chooses. See :class:`Stitch`."""
    return merging(Stitch(keep, per, count, conflicts), by_samples)


def ties(keep: float = 0.2, scale: float = 1.0, per: Per = "all", by_samples: bool = False) -> merging:
    """TIES. See :class:`Ties`."""
    return merging(Ties(keep, scale, per), by_samples)


def dare(drop: float = 0.9, by_samples: bool = False) -> merging:
    """DARE, then the mean. See :class:`Dare`."""
    return merging(Dare(drop), by_samples)


def task_arithmetic(scale: float = 0.4) -> merging:
    """A scaled sum of changes. See :class:`TaskArithmetic`."""
    return merging(TaskArithmetic(scale))
