"""SLERP of two models, and the greedy soup."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedquilt.core.params import Params, weighted_mean
from fedquilt.errors import InputError
from fedquilt.pieces.merging.rule import Change, Work, wide


@dataclass(frozen=True)
class Slerp:
    """Along the great circle from the first model to the second, tensor by tensor, as far as ``t``.

    sin((1-t) a) / sin a * A + sin(t a) / sin a * B, a the angle between the tensors A and B as vectors; a straight line
    where they are (nearly) parallel or one is 0.

    Reference: Shoemake, Animating Rotation with Quaternion Curves, 1985.
    """

    t: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.t <= 1:
            raise InputError(f"t must be in [0, 1], got {self.t}.")

    def plan(self, work: Work) -> Change:
        """Two models, no more."""
        if len(work.deltas) != 2:
            raise InputError(f"SLERP merges two models, got {len(work.deltas)}. Use soup, ties or stitch for more.")

        def change(name: str) -> Tensor:
            start = wide(work.base[name]).double()
            deltas = [d[name] for d in work.deltas]
            work.report.count(deltas, [d != 0 for d in deltas])
            a, b = (start + d for d in deltas)
            return self.between(a, b) - start

        return change

    def between(self, a: Tensor, b: Tensor) -> Tensor:
        """The point at ``t``, for two tensors."""
        lengths = torch.linalg.vector_norm(a) * torch.linalg.vector_norm(b)
        cosine = float((a * b).sum() / lengths) if float(lengths) > 0 else 1.0
        if abs(cosine) > 1 - 1e-9:
            return torch.lerp(a, b, self.t)
        angle = torch.arccos(torch.tensor(cosine, dtype=torch.float64))
        return (torch.sin((1 - self.t) * angle) * a + torch.sin(self.t * angle) * b) / torch.sin(angle)


def greedy_soup(models: Sequence[Params], score: Callable[[Params], float]) -> tuple[Params, list[int], float]:
    """The mean of some of the models: best first, each stays in if the mean then scores at least as well.

    Args:
        models: Whole models.
        score: On validation samples; more is better.

    Returns:
        The soup, the places of its models in the order they went in, and its score.

    Reference: Wortsman et al., Model Soups, 2022, recipe 1.
    """
    if not models:
        raise InputError("A soup needs at least one model.")
    alone = [score(m) for m in models]
    order = sorted(range(len(models)), key=lambda i: (-alone[i], i))
    chosen, soup, best = [order[0]], models[order[0]], alone[order[0]]
    for place in order[1:]:
        tried = weighted_mean((1.0, models[i]) for i in [*chosen, place])
        found = score(tried)
        if found >= best:
            chosen, soup, best = [*chosen, place], tried, found
    return soup, chosen, best
