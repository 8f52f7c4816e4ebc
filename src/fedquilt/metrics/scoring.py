"""How the models of a method are scored, if nobody says otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedquilt.metrics.classify import ClassifyWith, classify
from fedquilt.metrics.reconstruct import reconstruct
from fedquilt.metrics.table import statistics_in_use


def score_of(method: Any) -> Callable[..., Any]:
    """By class, or by what they make of hidden patches where the method says that its models do not classify."""
    if getattr(method, "reconstructs", False):
        return reconstruct
    own = statistics_in_use()
    return ClassifyWith(tuple(own.items())) if own else classify
