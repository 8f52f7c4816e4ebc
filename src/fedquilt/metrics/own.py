"""Metrics of plain functions: one number of the scores and labels of all of a client's samples."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from fedquilt.errors import InputError
from fedquilt.metrics.support import Array
from fedquilt.metrics.table import Counts, Metric


class OfRows:
    """A statistic that must see a client's samples together, not block by block. For no rows it gives zeros too."""

    def __call__(self, scores: Tensor, labels: Tensor) -> Tensor:
        """A tensor that adds up over clients."""
        raise NotImplementedError


@dataclass(frozen=True)
class OfTable(OfRows):
    """A statistic of a client's samples taken together: the number that a function makes of the scores and labels of
    all of them, and that it is one. Without a number (NaN), the client has none."""

    function: Callable[[Tensor, Tensor], Any]

    def __call__(self, scores: Tensor, labels: Tensor) -> Tensor:
        """(the number, 1), or zeros; also for no rows."""
        value = float(self.function(scores, labels)) if len(labels) else math.nan
        return scores.new_tensor([0.0, 0.0] if math.isnan(value) else [value, 1.0])


@dataclass(frozen=True)
class _MeanOf:
    """Of what :class:`OfTable` made: each client's number."""

    id: str

    def __call__(self, counts: Counts) -> Array:
        total, count = np.asarray(counts.sums[self.id], np.float64).T
        return np.ma.masked_array(total / np.maximum(count, 1), count == 0)


def metric_of(given: object) -> Metric:
    """What a script gives as a metric: one that is ready, or a function, which is called by its own name."""
    if isinstance(given, Metric):
        return given
    name = getattr(given, "__name__", "")
    if isinstance(given, type) or not callable(given) or not name.isidentifier():
        raise InputError(
            "a metric should be a function with a name, such as def auroc(scores, labels), or a "
            f"fedquilt.metrics.table.Metric, got {given!r}"
        )
    return of_function(name.lower(), given)


def of_function(id: str, function: Callable[[Tensor, Tensor], Any], **how: Any) -> Metric:
    """The metric of a plain function: a number of the scores [rows, classes] and labels [rows] of a client."""
    given = {"name": id.replace("_", " "), "share": False, "kinds": (), **how}
    return Metric(id=id, of=_MeanOf(id), statistic=OfTable(function), **given)
