"""Progress below the cell of a notebook: one output, which is updated in place. IPython is used where it is running."""

from __future__ import annotations

import sys
from collections.abc import Callable
from html import escape
from itertools import count
from typing import Any

MOST = 20  # lines above the bars


def display_here() -> Callable[..., Any] | None:
    """IPython's ``display`` inside a notebook; None elsewhere, also in IPython's terminal."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is None or not hasattr(shell, "kernel"):
        return None
    from IPython.display import display

    found: Callable[..., Any] = display
    return found


class NotebookLines:
    """What progress is drawn on in a notebook, in the words of rich's bars."""

    width = 120

    def __init__(self, display: Callable[..., Any]) -> None:
        self._display, self._handle = display, None
        self._numbers = count()
        self._tasks: dict[Any, dict[str, Any]] = {}
        self._said: list[str] = []

    @property
    def console(self) -> Any:
        """Where lines above the bars go."""
        return self

    def print(self, text: str, **how: object) -> None:
        """A line that stays above the bars."""
        self._said.append(text)

    def start(self) -> None:
        """Make the output."""
        self._handle = self._display(self, display_id=True)

    def stop(self) -> None:
        """The last state stays."""
        self.refresh()

    def refresh(self) -> None:
        """Bring the output up to date."""
        if self._handle is not None:
            self._handle.update(self)

    def add_task(self, description: str, total: float | None, **fields: Any) -> Any:
        """A new bar."""
        number = next(self._numbers)
        self._tasks[number] = {"description": description, "total": total, "completed": 0, **fields}
        return number

    def update(self, task_id: Any, **fields: Any) -> None:
        """Change a bar."""
        self._tasks[task_id] |= fields

    def remove_task(self, task_id: Any) -> None:
        """A bar that is done goes."""
        del self._tasks[task_id]

    def __repr__(self) -> str:
        bars = [
            f"{t['description']}: {t['completed']}/{t['total']} {t['numbers']}".rstrip() for t in self._tasks.values()
        ]
        return "\n".join([*self._said[-MOST:], *bars])

    def _repr_html_(self) -> str:
        said = "".join(f"<div>{escape(line)}</div>" for line in self._said[-MOST:])
        bars = "".join(
            f"<tr><td>{escape(str(task['description']))}</td>"
            f'<td><progress value="{int(task["completed"])}" max="{int(task["total"])}"></progress></td>'
            f"<td>{task['completed']}/{task['total']}</td>"
            f"<td>{escape(task['numbers'])} <small>{escape(task['phase'])}</small></td></tr>"
            for task in self._tasks.values()
        )
        return f"{said}<table>{bars}</table>"
