"""What was learned, kept and forgotten over a sequence of tasks, from a matrix of scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedquilt.core.errors import InputError

Row = Sequence[float | None]


@dataclass(frozen=True)
class Continual:
    """Numbers of a matrix A[t, i], the score on task i after task t, for T tasks (None: cannot be said).

    Args:
        average: mean_i A[T, i].
        forgetting: mean over i < T of max_{t < T} A[t, i] - A[T, i]: how far each task is below its best.
        backward: mean over i < T of A[T, i] - A[i, i], backward transfer.
        forward: mean over i > 1 of A[i - 1, i] - b_i, forward transfer; b scores the model before any task.
        incremental: mean over t of the average over the tasks met so far, mean_{i <= t} A[t, i].
    """

    average: float
    forgetting: float | None
    backward: float | None
    forward: float | None
    incremental: float


def continual(matrix: Sequence[Row], before: Row | None = None) -> Continual:
    """The numbers of a T x T matrix; scores of tasks not yet met may be missing (None or nan).

    Args:
        matrix: Row t holds the scores after task t.
        before: The scores b of the model before the first task, for forward transfer.
    """
    a = _square(matrix)
    tasks = len(a)
    old, start = range(tasks - 1), None if before is None else _line(before, tasks)
    ahead = None
    if start is not None and tasks > 1:
        gains = [a[i - 1, i] - start[i] for i in range(1, tasks)]
        ahead = None if any(map(math.isnan, gains)) else float(np.mean(gains))
    return Continual(
        average=float(a[-1].mean()),
        forgetting=float(np.mean([np.nanmax(a[:-1, i]) - a[-1, i] for i in old])) if old else None,
        backward=float(np.mean([a[-1, i] - a[i, i] for i in old])) if old else None,
        forward=ahead,
        incremental=float(np.mean([a[t, : t + 1].mean() for t in range(tasks)])),
    )


def _square(matrix: Sequence[Row]) -> np.ndarray:
    rows = [_line(row, len(matrix)) for row in matrix]
    if not rows:
        raise InputError("Without a task there is nothing to remember or to forget: the matrix is empty.")
    a = np.stack(rows)
    if bool(np.isnan(a[np.tril_indices(len(a))]).any()):
        raise InputError("The score of a task that was already met is missing from the matrix.")
    return a


def _line(row: Row, tasks: int) -> np.ndarray:
    if len(row) != tasks:
        raise InputError(f"Every row needs a score for each of the {tasks} tasks, got one with {len(row)}.")
    return np.array([math.nan if v is None else v for v in row], dtype=np.float64)
