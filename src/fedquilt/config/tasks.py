"""The task of a recipe: what targets are, what a model makes of a row, and by what it is judged."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from fedquilt.config.options import check_options, piece
from fedquilt.config.settings import Kinded, named
from fedquilt.core.plain import JSON
from fedquilt.errors import InputError
from fedquilt.registry import lookup

if TYPE_CHECKING:
    from fedquilt.tasks import Task


def task_of(choice: Kinded | None) -> Task | None:
    """The task of a choice; None for one class label for each row, which is taken for granted everywhere."""
    if choice is None or (choice.kind == "single_label" and not choice.options):
        return None
    from fedquilt.tasks import Task

    given, problems = check_options("task", choice.kind, choice.options, "task")
    if problems:
        raise InputError(problems[0])
    found = piece("task", lookup("task", choice.kind), given)
    if not isinstance(found, Task):
        raise InputError(f"task: {choice.kind} gave a {type(found).__name__}, which is no fedquilt.tasks.Task.")
    return found


def use_task_of(settings: Mapping[str, JSON]) -> list[str]:
    """From here on the metrics are those of the task of these settings; what is wrong with it."""
    asked = settings.get("task")
    try:
        found = None if asked is None else task_of(Kinded.model_validate(named(asked)))
    except (InputError, ValueError) as error:
        return [f"task: {error}"] if isinstance(error, InputError) else []
    if asked is not None or "fedquilt.metrics.table" in sys.modules:  # light commands do without
        from fedquilt.metrics.table import use_task

        use_task(found)
    return []
