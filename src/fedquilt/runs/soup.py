"""The greedy soup of saved models, scored on a recipe's validation rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedquilt.core.errors import InputError
from fedquilt.core.params import Params
from fedquilt.engines.client_side import one_thread
from fedquilt.metrics.classify import classify
from fedquilt.models.streamed import StoredModel
from fedquilt.pieces.merging.pairs import greedy_soup
from fedquilt.runs.build import federation_of, method_of
from fedquilt.runs.config import load


def greedy(recipe: Path | None, models: Sequence[StoredModel]) -> tuple[list[int], float]:
    """Which models go into the soup, and its accuracy on the server's validation rows, or on all clients' together."""
    if recipe is None:
        raise InputError("A greedy soup is scored on validation rows: give a recipe with --recipe.")
    config = load(recipe)
    federation = federation_of(config)
    common = getattr(federation, "server_valid", None)
    held = (federation.exam(c, "valid", 0) for c in federation.examined)
    tables = [common] if common is not None else [t for t in held if t is not None]
    if not tables:
        raise InputError(
            f"The recipe '{recipe}' has no validation rows; set data.valid = 0.1 or data.common_valid = 0.1, say."
        )
    method = method_of(config, federation)
    net = method.net  # type: ignore[attr-defined]
    lacking = [n for n in net.names if n not in models[0]]
    if lacking:
        raise InputError(f"The models are not those of '{recipe}': its network has {', '.join(lacking[:3])}.")

    def score(params: Params) -> float:
        scores = [classify(method.predict, params, table) for table in tables]
        return float(sum(s.accuracy * s.rows for s in scores) / sum(s.rows for s in scores))

    with one_thread():
        _, chosen, best = greedy_soup([net.taken(m) for m in models], score)
    return chosen, best
