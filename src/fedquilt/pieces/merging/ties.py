"""Task arithmetic and its kin: sums of changes, trimmed, thinned out or with elected signs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedquilt.core.seed import Seed
from fedquilt.errors import InputError
from fedquilt.pieces.merging.rule import Change, MergeRule, Named, Work, weighted_mean, weighted_sum
from fedquilt.pieces.merging.stitch import Stitch
from fedquilt.pieces.merging.trim import Per


@dataclass(frozen=True)
class Soup:
    """theta + sum w_i delta_i / sum w_i: the mean of the models.

    Reference: Wortsman et al., Model Soups, 2022 (the uniform soup).
    """

    def plan(self, work: Work) -> Change:
        """Nothing to be known before."""
        return lambda name: weighted_mean(work.weights, _counted(name, work))


@dataclass(frozen=True)
class TaskArithmetic:
    """theta + scale * sum w_i delta_i.

    Reference: Ilharco et al., Editing Models with Task Arithmetic, 2023.
    """

    scale: float = 0.4

    def __post_init__(self) -> None:
        _check_scale(self.scale)

    def plan(self, work: Work) -> Change:
        """Nothing to be known before."""
        return lambda name: self.scale * weighted_sum(work.weights, _counted(name, work))


def _check_scale(scale: float) -> None:
    if not math.isfinite(scale):
        raise InputError(f"scale must be a finite number, got {scale}.")


def _counted(name: str, work: Work) -> list[Tensor]:
    deltas = [d[name] for d in work.deltas]
    work.report.count(deltas, [d != 0 for d in deltas])
    return deltas


@dataclass(frozen=True)
class Ties:
    """Trim to the largest ``keep``, elect the sign of the sum, and average what agrees with it; times ``scale``.

    A weight whose trimmed changes sum to exactly 0 has no sign and stays.

    Reference: Yadav et al., TIES-Merging, 2023.
    """

    keep: float = 0.2
    scale: float = 1.0
    per: Per = "all"

    def __post_init__(self) -> None:
        _check_scale(self.scale)
        self._stitch()

    def _stitch(self) -> Stitch:
        return Stitch(self.keep, self.per, "nonzero", "elect")

    def plan(self, work: Work) -> Change:
        """As stitching with elected signs."""
        change = self._stitch().plan(work)
        return lambda name: self.scale * change(name)


@dataclass(frozen=True)
class Dare:
    """Each change is dropped with probability ``drop``, the rest grows by 1 / (1 - drop); then another rule.

    Reference: Yu et al., Language Models are Super Mario, 2024.
    """

    drop: float = 0.9
    then: MergeRule = Soup()

    def __post_init__(self) -> None:
        if not 0 <= self.drop < 1:
            raise InputError(f"drop is a probability in [0, 1), got {self.drop}.")

    def plan(self, work: Work) -> Change:
        """The other rule's plan, on thinned changes."""
        thinned = [_Thinned(d, self.drop, work.seed.fold("dare", i)) for i, d in enumerate(work.deltas)]
        return self.then.plan(replace(work, deltas=thinned))


class _Thinned(Mapping[str, Tensor]):
    """Changes of which most are dropped; the same ones however often they are read."""

    def __init__(self, deltas: Named, drop: float, seed: Seed) -> None:
        self._deltas, self._drop, self._seed = deltas, drop, seed

    def __getitem__(self, name: str) -> Tensor:
        delta = self._deltas[name]
        stays = torch.rand(delta.shape, generator=self._seed.fold(name).torch()) >= self._drop
        return delta * stays / (1 - self._drop)

    def __iter__(self) -> Iterator[str]:
        return iter(self._deltas)

    def __len__(self) -> int:
        return len(self._deltas)
