"""Neural collapse: how close features are to one point per class, and those points to equal angles and lengths."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fedquilt.errors import InputError


@dataclass(frozen=True)
class Collapse:
    """The measures. Classes without rows are NaN in the lists and left out of the numbers.

    Args:
        within: trace(S_W) / trace(S_B), S_W and S_B the covariances within and between classes; 0 is collapse.
        within_pinv: trace(S_W S_B^+) / C, the form of Papyan et al. 2020 (NC1).
        angle, angle_std: Mean and deviation over pairs of classes of the angle between centred means, in degrees.
        ideal: arccos(-1 / (C-1)), the angle under collapse.
        norm_spread: Deviation / mean of the lengths of the centred means; 0 under collapse.
        norms: Length of each class's mean of features, as it is.
        to_frame: Angle of each class's centred mean with its vector of a fixed frame, in degrees; None without a frame.
    """

    within: float
    within_pinv: float
    angle: float
    angle_std: float
    ideal: float
    norm_spread: float
    norms: tuple[float, ...]
    to_frame: tuple[float, ...] | None


def collapse(features: Tensor, labels: Tensor, classes: int, frame: Tensor | None = None) -> Collapse:
    """Measure features, [rows, d].

    Reference: Papyan, Han, Donoho, Prevalence of Neural Collapse during the Terminal Phase of Deep Learning Training,
    2020.
    """
    f, counts = features.double().flatten(1), torch.bincount(labels, minlength=classes)
    here = counts > 0
    if int(here.sum()) < 2:
        raise InputError("Neural collapse is about several classes; there are rows of one class at most.")
    sums = torch.zeros(classes, f.shape[1], dtype=f.dtype).index_add(0, labels, f)
    means = sums / counts.clamp(min=1)[:, None]
    centred = (means - means[here].mean(0))[here]
    rest = f - means[labels]
    inner = rest.T @ rest / len(f)
    outer = centred.T @ centred / len(centred)
    unit = F.normalize(centred)
    pairs = torch.rad2deg((unit @ unit.T).clamp(-1, 1).arccos())[~torch.eye(len(unit), dtype=torch.bool)]
    lengths, nan = centred.norm(dim=1), torch.full((classes,), math.nan, dtype=f.dtype)
    norms, far = nan.clone(), None
    norms[here] = means[here].norm(dim=1)
    if frame is not None:
        cosines = (unit * F.normalize(frame.double()[here])).sum(1)
        nan[here] = torch.rad2deg(cosines.clamp(-1, 1).arccos())
        far = tuple(nan.tolist())
    pinv = torch.linalg.pinv(outer, hermitian=True, rtol=1e-9)
    return Collapse(
        float(inner.trace() / outer.trace().clamp(min=1e-300)),
        float((inner @ pinv).trace()) / len(centred),
        float(pairs.mean()),
        float(pairs.std(correction=0)),
        math.degrees(math.acos(-1 / (len(centred) - 1))),
        float(lengths.std(correction=0) / lengths.mean().clamp(min=1e-300)),
        tuple(norms.tolist()),
        far,
    )
