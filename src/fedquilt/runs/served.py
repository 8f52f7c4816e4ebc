"""Global models that can be used in several modes: the scores of all, and which one a run serves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedquilt.core.deployed import mode_scores
from fedquilt.core.table import ClientId, Table
from fedquilt.engines.client_side import Score

Exams = dict[ClientId, dict[str, Any]]


def served(method: Any, state: Any) -> str | None:
    """The mode that the method serves now; None for a method without modes."""
    return str(method.served(state)) if mode_scores(method) else None


def common_modes(method: Any, state: Any, name: str, score: Score, table: Table) -> dict[str, float]:
    """The accuracies of all modes on a table of the server's, as ``NAME_accuracy_MODE``."""
    modes = method.modes(state) if mode_scores(method) else {}
    scores = {mode: score(method.predict, model, table) for mode, model in modes.items()}
    return {f"{name}_accuracy_{mode}": s.accuracy for mode, s in scores.items() if hasattr(s, "accuracy")}


def reread(method: Any, mode: str, exams: Exams, numbers: Callable[[Exams], dict[str, Any]]) -> tuple[Exams, Any]:
    """Scores and numbers where the global model is in this mode: what was served until now may be another."""
    name = mode_scores(method)[mode]
    now = {client: {**exam, "global": exam[name]} if name in exam else exam for client, exam in exams.items()}
    return now, numbers(now)
