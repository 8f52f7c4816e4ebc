"""Aggregators: ``(current, replies, context) -> params``. Uploads carry ``delta``, what changed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from fedquilt.core.exchange import Context, Reply
from fedquilt.core.holders import HasDelta
from fedquilt.core.params import Mean, Names, Params, add, pick
from fedquilt.errors import InputError


class Aggregator(Protocol):
    """The shape of every aggregator."""

    def __call__(self, current: Params, replies: Iterable[Reply[HasDelta]], context: Context) -> Params:
        """The next shared values; ``current`` when there is no reply."""
        ...


def mean(current: Params, replies: Iterable[Reply[HasDelta]], context: Context) -> Params:
    """w + sum n_i delta_i / sum n_i: clients are weighted by their number of samples."""
    return _apply(current, ((r.samples, r.upload.delta) for r in replies))


def uniform_mean(current: Params, replies: Iterable[Reply[HasDelta]], context: Context) -> Params:
    """w + mean of delta_i: every client counts the same."""
    return _apply(current, ((1, r.upload.delta) for r in replies))


def _apply(current: Params, weighted: Iterable[tuple[float, Params]]) -> Params:
    total = Mean()
    for weight, delta in weighted:
        total.add(delta, weight)
    return add(current, total.value()) if total.weight > 0 else current


@dataclass(frozen=True)
class noised:
    """Another aggregator, then N(0, (scale * std(tensor))^2) on every float tensor.

    The deviation is the (n-1)-normalised one of the aggregated tensor; a tensor of one number has none and stays.
    There is no clipping and no accounting: this is a baseline, NOT differential privacy.
    """

    scale: float
    then: Aggregator = mean

    def __post_init__(self) -> None:
        if self.scale < 0:
            raise InputError(f"noised needs scale >= 0, got {self.scale}.")

    def __call__(self, current: Params, replies: Iterable[Reply[HasDelta]], context: Context) -> Params:
        merged = self.then(current, replies, context)
        if merged is current or self.scale == 0:
            return merged
        generator, noisy = context.seed.fold("noise").torch(), {}
        for name, tensor in merged.items():
            if tensor.is_floating_point() and tensor.numel() > 1:
                draw = torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)
                tensor = tensor + draw * (self.scale * tensor.std())
            noisy[name] = tensor
        return noisy


@dataclass(frozen=True)
class class_wise:
    """Rows that belong to classes are averaged class by class: client i weighs n_i c_ic, its rows of class c.

    Everything else is averaged as by ``mean``. Uploads must carry ``counts``, so the server learns who has which
    classes. The row of a class that no reply has rows of stays as it is.

    Args:
        names: The tensors whose first dimension is the class.
    """

    names: Names

    def __call__(self, current: Params, replies: Iterable[Reply[Any]], context: Context) -> Params:
        rest, sums, total = Mean(), dict[str, torch.Tensor](), torch.zeros(())
        for reply in replies:
            counts = reply.upload.counts.double()
            if float(counts.sum()) > reply.samples:
                raise InputError(f"counts of {counts.sum():g} rows, of a client that has {reply.samples}.")
            weight = reply.samples * counts
            total = total + weight
            for name, delta in pick(self.names, reply.upload.delta).items():
                part = delta.double() * weight.view(-1, *[1] * (delta.dim() - 1))
                sums[name] = sums[name] + part if name in sums else part
            rest.add({n: t for n, t in reply.upload.delta.items() if not self.names(n)}, reply.samples)
        if rest.weight == 0:
            return current
        shares = {n: s / total.clamp(min=1).view(-1, *[1] * (s.dim() - 1)) for n, s in sums.items()}
        rows = {n: s.to(current[n].dtype) for n, s in shares.items()}
        return add(current, {**rest.value(), **rows})
