"""The attacks by name: each takes what was seen of a client, and scored against the client's samples:
how alike pictures are, and which guess belongs to which of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn import functional as F

from fedquilt.audit.inversion import BIAS, Guess, Puzzle, features_of, invert, label_of, present_classes
from fedquilt.audit.sight import Sight, View, filled
from fedquilt.core.net import Net
from fedquilt.core.seed import Seed
from fedquilt.core.table import Batch
from fedquilt.errors import InputError

Numbers = dict[str, float | None]
Found = tuple[Numbers, tuple[Tensor, Tensor] | None, str]
MOST = 8  # inputs that a search looks for at once


@dataclass(frozen=True)
class AttackScene:
    """What every attacker knows: the network, the range of the values, a usual input, the batch size, its patience."""

    net: Net
    low: float
    high: float
    usual: Tensor
    iterations: int
    restarts: int
    batch_size: int


def dlg(scene: AttackScene, seen: Sight, truth: Batch, seed: Seed) -> Found:
    """Inputs and soft labels together; of several views, the one that is explained best."""
    views = [view for view in (seen.server, seen.body) if view is not None]
    seeds = (seed, seed.fold("body"))
    found = [_inverted(scene, seen, view, truth, here, given=False) for view, here in zip(views, seeds, strict=False)]
    return min(found, key=lambda one: math.inf if one[0].get("mismatch") is None else one[0]["mismatch"] or 0.0)


def idlg(scene: AttackScene, seen: Sight, truth: Batch, seed: Seed) -> Found:
    """Labels from the head's gradient first, then inputs."""
    return _inverted(scene, seen, seen.server, truth, seed, given=True)


def peer(scene: AttackScene, seen: Sight, truth: Batch, seed: Seed) -> Found:
    """Inputs, by another client that is sent this one's head gradient."""
    if seen.peer is None:
        return {}, None, "nothing that a single client sent reaches other clients"
    return _inverted(scene, seen, seen.peer, truth, seed, given=False)


def _inverted(scene: AttackScene, seen: Sight, view: View, truth: Batch, seed: Seed, given: bool) -> Found:
    if lacking := _lacking(seen, view):
        return {}, None, lacking
    model, head_known = filled(scene.net, view.model, seed.fold("own"))
    count = min(seen.samples, scene.batch_size, MOST)
    labels = label_of(view.gradient, count) if given else None
    if given and (labels is None or not head_known):
        return {}, None, "the head was not sent, so that there is no label to begin with"
    puzzle = Puzzle(scene.net, model, view.gradient, tuple(truth.x.shape[1:]), scene.low, scene.high, head_known)
    return _scored(scene, invert(puzzle, count, seed, labels, scene.iterations, scene.restarts), truth)


def _lacking(seen: Sight, view: View) -> str:
    """Why this view cannot be inverted, if so."""
    if not view.gradient:
        return "no gradient and no change of weights was sent" + (
            f"; the uploads hold {seen.rest}" if seen.rest else ""
        )
    known = any(n in view.model for n in view.gradient) or all(n.startswith("head.") for n in view.gradient)
    return "" if known else "the model that was trained was not sent"


def _scored(scene: AttackScene, guess: Guess, truth: Batch) -> Found:
    pairs, span = paired(truth.x, guess.x), scene.high - scene.low
    true = truth.x[pairs]
    blind = scene.usual.expand_as(guess.x)
    shown = truth.x[paired(truth.x, blind)]
    numbers: Numbers = {
        "psnr": _mean(psnr(a, b, span) for a, b in zip(true, guess.x, strict=True)),
        "ssim": _mean(ssim(a, b, span) for a, b in zip(true, guess.x, strict=True)),
        "psnr_blind": _mean(psnr(a, b, span) for a, b in zip(shown, blind, strict=True)),
        "mismatch": guess.mismatch,
    }
    if guess.labels is not None:
        numbers["labels_right"] = float((guess.labels == truth.y[pairs]).double().mean())
    return numbers, (true, guess.x), ""


def labels(scene: AttackScene, seen: Sight, truth: Batch, seed: Seed) -> Found:
    """Which classes are in the batch, from the signs of the head's gradient, unless the client sends it anyway."""
    found = present_classes(seen.server.gradient) if seen.classes is None else set(seen.classes)
    if found is None:
        return {}, None, "the head's gradient was not sent"
    there = set(truth.y.tolist())
    right = len(found & there)
    return (
        {
            "classes_precision": right / len(found) if found else None,
            "classes_recall": right / len(there),
            "classes_exact": float(found == there),
        },
        None,
        "",
    )


def features(scene: AttackScene, seen: Sight, truth: Batch, seed: Seed) -> Found:
    """The head's input, from the rows of its gradient; compared with the mean features of the batch."""
    found = features_of(seen.server.gradient)
    if found is None:
        means = "the class means of features are sent as they are"
        return {}, None, "the head's gradient was not sent" if seen.classes is None else means
    model, _ = filled(scene.net, seen.server.model, seed.fold("own"))
    with torch.no_grad():
        true = scene.net.split(model, truth, train=False).features.mean(0)
    error = float((found - true).norm() / true.norm()) if BIAS in seen.server.gradient else None
    return {"feature_cosine": float(F.cosine_similarity(found, true, dim=0)), "feature_error": error}, None, ""


ATTACKS: dict[str, Callable[[AttackScene, Sight, Batch, Seed], Found]] = {
    "dlg": dlg,
    "idlg": idlg,
    "peer": peer,
    "labels": labels,
    "features": features,
}


def check(names: Iterable[str]) -> None:
    """Raise unless these are attacks, and at least one."""
    chosen = tuple(names)
    odd = [name for name in chosen if name not in ATTACKS]
    if odd or not chosen:
        what = f"There is no attack {odd[0]!r}" if odd else "Name at least one attack"
        raise InputError(f"{what}; there are {', '.join(ATTACKS)}.")


def _mean(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None and math.isfinite(v)]
    return sum(known) / len(known) if known else None


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
