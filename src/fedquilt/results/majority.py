"""Has a run learned anything? Its accuracy beside that of constant answers, and what chance alone could do."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedquilt.core.plain import JSON, Array, Row
from fedquilt.metrics.table import main, task, trivial

_Z = 1.959963984540054  # of a 95 % interval
_NAMES = ("majority_class", "majority_half_95", "common_class", "common_half_95", "test_rows")
_COMMON = ("majority_common", "majority_common_half_95", "majority_common_rows")


def majority_facts(federation: Any) -> Row:
    """How well answers do that need no model, means over clients, each with half of its 95 % interval; and on how many
    test samples they rest.

    ``majority_class``: always a client's most frequent training label, the least that a personal model must beat.
    ``common_class``: always the most frequent label of all clients' training samples, which a network that learned
    nothing ends with. With n_k test samples and the share m_k of them right, client k's share varies by m_k (1 - m_k) /
    n_k, and the mean over K clients by the sum of these over K^2. ``majority_common`` is the latter on the common test
    set.
    """
    nothing: Row = dict.fromkeys((*_NAMES, *_COMMON))
    find = getattr(federation, "majority", None)
    if find is None or getattr(federation, "classes", None) is None:
        return nothing
    found, wide = find(), federation.global_test
    if getattr(federation, "task", None) is not None:
        return nothing | _of_task(federation, found)
    if wide is not None:
        share, half = _span(np.array([found.global_test]), np.array([len(wide)]))
        nothing |= dict(zip(_COMMON, (share, half, len(wide)), strict=True))
    own = np.asarray(found.clients)
    if np.isnan(own).all():
        return nothing
    tasks = getattr(federation, "tasks", (federation,))
    tests, trained = (sum(task.label_counts(split) for task in tasks) for split in ("test", "train"))
    rows = np.asarray(tests).sum(1)
    common = np.asarray(tests)[:, int(np.asarray(trained).sum(0).argmax())] / np.maximum(rows, 1)
    there = ~np.isnan(own) & (rows > 0)
    spans = (_span(shares[there], rows[there]) for shares in (own, common))
    told = (*(number for span in spans for number in span), int(rows[there].sum()))
    return nothing | dict(zip(_NAMES, told, strict=True))


def _of_task(federation: Any, found: Any) -> Row:
    """The same for another task: its main metric for the answer that needs no input, without intervals."""
    own, rows = np.asarray(found.clients), federation.test.counts()
    there = ~np.isnan(own)
    told: Row = {"majority_common": found.global_test}
    if not there.any():
        return told
    scored = {"majority_class": float(own[there].mean()), "test_rows": int(rows[there].sum())}
    return told | scored


def _span(shares: Array, rows: Array) -> tuple[float, float]:
    variance = float((shares * (1 - shares) / rows).sum()) / len(rows) ** 2
    return float(shares.mean()), _Z * math.sqrt(variance)


def at_majority(results: Sequence[Mapping[str, JSON]]) -> str | None:
    """A sentence if the mean accuracy of these runs is not above a constant answer by more than chance; else None.

    Where clients have no test samples, the accuracy is that on the common test set. Of another task the numbers are
    its main metric, without intervals.
    """
    if task() is not None:
        return _no_use(results)
    tested = any("test_accuracy" in (r.get("best") or {}) for r in results)
    name, facts = ("test_accuracy", _NAMES) if tested else ("common_test_accuracy", _COMMON)
    accuracy = _mean_accuracy(results, name, "common_class" if tested else "majority_common")
    if accuracy is None:
        return None
    told = [results[0][n] for n in facts]
    if not tested:
        return _learned_nothing("accuracy on the common test set", accuracy, *told)
    own, own_half, common, common_half, rows = told
    said = _learned_nothing("test accuracy", accuracy, common, common_half, rows)
    return said or _no_better(accuracy, own, own_half, rows)


def _no_use(results: Sequence[Mapping[str, JSON]]) -> str | None:
    """A sentence if the mean score is no better than that of the answer that needs no input."""
    first = main()
    tested = any(f"test_{first.id}" in (r.get("best") or {}) for r in results)
    name, fact = (f"test_{first.id}", _NAMES[0]) if tested else (f"common_test_{first.id}", _COMMON[0])
    reached, least = _mean_accuracy(results, name, fact), results[0].get(fact) if results else None
    if reached is None or least is None or first.better(reached, least):
        return None
    where = "test" if tested else "common test set:"
    return (
        f"{where} {first.name} {first.in_words(reached)} is no better than that of the {trivial()}, "
        f"{first.in_words(least)}; look at the scale of the inputs, the learning rate and the number of rounds."
    )


def _mean_accuracy(results: Sequence[Mapping[str, JSON]], name: str, fact: str) -> float | None:
    """The mean over runs at their chosen rounds; None unless every run tells of it and of the majority class."""
    known: list[JSON] = [(r.get("best") or {}).get(name) for r in results if r.get(fact) is not None]
    return float(np.mean(known)) if known and len(known) == len(results) and None not in known else None


def _no_better(accuracy: float, own: float, half: float, rows: int) -> str | None:
    """A sentence if this accuracy is not above that of each client's own commonest label by more than chance."""
    if not (accuracy <= own + half and own < 1):
        return None
    return (
        f"{_beside('test accuracy', accuracy, own)}predicting each client's majority class gives "
        f"{_range(own, half)} on {rows:,} test samples."
    )


def _learned_nothing(what: str, accuracy: float, common: float, half: float, rows: int) -> str | None:
    """A sentence if this accuracy is not above that of the commonest label of all by more than chance."""
    if accuracy > common + half or common == 1:
        return None
    return (
        f"{_beside(what, accuracy, common)}predicting the majority class of all, whatever the input, gives "
        f"{_range(common, half)} on {rows:,} test samples. The run "
        f"{'may have' if accuracy > common else 'has probably'} learned nothing; look at the scale of the inputs, "
        "the learning rate and the number of rounds."
    )


def _beside(what: str, accuracy: float, share: float) -> str:
    """Higher, but within chance, is no lie: it is not *clearly* above."""
    how = "not clearly above" if accuracy > share else "not above"
    return f"{what} {100 * accuracy:.1f} % is {how} the majority class: "


def _range(share: float, half: float) -> str:
    low, high = max(share - half, 0.0), min(share + half, 1.0)
    return f"{100 * share:.1f} % (95 % interval: {100 * low:.1f} to {100 * high:.1f})"
