"""Search for a better linear head along other clients' gradients, on features that are computed once.

A head is one matrix H [classes, width]: its weights, and its bias as the last column, for which every feature vector
ends in a 1. The loss is the mean cross-entropy of the scores Z H'.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedquilt.core.seed import Seed
from fedquilt.errors import InputError

SUFFICIENT = 1e-4  # backtracking: the least share of the promised descent
HALVINGS = 20
DOUBLINGS = 40


class FeatureRows(NamedTuple):
    """Feature vectors [rows, width] and labels."""

    z: Tensor
    y: Tensor


class Found(NamedTuple):
    """The head, how many candidates there were, how many pointed the right way, how many were taken, and the loss
    before and after on the rows that judge."""

    head: Tensor
    candidates: int
    aligned: int
    taken: int
    before: float
    after: float


def loss(scores: Tensor, y: Tensor) -> float:
    """The mean cross-entropy, in float64."""
    return float(F.cross_entropy(scores.double(), y))


def head_gradient(head: Tensor, rows: FeatureRows) -> Tensor:
    """The gradient of the loss along H: (softmax(Z H') - one-hot(y))' Z / rows."""
    off = (rows.z @ head.T).softmax(1)
    off[torch.arange(len(rows.y)), rows.y] -= 1
    return off.T @ rows.z / len(rows.y)


def cosine_step(candidate: Tensor, reference: Tensor) -> float:
    """The cosine of the two; 0 where they do not point the same way, or either is zero or not finite."""
    a, b = candidate.double().flatten(), reference.double().flatten()
    length = float(a.norm()) * float(b.norm())
    s = float(a @ b)
    if not (math.isfinite(length) and math.isfinite(s)) or length == 0 or s <= 0:
        return 0.0
    return min(s / length, 1.0)


@dataclass(frozen=True)
class HeadSearch:
    """How a client tries gradients g_1 ... g_m against its own gradient G. Only those with <g_j, G> > 0 count.

    greedy: one after the other, H <- H - a_j g_j if that lowers the loss on the judging rows; a_j is the cosine of g_j
    and G (``step = "cosine"``), the minimum of the fitting rows' loss along g_j (``"exact"``), or the cosine, halved
    until the loss falls enough (``"backtracking"``).

    joint: the a >= 0 that together minimise the fitting rows' loss of H - sum a_j g_j plus ridge/2 |sum a_j g_j|^2, a
    convex problem. Where other rows judge, the step is shortened to the best share of it for them.

    Args:
        search: "greedy" or "joint".
        step: For greedy: "cosine", "exact" or "backtracking".
        order: For greedy: "random", drawn from the seed; "aligned", the largest cosine first; or "given".
        ridge: For joint: how much moving the head costs, >= 0.
        least: A step is taken only if the loss falls by more than this, >= 0.
    """

    search: Literal["greedy", "joint"] = "greedy"
    step: Literal["cosine", "exact", "backtracking"] = "cosine"
    order: Literal["random", "aligned", "given"] = "random"
    ridge: float = 0.01
    least: float = 0.0

    def __post_init__(self) -> None:
        known = {"search": ("greedy", "joint"), "step": ("cosine", "exact", "backtracking")}
        for name, choices in (known | {"order": ("random", "aligned", "given")}).items():
            if getattr(self, name) not in choices:
                raise InputError(f"{name} must be one of {', '.join(choices)}, got {getattr(self, name)!r}.")
        if not (self.ridge >= 0 and self.least >= 0):
            raise InputError(f"ridge and least must be >= 0, got {self.ridge} and {self.least}.")

    def __call__(
        self,
        head: Tensor,
        reference: Tensor,
        candidates: Sequence[Tensor],
        fit: FeatureRows,
        judge: FeatureRows,
        seed: Seed,
    ) -> Found:
        """The head that was found; the one that was given, bit for bit, if no candidate helps.

        Args:
            head: H.
            reference: G.
            candidates: g_1 ... g_m, each of the shape of H.
            fit: The rows that steps are fitted to.
            judge: The rows whose loss must fall; ``fit`` itself, unless some are held out.
            seed: For the order.
        """
        nothing = Found(head, len(candidates), 0, 0, math.nan, math.nan)
        if not min(len(fit.y), len(judge.y)):
            return nothing
        steps = [cosine_step(g, reference) for g in candidates]
        aligned = [j for j in self._order(steps, seed) if steps[j] > 0]
        scores = judge.z @ head.T
        before = loss(scores, judge.y)
        nothing = nothing._replace(aligned=len(aligned), before=before, after=before)
        if not aligned:
            return nothing
        if self.search == "greedy":
            moved, taken = self._greedy(head, [(candidates[j], steps[j]) for j in aligned], fit, judge, before)
        else:
            moved, taken = self._joint(head, [candidates[j] for j in aligned], fit, judge)
        result = (head.double() - moved).to(head.dtype)
        after = loss(judge.z @ result.T, judge.y)
        # Rounding to the head's own type may undo a tiny gain; the promise is that the loss never rises.
        return nothing._replace(head=result, taken=taken, after=after) if after < before - self.least else nothing

    def _order(self, steps: Sequence[float], seed: Seed) -> list[int]:
        if self.order == "aligned":
            return sorted(range(len(steps)), key=lambda j: -steps[j])
        if self.order == "given":
            return list(range(len(steps)))
        found: list[int] = torch.randperm(len(steps), generator=seed.torch()).tolist()
        return found

    def _greedy(
        self, head: Tensor, chosen: Sequence[tuple[Tensor, float]], fit: FeatureRows, judge: FeatureRows, best: float
    ) -> tuple[Tensor, int]:
        """The sum of the accepted a_j g_j, and how many they are."""
        moved, taken = torch.zeros_like(head, dtype=torch.float64), 0
        apart = fit is not judge
        scores = (judge.z @ head.T).double()
        fitted = (fit.z @ head.T).double() if apart else scores
        for g, cosine in chosen:
            along = (judge.z @ g.T).double()
            fitted_along = (fit.z @ g.T).double() if apart else along
            alpha = self._length(Line(fitted, fitted_along, fit.y), cosine)
            trial = scores - alpha * along
            value = loss(trial, judge.y)
            if alpha > 0 and value < best - self.least:
                scores, best, taken = trial, value, taken + 1
                fitted = fitted - alpha * fitted_along if apart else scores
                moved += alpha * g.double()
        return moved, taken

    def _length(self, line: Line, cosine: float) -> float:
        if self.step == "cosine":
            return cosine
        return line.minimum(cosine) if self.step == "exact" else line.backtracked(cosine)

    def _joint(
        self, head: Tensor, chosen: Sequence[Tensor], fit: FeatureRows, judge: FeatureRows
    ) -> tuple[Tensor, int]:
        """The best non-negative combination."""
        units = torch.stack([g.double() / g.double().norm() for g in chosen])
        weights = self._weights((fit.z @ head.T).double(), units, fit)
        moved = torch.tensordot(weights, units, 1)
        if fit is not judge:
            line = Line((judge.z @ head.T).double(), judge.z.double() @ moved.T, judge.y)
            moved = moved * line.minimum(1.0, most=1.0)
        return moved, int((weights > 0).sum())

    def _weights(self, scores: Tensor, units: Tensor, fit: FeatureRows) -> Tensor:
        """a >= 0 that minimises loss(H - sum a_j u_j) + ridge/2 |sum a_j u_j|^2, by L-BFGS with bounds."""
        from scipy.optimize import minimize  # takes a moment to import

        count = len(units)
        along = torch.stack([(fit.z @ u.to(fit.z.dtype).T).double() for u in units]).flatten(1)
        flat = units.flatten(1)
        gram = flat @ flat.T

        def value(a: np.ndarray) -> tuple[float, np.ndarray]:
            weights = torch.from_numpy(a)
            at = scores - (weights @ along).view_as(scores)
            off = at.softmax(1)
            off[torch.arange(len(fit.y)), fit.y] -= 1
            pull = gram @ weights
            gradient = -(along @ off.flatten()) / len(fit.y) + self.ridge * pull
            return loss(at, fit.y) + self.ridge / 2 * float(weights @ pull), gradient.numpy()

        found = minimize(value, np.zeros(count), jac=True, bounds=[(0, None)] * count, method="L-BFGS-B")
        return torch.from_numpy(found.x)


@dataclass(frozen=True)
class Line:
    """The loss of scores - a * along for a >= 0: convex in a."""

    scores: Tensor
    along: Tensor
    y: Tensor

    def value(self, a: float) -> float:
        """The loss at a."""
        return loss(self.scores - a * self.along, self.y)

    def gradient(self, a: float) -> float:
        """Its derivative at a."""
        off = (self.scores - a * self.along).softmax(1)
        off[torch.arange(len(self.y)), self.y] -= 1
        return -float((off * self.along).sum()) / len(self.y)

    def minimum(self, first: float, most: float = math.inf) -> float:
        """Where the loss is least in [0, most]; ``first`` is the first guess. Endless descent ends far out."""
        if self.gradient(0.0) >= 0:
            return 0.0
        high = min(first, most)
        for _ in range(DOUBLINGS):
            if high >= most or self.gradient(high) >= 0:
                break
            high = min(2 * high, most)
        if self.gradient(high) <= 0:
            return high
        return root(self.gradient, 0.0, high)

    def backtracked(self, first: float) -> float:
        """The first of ``first``, first/2, first/4, ... where the loss falls enough (Armijo); 0 if none."""
        start, gradient = self.value(0.0), self.gradient(0.0)
        if gradient >= 0:
            return 0.0
        for k in range(HALVINGS):
            a = first * 0.5**k
            if self.value(a) <= start + SUFFICIENT * a * gradient:
                return a
        return 0.0


def root(f: Callable[[float], float], low: float, high: float) -> float:
    """Where f changes sign."""
    from scipy.optimize import brentq

    return float(brentq(f, low, high, xtol=1e-10, rtol=1e-10))
