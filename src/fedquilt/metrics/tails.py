"""Scores of a classifier under a long tail, kept as counts so that they add up over clients; and neural collapse."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from fedquilt.errors import InputError
from fedquilt.metrics.support import Array, half_of_mean
from fedquilt.metrics.table import ROWS_HALF, Counts, metrics
from fedquilt.records.record import record

BINS = 15  # of confidence
Floats = NDArray[np.float64]


@record(name="fedquilt.metrics.tails:Tally")
class ClassTally:
    """Which labels were called what, [classes, classes] with rows the labels; and per bin of confidence how many rows,
    how many of them right, and the sum of their confidences."""

    calls: Tensor
    bins: Tensor

    @property
    def rows(self) -> int:
        """How many rows."""
        return int(self.calls.sum())

    @property
    def support(self) -> Tensor:
        """Rows of each class."""
        return self.calls.sum(1)

    @property
    def correct(self) -> Tensor:
        """Right ones of each class."""
        return self.calls.diagonal()

    @property
    def called(self) -> Tensor:
        """How many rows are called so, of each class."""
        return self.calls.sum(0)

    def __add__(self, other: ClassTally) -> ClassTally:
        return ClassTally(self.calls + other.calls, self.bins + other.bins)

    # Measures

    @property
    def accuracy(self) -> float:
        """Share of rows that are right."""
        return int(self.correct.sum()) / max(self.rows, 1)

    @property
    def recalls(self) -> Floats:
        """Share of each class that is right; NaN where there is no row."""
        support, right = self.support.double().numpy(), self.correct.double().numpy()
        return np.where(support > 0, right / np.maximum(support, 1), math.nan)

    @property
    def balanced_accuracy(self) -> float:
        """Mean share that is right over the classes present."""
        return float(np.nanmean(self.recalls)) if self.rows else math.nan

    @property
    def _f1(self) -> Floats:
        both = (self.support + self.called).double().numpy()
        f1: Floats = 2 * self.correct.double().numpy() / np.maximum(both, 1)
        return f1

    @property
    def macro_f1(self) -> float:
        """Mean over the classes present or called of 2 right / (rows + calls)."""
        there = (self.support + self.called).numpy() > 0
        return float(self._f1[there].mean()) if there.any() else math.nan

    @property
    def weighted_f1(self) -> float:
        """The same weighted by rows."""
        return float((self._f1 * self.support.double().numpy()).sum() / max(self.rows, 1))

    @property
    def calibration_error(self) -> float:
        """Sum over bins of confidence of |right - confidence| / rows; Guo et al., On Calibration of Modern Neural
        Networks, 2017, eq. (3)."""
        return float((self.bins[1] - self.bins[2]).abs().sum()) / max(self.rows, 1)

    def of(self, classes: Iterable[int]) -> float:
        """Share that is right among the rows of these classes; NaN without any."""
        chosen = torch.tensor(sorted(classes), dtype=torch.int64)
        rows = int(self.support[chosen].sum())
        return int(self.correct[chosen].sum()) / rows if rows else math.nan

    def measures(self) -> dict[str, float]:
        """All that need no groups."""
        names = ("accuracy", "balanced_accuracy", "macro_f1", "weighted_f1", "calibration_error")
        return {name: getattr(self, name) for name in names}


def tally(scores: Tensor, labels: Tensor) -> ClassTally:
    """The counts of some rows; scores may be -inf for classes that cannot be the answer."""
    classes = scores.shape[1]
    confidence, answer = scores.double().softmax(1).max(1)
    calls = torch.bincount(labels * classes + answer, minlength=classes**2).view(classes, classes)
    place = (confidence * BINS).ceil().long().clamp(1, BINS) - 1
    right = (answer == labels).double()
    per_bin = [
        torch.zeros(BINS, dtype=torch.float64).index_add(0, place, v)
        for v in (torch.ones_like(right), right, confidence)
    ]
    return ClassTally(calls, torch.stack(per_bin))


def halves(tallies: Sequence[ClassTally], weights: Mapping[str, Array] | None = None) -> dict[str, float]:
    """Half of the 95 % interval that the number of rows leaves the mean over tallies of each measure that is a metric
    with a variance; ``weights`` of tallies are by measure."""
    support, correct, called = (
        np.stack([getattr(t, name).double().numpy() for t in tallies]) for name in ("support", "correct", "called")
    )
    rows = np.array([t.rows for t in tallies], dtype=np.float64)
    counts = Counts("classification", rows, np.zeros(len(rows)), support, correct, called, {})
    known = [m for m in metrics() if m.variance is not None and hasattr(ClassTally, m.id)]
    return {m.id + ROWS_HALF: half_of_mean(m.variance(counts), (weights or {}).get(m.id)) for m in known if m.variance}


Groups = Mapping[str, Sequence[int]]  # head, middle and tail: which classes


def by_group(found: ClassTally, groups: Groups) -> dict[str, float]:
    """Share of right rows in each group of classes."""
    return {name: found.of(classes) for name, classes in groups.items()}


def over_clients(
    tallies: Sequence[ClassTally], rows: Sequence[int], groupings: Mapping[str, Sequence[Groups]]
) -> dict[str, Any]:
    """Clients' measures as one row.

    Accuracy, balanced accuracy and calibration error are means over clients, F1 scores means weighted by their training
    ``rows``; ``worst`` is the least accuracy; each of ``groupings`` gives means over the clients that have the group.
    """
    each = [t.measures() for t in tallies]
    weights = np.asarray(rows, dtype=np.float64)
    found: dict[str, Any] = {}
    for name in each[0]:
        values = np.array([m[name] for m in each])
        found[name] = float((values * weights).sum() / weights.sum() if name.endswith("f1") else values.mean())
    found |= halves(tallies, {name: weights for name in each[0] if name.endswith("f1")})
    found["worst"] = min(m["accuracy"] for m in each)
    return found | {kind: _group_means(tallies, own) for kind, own in groupings.items()}


def _group_means(tallies: Sequence[ClassTally], own: Sequence[Groups]) -> dict[str, float]:
    parts = [by_group(t, groups) for t, groups in zip(tallies, own, strict=True)]
    return {name: _mean([p[name] for p in parts]) for name in parts[0]}


def _mean(values: Sequence[float]) -> float:
    known = [v for v in values if not math.isnan(v)]
    return sum(known) / len(known) if known else math.nan


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
