"""Fisher-weighted averaging and RegMean, which read statistics of each model's data; SLERP of two; the greedy soup."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedquilt.core.net import Net
from fedquilt.core.params import Params
from fedquilt.core.params import weighted_mean as mean_of_models
from fedquilt.core.table import Batch, Table
from fedquilt.errors import InputError
from fedquilt.pieces.merging.rule import Change, Named, Work, weighted_mean, wide


@dataclass(frozen=True)
class Fisher:
    """theta + sum w_i F_i delta_i / sum w_i F_i, F_i the diagonal of model i's Fisher information.

    Where all F_i are (nearly) 0 the plain mean is taken.

    Args:
        information: For each model a tensor of each name, >= 0; see :func:`fisher_information`.

    Reference: Matena and Raffel, Merging Models with Fisher-Weighted Averaging, 2022.
    """

    information: Sequence[Named]
    least: float = 1e-12

    def plan(self, work: Work) -> Change:
        """One file of statistics for each model."""
        _one_each(self.information, work, "Fisher information")

        def change(name: str) -> Tensor:
            deltas = [d[name] for d in work.deltas]
            work.report.count(deltas, [d != 0 for d in deltas])
            shares = [w * _of(f, name, d) for w, f, d in zip(work.weights, self.information, deltas, strict=True)]
            total = sum(shares, torch.zeros_like(shares[0]))
            found = sum((s * d for s, d in zip(shares, deltas, strict=True)), torch.zeros_like(total))
            return torch.where(
                total > self.least, found / total.clamp(min=self.least), weighted_mean(work.weights, deltas)
            )

        return change


@dataclass(frozen=True)
class RegMean:
    """W + (sum G_i)^-1 sum G_i delta_i for linear layers, G_i = X_i^T X_i of the layer's inputs; else the plain mean.

    It minimises sum_i |X_i W - X_i W_i|^2. The off-diagonals of G_i are multiplied by ``shrink``, as published.

    Args:
        grams: For each model [in, in] for the weight of each linear layer; see :func:`gram_matrices`.

    Reference: Jin et al., Dataless Knowledge Fusion by Merging Weights of Language Models, 2023.
    """

    grams: Sequence[Named]
    shrink: float = 0.9

    def __post_init__(self) -> None:
        if not 0 <= self.shrink <= 1:
            raise InputError(f"shrink must be in [0, 1], got {self.shrink}.")

    def plan(self, work: Work) -> Change:
        """One file of statistics for each model."""
        _one_each(self.grams, work, "Gram matrices")

        def change(name: str) -> Tensor:
            deltas = [d[name] for d in work.deltas]
            work.report.count(deltas, [d != 0 for d in deltas])
            known = [name in g for g in self.grams]
            if not all(known):
                if any(known):
                    raise InputError(f"Some models have a Gram matrix for '{name}', others have none.")
                return weighted_mean(work.weights, deltas)
            grams = [
                w * self._shrunk(g[name], name, d) for w, g, d in zip(work.weights, self.grams, deltas, strict=True)
            ]
            total = sum(grams, torch.zeros_like(grams[0]))
            wanted = sum((g @ d.double().T for g, d in zip(grams, deltas, strict=True)), 0 * total[:, :1])
            solved: Tensor = torch.linalg.lstsq(total, wanted, driver="gelsd").solution  # also for inputs that are 0
            return solved.T

        return change

    def _shrunk(self, gram: Tensor, name: str, delta: Tensor) -> Tensor:
        size = delta.shape[-1]
        if delta.dim() != 2 or gram.shape != (size, size):
            raise InputError(
                f"The Gram matrix of '{name}' should be {(size, size)} for a weight of {tuple(delta.shape)}, "
                f"got {tuple(gram.shape)}."
            )
        wide = gram.double()
        return self.shrink * wide + (1 - self.shrink) * torch.diag(torch.diagonal(wide))


def _one_each(statistics: Sequence[Any], work: Work, what: str) -> None:
    if len(statistics) != len(work.deltas):
        raise InputError(f"{what}: {len(statistics)} given for {len(work.deltas)} models. Give one for each.")


def _of(information: Named, name: str, delta: Tensor) -> Tensor:
    if name not in information:
        raise InputError(f"The Fisher information has no '{name}'.")
    found = information[name].double()
    if found.shape != delta.shape or bool((found < 0).any()):
        raise InputError(f"The Fisher information of '{name}' should be {tuple(delta.shape)} and >= 0.")
    return found


def fisher_information(
    loss: Callable[[Params, Batch], Tensor], params: Params, names: Sequence[str], rows: Table
) -> Params:
    """The mean over rows of the squared gradient of the loss of each row: the empirical Fisher's diagonal."""
    if not len(rows):
        raise InputError("Fisher information needs rows, and there are none.")
    own = {n: t.detach().clone() for n, t in params.items()}
    weights = [own[n].requires_grad_() for n in names]
    total = [torch.zeros_like(w, dtype=torch.float64) for w in weights]
    for batch in rows.blocks(1):
        for sums, grad in zip(total, torch.autograd.grad(loss(own, batch), weights), strict=True):
            sums += grad.double().square()
    return {n: (t / len(rows)).float() for n, t in zip(names, total, strict=True)}


def gram_matrices(net: Net, params: Params, batches: Iterable[Batch]) -> Params:
    """X^T X of the inputs of every linear layer, under the name of its weight."""
    total: Params = {}
    own = net.own(params)
    with torch.no_grad():
        for batch in batches:
            for name, x in net.linear_inputs(own, batch).items():
                flat = x.reshape(-1, x.shape[-1]).double()
                gram = flat.T @ flat
                total[name] = total[name] + gram if name in total else gram
    return {n: t.float() for n, t in total.items()}


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
        tried = mean_of_models((1.0, models[i]) for i in [*chosen, place])
        found = score(tried)
        if found >= best:
            chosen, soup, best = [*chosen, place], tried, found
    return soup, chosen, best
