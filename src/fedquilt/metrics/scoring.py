"""How the models of a method are scored, if nobody says otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedquilt.metrics.classify import classify
from fedquilt.metrics.reconstruct import reconstruct


def score_of(method: Any) -> Callable[..., Any]:
    """By class, or by what they make of hidden patches where the method says that its models do not classify."""
    return reconstruct if getattr(method, "reconstructs", False) else classify
