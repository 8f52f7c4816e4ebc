"""How far a run is: bars that live in a terminal or below a notebook's cell, or plain lines where nobody watches."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from rich.errors import LiveError
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, Task, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from rich.table import Column
from rich.text import Text

from fedquilt.core.plain import JSON
from fedquilt.metrics.table import main
from fedquilt.results.statistics.targets import MEGABYTE
from fedquilt.runs.notebook import NotebookLines, display_here
from fedquilt.terminal import console as console
from fedquilt.terminal import say

if TYPE_CHECKING:
    from fedquilt.config.config import Config

_PLAIN_SECONDS, _LIVE_SECONDS = 10.0, 0.1


def scored() -> tuple[tuple[str, str], ...]:
    """The scores that a bar may show, the first choice first, by name."""
    first = main()
    return (
        (f"test_{first.id}", f"test {first.name}"),
        (f"common_test_{first.id}", f"{first.name} on the common test set"),
        (f"valid_{first.id}", f"validation {first.name}"),
        (f"common_valid_{first.id}", f"validation {first.name}"),
    )


def span(seconds: float) -> str:
    """A time in words: 5 s, 3 min 20 s, 1 h 05 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return (
        f"{whole // 60} min {whole % 60:02d} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    )


def on_screen() -> bool:
    """Whether someone watches: a terminal that can move its cursor, and no build machine."""
    return console.is_terminal and not console.is_dumb_terminal and not os.environ.get("CI")


class Bar:
    """One line of progress."""

    def __init__(self, owner: Progress, title: str, total: int, moved: Callable[[], None] | None = None) -> None:
        self.owner, self.title, self.total, self._moved = owner, title, total, moved
        self.done, self.numbers = 0, ""
        self._began: tuple[float, int] | None = None
        self._said = time.monotonic()
        self._task: TaskID | None = None
        if owner.live is not None:
            self._task = owner.live.add_task(title, total=total, numbers="", phase="")
            owner.draw(now=True)

    def step(self, round: int, phase: str, done: int, of: int) -> None:
        """So many clients of a phase of a round are done."""
        self.note(f"{phase} {done}/{of}")

    def round(self, done: int, metrics: Mapping[str, JSON], totals: Mapping[str, JSON] | None = None) -> None:
        """So many rounds are done, with these numbers; ``totals`` are those of the whole run."""
        now = time.monotonic()
        self._began = self._began or (now, done)
        self.done, self.numbers = done, _numbers(metrics, totals or {}) or self.numbers
        if self.owner.live is not None and self._task is not None:
            self.owner.live.update(self._task, completed=done, description=self.title, numbers=self.numbers, phase="")
            self.owner.draw(now=done == self.total)
        elif not self.owner.quiet and (done == self.total or now - self._said > _PLAIN_SECONDS):
            self._said = now
            say(" ".join(part for part in (f"{self.title}: {done}/{self.total}", self.numbers, self._left()) if part))
        if self._moved is not None:
            self._moved()

    def reached(self, done: int) -> None:
        """A part of it has come so far."""
        self.done = done
        if self.owner.live is not None and self._task is not None:
            self.owner.live.update(self._task, completed=done)
            self.owner.draw()

    def say(self, text: str) -> None:
        """Something worth knowing, above the bar; with its title if there are others."""
        self.owner.note(text if self._moved is None else f"{self.title}: {text}")

    def note(self, text: str) -> None:
        """What is being done now, beside the bar."""
        if self.owner.live is not None and self._task is not None:
            self.owner.live.update(self._task, phase=text)
            self.owner.draw()

    def end(self) -> None:
        """It is done: its line goes, a line above the others stays."""
        if self.owner.live is not None and self._task is not None:
            say(f"{self.title}: {self.done} rounds {self.numbers}", screen=self.owner.live.console)
            self.owner.live.remove_task(self._task)
            self._task = None

    def _left(self) -> str:
        """The time left, at the pace so far."""
        if self._began is None or self.done <= self._began[1] or self.done >= self.total:
            return ""
        pace = (time.monotonic() - self._began[0]) / (self.done - self._began[1])
        return f"(about {span(pace * (self.total - self.done))} left)"


def _numbers(metrics: Mapping[str, JSON], totals: Mapping[str, JSON]) -> str:
    """The last scores, what was sent so far, and how many replies were dropped; nothing before the first scores.

    Where test scores are withheld, or clients have no test samples, the accuracy is the next one there is, by name.
    """
    known = scored()
    if not any(name in metrics for name, _ in (("test_loss", ""), *known)):
        return ""
    shown = []
    first = next((pair for pair in known if metrics.get(pair[0]) is not None), known[0])
    for name, label in (first, ("train_loss", "training loss"), ("bank", "bank")):
        value = metrics.get(name)
        if value is not None:
            shown.append(f"{label} {value:.3f}" if isinstance(value, float) else f"{label} {value}")
    if totals:
        shown.append(f"{(totals['bytes_up'] + totals['bytes_down']) / MEGABYTE:.1f} MB")
        if totals["quarantined"]:
            shown.append(f"{totals['quarantined']} dropped")
    return ", ".join(shown)


class _Numbers(ProgressColumn):
    """The last scores, and the present phase in dim letters; both as they are, not as markup."""

    def render(self, task: Task) -> Text:
        """One line."""
        return Text.assemble(task.fields["numbers"], " ", (task.fields["phase"], "dim"), no_wrap=True)


def progress_of(asked: bool | None) -> Progress:
    """What a script shows: None shows progress in a notebook or a terminal, and nothing where nobody watches."""
    display = None if asked is False else display_here()
    return Progress(asked is False or (asked is None and not on_screen()), display)


class Progress:
    """A live view in a terminal or a notebook, a line every few seconds elsewhere, nothing when quiet."""

    def __init__(self, quiet: bool = False, display: Callable[..., Any] | None = None) -> None:
        self.quiet = quiet
        self.live: RichProgress | NotebookLines | None = None if display is None else NotebookLines(display)
        if self.live is None and not quiet and on_screen():
            wide = 20 if console.width >= 110 else 8
            rest = Column(no_wrap=True, overflow="ellipsis", max_width=max(16, console.width - wide - 36))
            columns = [
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=wide),
                MofNCompleteColumn(),
                TimeRemainingColumn(compact=True, elapsed_when_finished=True),
                _Numbers(table_column=rest),
            ]
            self.live = RichProgress(*columns, console=console, auto_refresh=False)  # without a thread: see forks()
        self._drawn = 0.0

    def __enter__(self) -> Progress:
        if self.live is not None:
            try:
                self.live.start()
            except LiveError:  # in the loop of another run, whose bar has the screen
                self.live, self.quiet = None, True
        return self

    def __exit__(self, *exception: object) -> None:
        if self.live is not None:
            self.live.stop()

    def draw(self, now: bool = False) -> None:
        """Bring the screen up to date, if that was not done a moment ago."""
        if self.live is not None and (now or time.monotonic() - self._drawn > _LIVE_SECONDS):
            self._drawn = time.monotonic()
            self.live.refresh()

    def bar(self, title: str, total: int, moved: Callable[[], None] | None = None) -> Bar:
        """A new line of progress; ``moved`` is called when it moves."""
        return Bar(self, title, total, moved)

    def parts(self, rounds: int, count: int) -> ProgressLines:
        """For so many runs."""
        return ProgressLines(self, rounds, count)

    @contextmanager
    def whole(self, title: str) -> Iterator[Callable[[int, int], OneLine]]:
        """One line for all runs of a study; what is given makes it of their rounds and number."""
        made: list[OneLine] = []

        def begun(rounds: int, count: int) -> OneLine:
            made.append(OneLine(self, title, rounds, count))
            return made[-1]

        try:
            yield begun
        finally:
            for line in made:
                line.end()

    def note(self, text: str) -> None:
        """Something worth saying above the progress."""
        self.tell(f"note: {text}")

    def tell(self, text: str) -> None:
        """A line above the progress, that stays."""
        if self.live is not None:
            say(text, screen=self.live.console)
        elif not self.quiet:
            say(text)


class OneLine:
    """A line for all runs together, that goes when they are done."""

    def __init__(self, owner: Progress, title: str, rounds: int, count: int) -> None:
        self._owner, self._title, self._rounds, self._left, self._over = owner, title, rounds, count, 0
        self._task = None
        if owner.live is not None:
            self._task = owner.live.add_task(title, total=rounds * count, numbers="", phase="")
            owner.draw(now=True)
        else:
            owner.tell(f"{title} ({count} runs)")
        self._playing: list[OneRun] = []

    def kept(self) -> None:
        """One of them was finished before."""
        self._left, self._over = self._left - 1, self._over + self._rounds
        self.moved()

    @contextmanager
    def playing(self, cell: Planned) -> Iterator[OneRun]:
        """One of them is played."""
        run = OneRun(self, f"{cell.display} seed {cell.config.seed}")
        self._playing.append(run)
        try:
            yield run
        finally:
            self._playing.remove(run)
            self.kept()

    def moved(self) -> None:
        """Bring the line up to date."""
        if self._owner.live is not None and self._task is not None:
            done = self._over + sum(run.done for run in self._playing)
            phase = ", ".join(run.title for run in self._playing) if self._left else "tables and pictures"
            self._owner.live.update(self._task, completed=done, phase=phase)
            self._owner.draw(now=not self._left)

    def say(self, text: str) -> None:
        """Something worth knowing, above the line."""
        self._owner.note(text)

    def end(self) -> None:
        """It is done: its line goes."""
        if self._owner.live is not None and self._task is not None:
            self._owner.live.remove_task(self._task)
            self._owner.draw(now=True)


class OneRun:
    """One run of those in a line."""

    def __init__(self, line: OneLine, title: str) -> None:
        self._line, self.title, self.done = line, title, 0

    def step(self, round: int, phase: str, done: int, of: int) -> None:
        """So many clients of a phase of a round are done: too little to tell."""

    def round(self, done: int, metrics: Mapping[str, JSON], totals: Mapping[str, JSON] | None = None) -> None:
        """So many rounds are done."""
        self.done = done
        self._line.moved()

    def say(self, text: str) -> None:
        """Something worth knowing."""
        self._line.say(f"{self.title}: {text}")


class Planned(Protocol):
    """One run of several."""

    @property
    def display(self) -> str:
        """What people read for its method."""
        ...

    @property
    def config(self) -> Config:
        """Its settings."""
        ...


class ProgressLines:
    """A line for all runs, and one for each that is played; what was played stays above."""

    def __init__(self, owner: Progress, rounds: int, count: int) -> None:
        self._owner, self._rounds, self._left, self._over = owner, rounds, count, 0
        self._whole = owner.bar("all runs", rounds * count)
        self._playing: list[Bar] = []

    def kept(self) -> None:
        """One of them was finished before."""
        self._left, self._over = self._left - 1, self._over + self._rounds
        self._moved()

    @contextmanager
    def playing(self, cell: Planned) -> Iterator[Bar]:
        """One of them is played."""
        bar = self._owner.bar(f"{cell.display} seed {cell.config.seed}", self._rounds, self._moved)
        self._playing.append(bar)
        try:
            yield bar
        finally:
            bar.end()
            self._playing.remove(bar)
            self.kept()
            if not self._left:
                self._whole.note("tables and pictures")

    def _moved(self) -> None:
        self._whole.reached(self._over + sum(bar.done for bar in self._playing))
