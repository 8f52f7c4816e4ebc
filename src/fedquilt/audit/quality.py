"""How alike two pictures are, in one range of values; and which guess belongs to which picture."""

from __future__ import annotations

import math

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn import functional as F

from fedquilt.errors import InputError

EXACT = 100.0  # decibels at which a reconstruction counts as exact: means stay finite


def psnr(truth: Tensor, guess: Tensor, span: float) -> float:
    """Peak signal-to-noise ratio, 10 log10(span^2 / mse), in dB; ``EXACT`` at most.

    Args:
        truth, guess: Of one shape.
        span: The largest value a pixel can have minus the least, in both.

    Example:
        >>> round(psnr(torch.zeros(4), torch.full((4,), 0.1), 1.0), 6)
        20.0
    """
    _check(truth, guess, span)
    mse = float((truth.double() - guess.double()).square().mean())
    return EXACT if mse == 0 else min(EXACT, 10 * math.log10(span**2 / mse))


def ssim(truth: Tensor, guess: Tensor, span: float, window: int = 7) -> float | None:
    """Structural similarity of two images [channels, height, width]; 1 for equal ones. None for other shapes.

    The mean over channels and places of (2ab + c)(2cov + d) / ((a^2 + b^2 + c)(var_a + var_b + d)) in square windows,
    with c = (0.01 span)^2, d = (0.03 span)^2 and sample covariances; images smaller than the window get a smaller one.

    Reference: Wang et al., Image Quality Assessment: From Error Visibility to Structural Similarity, 2004.
    """
    _check(truth, guess, span)
    if truth.dim() != 3 or min(truth.shape[1:]) < 3:
        return None
    side = min(window, *truth.shape[1:])
    side -= 1 - side % 2

    def mean(x: Tensor) -> Tensor:
        return F.avg_pool2d(x[None], side, 1)[0]

    a, b = truth.double(), guess.double()
    unbiased = side**2 / (side**2 - 1)
    mean_a, mean_b = mean(a), mean(b)
    var_a, var_b = unbiased * (mean(a * a) - mean_a**2), unbiased * (mean(b * b) - mean_b**2)
    both = unbiased * (mean(a * b) - mean_a * mean_b)
    c, d = (0.01 * span) ** 2, (0.03 * span) ** 2
    likeness = (2 * mean_a * mean_b + c) * (2 * both + d)
    return float((likeness / ((mean_a**2 + mean_b**2 + c) * (var_a + var_b + d))).mean())


def paired(truths: Tensor, guesses: Tensor) -> Tensor:
    """For each guess the number of its truth, all different, so that the sum of squared errors is least.

    Needs at least as many truths as guesses.
    """
    if len(guesses) > len(truths):
        raise InputError(f"{len(guesses)} guesses cannot be paired with {len(truths)} truths.")
    errors = torch.cdist(guesses.flatten(1).double(), truths.flatten(1).double()).square()
    return torch.as_tensor(linear_sum_assignment(errors.numpy())[1])


def _check(truth: Tensor, guess: Tensor, span: float) -> None:
    if truth.shape != guess.shape:
        raise InputError(f"The pictures differ in shape: {tuple(truth.shape)} and {tuple(guess.shape)}.")
    if not span > 0:
        raise InputError(f"The span of the values must be positive, got {span}.")
