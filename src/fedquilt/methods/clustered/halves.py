"""The discovery on which clients show two updates, one from each half of their samples: so chance can be told apart.

Both trainings begin at the same model; together they pass over as many samples as one training on all. Where clusters
may be found by several parts of the network, the server asks each (:func:`fedquilt.pieces.clustering.null.judged`) and
believes the one with the largest gap.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedquilt.core.exchange import Context, Exchange
from fedquilt.core.params import Names, Params, flatten
from fedquilt.core.seed import Seed
from fedquilt.core.table import Site, Table
from fedquilt.core.train import Job, Trained, in_turn
from fedquilt.pieces.clustering.private import sketch
from fedquilt.pieces.clustering.result import ClusterResult
from fedquilt.records.record import record

BY = ", by "  # between 'auto' and the part that decided, in a result's criterion


@record(name="fedquilt.methods.halves:SensedHalves")
class SensedHalves:
    """What a client shows: the update from each half of its samples, part by part."""

    first: Tensor
    second: Tensor


@dataclass(frozen=True)
class Parts:
    """Parts of a network, which may overlap, and where each is in the vector that holds every weight once.

    Args:
        names: Of each part.
        sketch_size, sketch_seed: If set, weights that are in the same parts are sketched together, each such piece to
            so many numbers.
    """

    names: Mapping[str, Names]
    sketch_size: int | None = None
    sketch_seed: int = 0

    def pieces(self, params: Params) -> dict[tuple[str, ...], Params]:
        """The weights by the parts that they are in; those in none are left out."""
        found: dict[tuple[str, ...], Params] = {}
        for name, weight in params.items():
            where = tuple(part for part, names in self.names.items() if names(name))
            if where:
                found.setdefault(where, {})[name] = weight
        return found

    def vector(self, params: Params) -> Tensor:
        """One piece after the other."""
        whole = [flatten(piece) for piece in self.pieces(params).values()]
        if self.sketch_size is not None:
            whole = [sketch(v, self.sketch_size, Seed(self.sketch_seed)) for v in whole]
        return torch.cat(whole)

    def sizes(self, params: Params) -> dict[tuple[str, ...], int]:
        """How many numbers each piece has."""
        whole = {where: flatten(piece).numel() for where, piece in self.pieces(params).items()}
        return {where: min(n, self.sketch_size or n) for where, n in whole.items()}

    def part(self, name: str, vector: Tensor, params: Params) -> Tensor:
        """What of such a vector belongs to a part; all of it for ''."""
        sizes = self.sizes(params)
        split = zip(sizes, vector.split(list(sizes.values())), strict=True)
        return torch.cat([v for where, v in split if not name or name in where])


@dataclass(frozen=True)
class _Halfway:
    """Between the two trainings of a client update."""

    client: Any
    vector: Tensor


@dataclass(frozen=True)
class _Half:
    """One half of the rows that a training is on: drawn once for all, so that no order of rows decides."""

    rows: Callable[[Site], Table]
    second: bool

    def __call__(self, site: Site) -> Table:
        table = self.rows(site)
        count = len(table)
        order = torch.randperm(count, generator=Seed(0).fold("halves", count).torch())
        chosen = order[(count + 1) // 2 :] if self.second else order[: (count + 1) // 2]
        return replace(table, index=table.all_rows()[chosen.sort().values])


def on_halves(train: Exchange, vector: Callable[[Job, Trained, Context], Tensor]) -> Exchange:
    """An exchange of local training as two: on each half of the rows, from the same start.

    Args:
        train: Its work is a ``Train``.
        vector: What is shown of a training.
    """
    work: Any = train.work

    def half(job: Job, trained: Trained, client: Any, site: Site, context: Context) -> tuple[_Halfway, None]:
        return _Halfway(client, vector(job, trained, context)), None

    def start(download: Any, client: _Halfway, site: Site, context: Context) -> Job:
        job: Job = work.start(download, client.client, site, context)
        return job

    def both(job: Job, trained: Trained, client: _Halfway, site: Site, context: Context) -> tuple[Any, SensedHalves]:
        return client.client, SensedHalves(client.vector, vector(job, trained, context))

    steps = None if work.steps is None else (work.steps + 1) // 2
    one = replace(work, finish=half, rows=_Half(work.rows, False), steps=steps)
    other = replace(work, start=start, finish=both, rows=_Half(work.rows, True), steps=steps)
    return replace(train, work=in_turn(one, other))


def whole(shown: SensedHalves) -> Tensor:
    """The update of all samples, nearly: the mean of the halves'."""
    return (shown.first + shown.second) / 2


def part_of(found: ClusterResult) -> str:
    """By which part clusters were found; '' if there was no choice."""
    return found.criterion.partition(BY)[2]


def believed(found: Mapping[str, ClusterResult]) -> ClusterResult:
    """Of what the parts say the clusters with the largest gap; the first part's if each says there is only one."""
    best = max(found, key=lambda part: found[part].measures.get("gap", -math.inf))
    return replace(found[best], criterion=f"auto{BY}{best}") if len(found) > 1 else found[best]


def several(parts: Mapping[str, Names], weights: Sequence[str]) -> dict[str, Names]:
    """The parts that are there, each once."""
    found: dict[frozenset[str], str] = {}
    for part, names in parts.items():
        there = frozenset(filter(names, weights))
        if there:
            found.setdefault(there, part)
    return {part: parts[part] for part in found.values()}
