"""The changes of several clients as vectors: their lengths and products, and sums of them, without a second copy."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol

import torch
from torch import Tensor
from torch.linalg import vector_norm

from fedquilt.core.exchange import Context, Reply
from fedquilt.core.holders import HasDelta
from fedquilt.core.params import Params, add, is_statistic, numel
from fedquilt.core.seed import Seed
from fedquilt.errors import InputError

Per = Literal["model", "block", "layer", "tensor"]
_PIECE = 2**15  # numbers of each vector that are looked at together
_ROW, _FEW = 128, 4096  # numbers that are drawn together, and up to which nothing is drawn


class Vectors:
    """n vectors over the same float tensors, and the share of each: ``sum_i w_i = 1``.

    With a ``mix``, vector i is ``sum_j mix_ij change_j``. Beside the changes themselves, memory for 32,768 numbers of
    each and for n x n products is taken. With a ``sample``, products are reckoned from that part of the numbers,
    and what it misses of a length is a direction of its own.
    """

    def __init__(
        self, changes: Sequence[Params], weights: Tensor, mix: Tensor | None = None, sample: Sample | None = None
    ) -> None:
        self.changes, self.mix, self.sample = changes, mix, sample
        self.weights = weights / weights.sum()
        self._of: tuple[Vectors, Tensor] | None = None  # whose sums these are, and which

    def __len__(self) -> int:
        return len(self.weights)

    def mixed(self, mix: Tensor, weights: Tensor) -> Vectors:
        """Sums of these vectors as vectors of their own."""
        found = Vectors(self.changes, weights, mix if self.mix is None else mix @ self.mix)
        found._of = (self, mix)
        return found

    def pieces(self) -> Iterator[tuple[str, Tensor]]:
        """(tensor's name, n x k): all vectors piece by piece, in float64."""
        for name, first in self.changes[0].items():
            flat = [change[name].reshape(-1) for change in self.changes]
            for start in range(0, first.numel(), _PIECE):
                piece = torch.stack([f[start : start + _PIECE] for f in flat]).double()
                yield name, piece if self.mix is None else self.mix @ piece

    @cached_property
    def products(self) -> Tensor:
        """n x n: the inner product of each two. Takes time n^2, once for changes and all their sums."""
        if self._of is not None:
            vectors, mix = self._of
            return mix @ vectors.products @ mix.T
        total = torch.zeros(len(self), len(self), dtype=torch.float64)
        for piece in self._looked_at():
            total += piece @ piece.T
        if self.sample is None:
            return total
        missed = self.lengths.square() - total.diagonal()  # what no sample saw shares its direction with nobody
        return total + torch.diag(missed.clamp(min=0))

    def _looked_at(self) -> Iterator[Tensor]:
        """n x k: what products are reckoned from, piece by piece."""
        if self.sample is None:
            yield from (piece for _, piece in self.pieces())
            return
        for name, first in self.changes[0].items():
            rows = self.sample.rows(name, first.numel(), numel(self.changes[0]))
            flat = [change[name].reshape(-1) for change in self.changes]
            if rows is None:
                yield torch.stack(flat).double()
                continue
            whole = first.numel() // _ROW * _ROW
            picked = torch.stack([f[:whole].view(-1, _ROW).index_select(0, rows).view(-1) for f in flat])
            yield picked.double() * math.sqrt(first.numel() / picked.shape[1])

    @cached_property
    def lengths(self) -> Tensor:
        """The Euclidean length of each."""
        if self.mix is not None:
            return self.products.diagonal().clamp(min=0).sqrt()
        return torch.tensor([length(change) for change in self.changes], dtype=torch.float64)

    @cached_property
    def distances(self) -> Tensor:
        """n x n: the squared distance of each two."""
        own = self.products.diagonal()
        squared = (own[:, None] + own[None, :] - 2 * self.products).clamp(min=0)
        return squared.fill_diagonal_(0)

    def combined(self, shares: Tensor) -> Params:
        """sum_i shares_i vector_i, added up in the clients' order, in float64."""
        used = shares if self.mix is None else shares @ self.mix
        counted = [(change, share) for change, share in zip(self.changes, used.tolist(), strict=True) if share]
        return {n: _sum([(c[n], share) for c, share in counted], t) for n, t in self.changes[0].items()}

    def by_coordinate(self, rule: Callable[[Tensor], Tensor]) -> Params:
        """``rule`` (n x k -> k) on all coordinates, some at a time."""
        found: dict[str, list[Tensor]] = {n: [] for n in self.changes[0]}
        for name, piece in self.pieces():
            found[name].append(rule(piece))
        first = self.changes[0]
        return {n: torch.cat([*p, torch.zeros(0)]).view(first[n].shape).to(first[n].dtype) for n, p in found.items()}


def _sum(parts: Sequence[tuple[Tensor, float]], like: Tensor) -> Tensor:
    """sum share * tensor in float64, piece by piece: a piece of the sum stays in the cache meanwhile."""
    flat = [(tensor.reshape(-1), share) for tensor, share in parts]
    found = torch.zeros(like.numel(), dtype=like.dtype)
    for start in range(0, like.numel() if flat else 0, 2 * _PIECE):
        end = start + 2 * _PIECE
        (first, share), *rest = flat
        total = first[start:end].double() * share
        for tensor, other in rest:
            total.add_(tensor[start:end], alpha=other)
        found[start:end] = total
    return found.view(like.shape)


def length(change: Params) -> float:
    """The Euclidean length of a change. Pieces are short enough for float32 to err by less than a millionth, and the
    same wherever they lie in memory; what is too large for it is measured in float64."""
    pieces = [piece for tensor in change.values() for piece in tensor.reshape(-1).split(2 * _PIECE)]
    found = math.sqrt(math.fsum(float(vector_norm(piece)) ** 2 for piece in pieces))
    return found if math.isfinite(found) else math.hypot(*(float(vector_norm(p.double())) for p in pieces))


@dataclass(frozen=True)
class Sample:
    """So many numbers of each vector, the same ones of all, drawn by the seed in short rows: each tensor gives its
    share, and a tensor of a few numbers all that it has."""

    count: int
    seed: Seed

    def rows(self, name: str, size: int, of: int) -> Tensor | None:
        """Which rows of a tensor with so many of all numbers; None takes the whole tensor."""
        rows = size // _ROW
        wanted = max(1, round(self.count * size / of / _ROW))
        if size <= _FEW or wanted >= rows:
            return None
        drawn = self.seed.fold("sample", name).numpy().choice(rows, size=wanted, replace=False)
        return torch.from_numpy(drawn).sort().values


class Rule(Protocol):
    """What clients' changes, as vectors, are merged to."""

    def merge(self, vectors: Vectors, seed: Seed) -> Params:
        """One change."""
        ...


@dataclass(frozen=True, kw_only=True)
class RobustAggregator:
    """What robust aggregators have in common.

    Args:
        per: What is one vector: the whole ``"model"``, a ``"block"`` (what the first part of a name says: features,
            head), a ``"layer"`` (a module's tensors) or a ``"tensor"``. Running statistics of BatchNorm are always
            vectors of their own.
        by_samples: Whether clients count by their samples, where the rule weighs them, or all the same.
        sample: Reckon distances from so many of a change's numbers, drawn anew each round, which takes time n^2 sample
            instead of n^2 d. Lengths are those of all numbers: what hides in a few of them still lies far away. None
            takes all.
    """

    per: Per = "model"
    by_samples: bool = True
    sample: int | None = None

    def __call__(self, current: Params, replies: Iterable[Reply[HasDelta]], context: Context) -> Params:
        heard = list(replies)
        if not heard:
            return current
        if self.sample is not None and self.sample < 1:
            raise InputError(f"sample is a count of numbers of at least 1, or none, got {self.sample}.")
        weights = torch.tensor([float(r.samples) if self.by_samples else 1.0 for r in heard], dtype=torch.float64)
        changes = [r.upload.delta for r in heard]
        change: Params = {}
        for place, names in enumerate(groups(changes[0], self.per)):
            seed = context.seed.fold("robust", place)
            sample = None if self.sample is None else Sample(self.sample, seed)
            vectors = Vectors([{n: c[n] for n in names} for c in changes], weights, sample=sample)
            change.update(self.merge(vectors, seed))
        change.update(middle_counts(changes))
        return add(current, {n: change[n] for n in changes[0]})

    def merge(self, vectors: Vectors, seed: Seed) -> Params:
        """The change that the vectors are merged to."""
        raise NotImplementedError


def groups(change: Mapping[str, Tensor], per: Per) -> list[list[str]]:
    """The names of float tensors, those of one vector together."""
    groups: dict[object, list[str]] = {}
    for name, tensor in change.items():
        if tensor.is_floating_point():
            module = name.rpartition(".")[0]
            key = {"model": "", "block": name.partition(".")[0], "layer": module, "tensor": name}[per]
            groups.setdefault((is_statistic(name), key), []).append(name)
    return list(groups.values())


def middle_counts(changes: Sequence[Params]) -> Params:
    """Whole numbers, such as BatchNorm's count of batches: the median of the clients, no sum of them."""
    whole = [n for n, t in changes[0].items() if not t.is_floating_point()]
    return {n: _middle([c[n] for c in changes]) for n in whole}


def _middle(tensors: list[Tensor]) -> Tensor:
    return torch.stack(tensors).sort(dim=0).values[(len(tensors) - 1) // 2]


def mean_of(vectors: Vectors) -> Params:
    """Their weighted mean."""
    return vectors.combined(vectors.weights)


def count_of(byzantine: float, n: int) -> int:
    """How many of n vectors may be false: a whole number is a count, a fraction a share of them."""
    return int(byzantine) if byzantine >= 1 else math.floor(byzantine * n + 1e-9)


def check_byzantine(byzantine: float) -> None:
    """Raise unless it is a count, or a share below a half."""
    number = isinstance(byzantine, int | float) and not isinstance(byzantine, bool)
    if not (number and (0 <= byzantine < 0.5 or (byzantine >= 1 and float(byzantine).is_integer()))):
        raise InputError(
            f"byzantine is a share of the cohort below 0.5, such as 0.2, or a count of clients, got {byzantine!r}."
        )


def check_enough(rule: str, n: int, needed: int, false: int) -> None:
    """Raise unless the rule has as many vectors as it needs."""
    if n < needed:
        raise InputError(
            f"{rule} with {false} false repl{'y' if false == 1 else 'ies'} needs at least {needed} replies, and there "
            f"are {n}. Ask more clients, or lower byzantine; clusters need a share, such as 0.2."
        )


def quantile(values: Tensor, weights: Tensor, share: float) -> float:
    """The smallest value up to which this share of the weight lies."""
    ordered, places = values.sort(stable=True)
    reached = weights[places].cumsum(0) >= share * float(weights.sum()) * (1 - 1e-12)
    return float(ordered[int(reached.int().argmax())])


def shortened(lengths: Tensor, radius: float) -> Tensor:
    """min(1, radius / length)."""
    return torch.where(lengths > radius, radius / lengths.clamp(min=torch.finfo(torch.float64).tiny), 1.0)
