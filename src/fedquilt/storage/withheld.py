"""Test scores that nobody may choose by: kept apart from everything that is shown while runs are played."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fedquilt.core.plain import JSON, Row
from fedquilt.core.table import ClientId
from fedquilt.storage.folder import RunFolder
from fedquilt.storage.logs import WITHHELD as LOG

Evaluations = Mapping[ClientId, Mapping[str, JSON]]


def is_test(name: str) -> bool:
    """Whether a number of a round was taken on test samples: test_..., global_test_... or common_test_..."""
    return "test" in name.split("_")[:2]


def apart(metrics: Mapping[str, JSON]) -> tuple[Row, Row]:
    """The numbers of a round that may be shown, and those that are withheld, with their round."""
    shown = {name: value for name, value in metrics.items() if not is_test(name)}
    return shown, {"round": metrics["round"], **{n: v for n, v in metrics.items() if is_test(n)}}


def without_tests(evaluations: Evaluations) -> dict[ClientId, Row]:
    """Clients' scores without those on test samples."""
    return {
        client: {model: {k: v for k, v in splits.items() if k != "test"} for model, splits in evaluation.items()}
        for client, evaluation in evaluations.items()
    }


def score_at(folder: Path, round: int, name: str = "test_accuracy") -> float | None:
    """A withheld score of a round, for who has chosen without it; None if there is none."""
    found = next((row for row in RunFolder(folder).rows(LOG) if row.get("round") == round), {})
    return found.get(name)
