"""Fixed classifiers: class vectors that stand as far apart as can be, dense or with most entries zero.

Rows are classes. Reference: Xiao et al., FedLoGe: Joint Local and Generic Federated Learning under Long-tailed Data,
2024, section on the static sparse equiangular tight frame classifier (SSE-C).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

from fedquilt.core.seed import Seed
from fedquilt.errors import InputError

LEAST = 2  # entries that every class keeps
CLOSE = 1e-6  # how far a cosine may be from the ideal one


def simplex(classes: int, basis: Tensor | None = None) -> Tensor:
    """The simplex ETF sqrt(C / (C-1)) (I - 11'/C) P': unit rows whose cosines are all -1 / (C-1) and whose sum is 0.

    Args:
        classes: C, at least 2.
        basis: P, [features, C] with orthonormal columns; the first C unit vectors if None.
    """
    if classes < 2:
        raise InputError(f"A simplex needs at least 2 classes, got {classes}.")
    centred = torch.eye(classes, dtype=None if basis is None else basis.dtype) - 1 / classes
    return math.sqrt(classes / (classes - 1)) * (centred if basis is None else centred @ basis.T)


@dataclass(frozen=True)
class Frame:
    """Settings of a sparse equiangular classifier, from which every side builds the same one: it never travels.

    Args:
        classes, features: C and d; C <= d, unless ``narrow`` says otherwise.
        sparsity: Share of zeros, from 0 to 0.9; int(sparsity d C) of them over the whole matrix, drawn by the seed so
            that every class keeps 2 entries at least.
        norm: Length of every class vector (gamma), above 0.
        per_class: int(sparsity d) zeros in every class instead.
        by: How the remaining entries are found: "projection" (fast), or "descent", the published Adam.
        steps, lr: Of the descent. 10,000 at 1e-4 is published; 2,000 at 1e-3 do for up to 64 features.
        narrow: What to do with C > d: "refuse", or "spread" (as far apart as descent gets them).
        seed: For the frame and for the places of the zeros.
    """

    classes: int
    features: int
    sparsity: float = 0.6
    norm: float = 0.1
    per_class: bool = False
    by: Literal["projection", "descent"] = "projection"
    steps: int = 10_000
    lr: float = 1e-4
    narrow: Literal["refuse", "spread"] = "refuse"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.classes < 2 or self.features < LEAST:
            raise InputError(f"A frame needs 2 classes and 2 features at least, got {self.classes}, {self.features}.")
        if not 0 <= self.sparsity <= 0.9:
            raise InputError(f"sparsity must be in [0, 0.9], got {self.sparsity}.")
        if not (self.norm > 0 and math.isfinite(self.norm)):
            raise InputError(f"The norm of a frame's vectors must be above 0, got {self.norm}.")
        if self.steps < 0 or not 0 < self.lr < math.inf:
            raise InputError(f"steps must be 0 or more and lr above 0, got {self.steps} and {self.lr}.")
        self._check_width()

    def _check_width(self) -> None:
        if self.features - int(self.sparsity * self.features) < LEAST:
            raise InputError(
                f"sparsity {self.sparsity} of {self.features} features leaves a class fewer than {LEAST} entries. "
                "Lower it, or use a network with more features."
            )
        if self.features < self.classes and self.narrow == "refuse":
            raise InputError(
                f"Equal angles between {self.classes} classes need as many features, and there are {self.features}. "
                "Use a network with more, or narrow = 'spread' for vectors that are only far apart."
            )

    def build(self) -> Tensor:
        """The class vectors, [classes, features]."""
        return _built(self).clone()


@lru_cache(maxsize=8)
def _built(frame: Frame) -> Tensor:
    seed, wide = Seed(frame.seed).fold("frame"), frame.features >= frame.classes
    drawn = torch.from_numpy(seed.fold("basis").numpy().standard_normal((frame.features, frame.classes)))
    start = simplex(frame.classes, _orthonormal(drawn)) if wide else torch.nn.functional.normalize(drawn.T)
    kept = survivors(frame)
    if wide and frame.by == "projection":
        found = start if frame.sparsity == 0 else projected(start * kept, kept)
        found = found * (frame.norm / found.norm(dim=1, keepdim=True))
    else:
        found = descended(start * kept, kept, frame.norm, frame.steps, frame.lr)
    tiny = torch.full_like(found, 1e-12)  # an entry that descent brings to nothing is still no zero of the pattern
    return torch.where((kept > 0) & (found.abs() < tiny), tiny, found).float()


def _orthonormal(drawn: Tensor) -> Tensor:
    """The Q of QR with a positive diagonal of R: the only one, whatever library computes it."""
    q, r = torch.linalg.qr(drawn)
    unique: Tensor = q * torch.sign(torch.diagonal(r))
    return unique


def survivors(frame: Frame) -> Tensor:
    """1 where an entry may differ from zero, else 0: [classes, features]."""
    classes, features = frame.classes, frame.features
    draw = Seed(frame.seed).fold("frame", "zeros").numpy()
    for _ in range(1000):
        if frame.per_class:
            ranks = draw.random((classes, features)).argsort(1).argsort(1)
            return torch.from_numpy((ranks >= int(frame.sparsity * features)).astype(float))
        flat = torch.ones(classes * features, dtype=torch.float64)
        zeros = draw.choice(len(flat), int(frame.sparsity * len(flat)), replace=False)
        flat[torch.from_numpy(zeros)] = 0
        kept = flat.view(classes, features)
        if int(kept.sum(1).min()) >= LEAST:
            return kept
    raise InputError(
        f"With sparsity {frame.sparsity} and {features} features some class always keeps fewer than {LEAST} entries. "
        "Use per_class = true, or lower it."
    )


def projected(start: Tensor, kept: Tensor, most: int = 2000) -> Tensor:
    """Alternate between the nearest exact simplex and the nearest matrix with these zeros, until cosines are ideal.

    The nearest matrix to W with Gram matrix R R is R polar(R W), where R is the square root of the simplex's Gram
    matrix. Where both cannot be had at once (few features, many zeros) it ends when it gets no better.
    """
    classes = len(start)
    root = simplex(classes).to(start.dtype)
    ideal, found, best, stale = root @ root, start, math.inf, 0
    for step in range(most):
        turned = root @ found
        values, vectors = torch.linalg.eigh(turned @ turned.T)  # rank C - 1: the smallest is 0
        inverse = torch.where(values > 1e-9 * values[-1], values.clamp(min=1e-300).rsqrt(), 0.0)
        found = root @ ((vectors * inverse) @ vectors.T @ turned) * kept
        if step % 5 == 4:
            unit = torch.nn.functional.normalize(found)
            off = float((unit @ unit.T - ideal).abs().max())
            stale = 0 if off < 0.99 * best else stale + 1
            best = min(best, off)
            if off < CLOSE or stale == 20:
                break
    return found


def descended(start: Tensor, kept: Tensor, norm: float, steps: int, lr: float) -> Tensor:
    """Adam on sum_c (|w_c| - norm)^2 - mean_c arccos(clamp(max_j cos(w_c, w_j))), over the surviving entries only."""
    found, diagonal = start.clone().requires_grad_(), torch.eye(len(start), dtype=start.dtype) * 2
    rule = torch.optim.Adam([found], lr=lr)
    for _ in range(steps):
        with torch.enable_grad():
            lengths = found.norm(dim=1, keepdim=True)
            unit = found / lengths
            nearest = (unit @ unit.T - diagonal).amax(1).clamp(-0.99999, 0.99999)
            loss = (lengths - norm).square().sum() - nearest.arccos().mean()
            (gradient,) = torch.autograd.grad(loss, found)
        found.grad = gradient * kept
        rule.step()
    return found.detach()


@dataclass(frozen=True)
class Spread:
    """How far apart class vectors are: the mean angle of pairs and that to the nearest other one (degrees), the largest
    cosine, the extreme lengths, and the number of zeros."""

    angle: float
    nearest: float
    cosine: float
    shortest: float
    longest: float
    zeros: int


def spread(vectors: Tensor) -> Spread:
    """The measures of a frame."""
    w = vectors.double()
    unit, self_pairs = torch.nn.functional.normalize(w), torch.eye(len(w), dtype=torch.bool)
    cosines = unit @ unit.T
    nearest = cosines.masked_fill(self_pairs, -1.0).amax(1)
    angle, near = (float(torch.rad2deg(c.clamp(-1, 1).arccos()).mean()) for c in (cosines[~self_pairs], nearest))
    lengths = w.norm(dim=1)
    return Spread(angle, near, float(nearest.max()), float(lengths.min()), float(lengths.max()), int((w == 0).sum()))


def ideal_angle(classes: int) -> float:
    """arccos(-1 / (C-1)) in degrees."""
    return math.degrees(math.acos(-1 / (classes - 1)))
