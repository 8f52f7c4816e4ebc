"""Clipping and noise on what clients show of themselves to be clustered."""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass

import torch
from torch import Tensor

from fedquilt.core.seed import Seed
from fedquilt.errors import InputError
from fedquilt.pieces.clustering.result import unit


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
