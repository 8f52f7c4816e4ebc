"""Metrics of predicted numbers, from sums over rows: exact for a client, and for all clients' rows together."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedquilt.metrics.support import Array
from fedquilt.metrics.table import Counts, Metric

KIND = "regression"
_ROWS = 4  # sums over rows of their mean absolute error a and mean squared error s: a, a^2, s, s^2


def sums(answers: Tensor, targets: Tensor, centre: Tensor) -> Tensor:
    """Of rows [rows, d]: sums of a, a^2, s, s^2 (see above), then for each of d targets those of y - c, (y - c)^2 and
    the squared error. The centre c, the same for all clients, keeps the digits of large targets."""
    y, error = (t.double().reshape(len(t), -1) for t in (targets - centre, answers - targets))
    absolute, squared = error.abs().mean(1), error.square().mean(1)
    rows = torch.stack([absolute.sum(), absolute.square().sum(), squared.sum(), squared.square().sum()])
    return torch.cat([rows, y.sum(0), y.square().sum(0), error.square().sum(0)])


def _row(counts: Counts, place: int) -> Array:
    """The mean over rows of one of the first four."""
    found: Array = counts.sums[KIND][:, place] / counts.rows
    return found


def _of_mean(counts: Counts, place: int) -> Array:
    """The variance of such a mean, from the next sum, that of squares; none for a single row."""
    n = counts.rows
    spread = np.maximum(_row(counts, place + 1) - _row(counts, place) ** 2, 0) / np.maximum(n - 1, 1)
    return np.ma.masked_array(spread, n < 2)


def _r2(counts: Counts) -> Array:
    """Mean over targets of 1 - sum of squared errors / sum of squared distances from their mean; none where targets do
    not vary."""
    held = counts.sums[KIND][:, _ROWS:]
    first, square, error = np.split(held, 3, axis=1)
    around = square - first**2 / counts.rows[:, None]
    flat = around <= 1e-12 * np.maximum(square, 1e-300)
    found = (1 - error / np.where(flat, 1, around)).mean(1)
    return np.ma.masked_array(found, flat.any(1))


def _rmse(counts: Counts) -> Array:
    return np.sqrt(_row(counts, 2))


def _rmse_variance(counts: Counts) -> Array:
    """By the delta method: that of the mean square over 4 times the mean square."""
    found: Array = _of_mean(counts, 2) / np.maximum(4 * _row(counts, 2), 1e-300)
    return found


MAE = Metric(
    id="mae",
    name="MAE",
    of=lambda c: _row(c, 0),
    help="mean absolute error over rows (and targets), in the units of targets",
    higher_is_better=False,
    share=False,
    kinds=(KIND,),
    summaries=("pooled", "std", "worst10", "common"),
    variance=lambda c: _of_mean(c, 0),
)
MSE = Metric(
    id="mse",
    name="MSE",
    of=lambda c: _row(c, 2),
    help="mean squared error over rows (and targets)",
    higher_is_better=False,
    share=False,
    kinds=(KIND,),
    summaries=("pooled", "std", "worst10", "common"),
    variance=lambda c: _of_mean(c, 2),
    minor=True,
)
RMSE = Metric(
    id="rmse",
    name="RMSE",
    of=_rmse,
    help="root of the mean squared error of a client, in the units of targets; pooled: that of all rows together",
    higher_is_better=False,
    share=False,
    kinds=(KIND,),
    summaries=("pooled", "std", "worst10", "common"),
    variance=_rmse_variance,
    pooled=_rmse,
)
R2 = Metric(
    id="r2",
    name="R2",
    of=_r2,
    help="1 - squared errors / squared distances of the client's targets from their mean; pooled: of all rows together",
    share=False,
    kinds=(KIND,),
    summaries=("pooled", "std", "worst10", "common"),
    pooled=_r2,
)
METRICS = (MAE, RMSE, MSE, R2)
