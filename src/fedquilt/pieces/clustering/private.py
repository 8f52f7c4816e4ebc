"""What clients show of themselves to be clustered: made short (sketches), clipped and blurred.

A sketch is a seeded random projection that keeps angles and sends d numbers instead of P: S v with S [d, P] of
independent N(0, 1/d). <S u, S v> is <u, v> on average; the error of a cosine is about 1/sqrt(d). S follows from
(seed, P, d) alone, so everybody who knows them makes the same sketch, and it is made in blocks: P x d numbers are never
in memory at once.

Reference: Johnson and Lindenstrauss, Extensions of Lipschitz mappings into a Hilbert space, 1984.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fedquilt.core.seed import Seed
from fedquilt.errors import InputError
from fedquilt.pieces.clustering.result import unit

BLOCK = 4096  # columns of S at a time; part of the definition, since each block has a seed of its own


def blocks(length: int, size: int, seed: Seed) -> Iterator[tuple[slice, Tensor]]:
    """The projection, transposed, block by block: which entries of a vector, and [entries, size] numbers."""
    if size < 1:
        raise InputError(f"A sketch needs at least 1 number, got size {size}.")
    for low in range(0, length, BLOCK):
        high = min(low + BLOCK, length)
        draw = seed.fold("sketch", length, size, low).torch()
        yield slice(low, high), torch.randn(high - low, size, generator=draw) / math.sqrt(size)


def sketch(vector: Tensor, size: int, seed: Seed) -> Tensor:
    """The sketch of a vector [P], or of each row of [n, P]; a vector of at most ``size`` numbers stays as it is."""
    length = vector.shape[-1]
    if length <= size:
        return vector
    total = vector.new_zeros(*vector.shape[:-1], size, dtype=torch.float32)
    for place, part in blocks(length, size, seed):
        total = total + vector[..., place].float() @ part
    return total


@dataclass(frozen=True)
class Blur:
    """v min(1, clip / |v|) + N(0, (noise clip)^2) on each number: the Gaussian mechanism.

    One such vector tells two possible clients apart only as far as :meth:`epsilon` says, whatever their data. Each
    further vector of the same client tells more, and what it sends in training is not covered at all.

    Args:
        clip: The greatest length, > 0.
        noise: Standard deviation of the noise as a multiple of ``clip``, >= 0.
        secret: Draw the noise from the system's randomness: nobody can subtract it, and no run can be repeated. By
            default it follows from the run's seed, so that whoever knows the seed, like the server, can subtract it:
            good for finding out what noise costs, and for nothing else.

    Reference: Balle and Wang, Improving the Gaussian Mechanism for Differential Privacy, 2018, theorem 8.
    """

    clip: float
    noise: float = 0.0
    secret: bool = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.clip) and self.clip > 0 and math.isfinite(self.noise) and self.noise >= 0):
            raise InputError(f"clip must be above 0 and noise >= 0, got {self.clip} and {self.noise}.")

    def __call__(self, vector: Tensor, seed: Seed) -> Tensor:
        """The vector as it may be shown. One that is not finite is shown as zero, with noise."""
        way = unit(vector)
        length = 0.0 if way is None else min(float(vector.detach().double().norm()), self.clip)
        shown = vector.new_zeros(vector.shape) if way is None else (length * way).to(vector.dtype).view_as(vector)
        if self.noise == 0:
            return shown
        draw = (Seed(secrets.randbits(63)) if self.secret else seed.fold("blur")).torch()
        return shown + self.noise * self.clip * torch.randn(vector.shape, generator=draw, dtype=vector.dtype)

    def epsilon(self, delta: float = 1e-5) -> float:
        """The least epsilon for which one vector is (epsilon, delta)-differentially private; infinite without noise.

        Neighbours are any two vectors, which are at most 2 clip apart.
        """
        if self.noise == 0:
            return math.inf
        low, high = 0.0, 1.0
        while _delta(high, 2 / self.noise) > delta:
            low, high = high, 2 * high
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if _delta(middle, 2 / self.noise) > delta else (low, middle)
        return high


def _delta(epsilon: float, ratio: float) -> float:
    """The delta of the Gaussian mechanism; ``ratio`` is sensitivity over standard deviation."""
    from scipy.special import log_ndtr

    first, second = ratio / 2 - epsilon / ratio, -ratio / 2 - epsilon / ratio
    return math.exp(log_ndtr(first)) - math.exp(epsilon + log_ndtr(second))
