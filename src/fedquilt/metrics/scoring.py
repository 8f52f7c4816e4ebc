"""How the models of a method are scored, if nobody says otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedquilt.metrics.classify import ClassifyWith, classify
from fedquilt.metrics.reconstruct import reconstruct
from fedquilt.metrics.table import statistics_in_use


def score_of(method: Any) -> Callable[..., Any]:
    """By the task of its network (by class, if it has none), or by what models make of hidden patches where the method
    says that they do not classify."""
    if getattr(method, "reconstructs", False):
        return reconstruct
    task = getattr(getattr(method, "net", None), "task", None)
    if task is not None:
        found: Callable[..., Any] = task.score()
        return found
    own = statistics_in_use()
    return ClassifyWith(tuple(own.items())) if own else classify
