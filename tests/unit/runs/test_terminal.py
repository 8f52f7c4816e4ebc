"""What reaches a terminal: text as it is, brackets included, in lines that break between words."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from fedquilt import terminal
from fedquilt.runs import progress
from fedquilt.runs.progress import Progress
from fedquilt.show import show
from fedquilt.terminal import broken, counted, say, show_table
from helpers.command import fedquilt

LONG = "The network has BatchNorm, which cannot learn from a batch of one row; see /a/rather/long/path/runs/quick-1a2b"


def made(width: int, screen: bool = True) -> Console:
    """A console that remembers; like the library's own, it takes nothing for markup."""
    return Console(file=io.StringIO(), width=width, force_terminal=screen, color_system=None, markup=False, emoji=False)


def said(console: Console) -> str:
    """What was printed there."""
    return console.file.getvalue()  # type: ignore[attr-defined]


def words(text: str) -> list[str]:
    """The words of a printed text, without the lines of tables."""
    return [word for word in text.split() if not set(word) <= set("┏┓┗┛┃━┳┻╇┡┩│└┴┘┬├┼┤─╷╵╶╴")]


def wide(title: str = "doctor") -> Table:
    """A table with a long cell, and names in brackets."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    table.add_column("check", no_wrap=True)
    table.add_column("found", overflow="fold")
    table.add_column("what to do", overflow="fold")
    table.add_row("flower", 'not installed; real federations need it: pip install "fedquilt[flower]"', LONG)
    table.add_row("client[3]", "[red]", ":smile: [/nothing] [bold]")
    return table


def test_doctor_names_the_extra(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """rich would take [flower] for a style and print pip install "fedquilt"."""
    row = {"check": "flower", "state": "ok", "found": 'not installed; pip install "fedquilt[flower]"'}
    monkeypatch.setattr("fedquilt.analysis.doctor.checks", lambda: [row])
    from fedquilt.commands.catalogues import doctor

    with show.console.capture() as printed:
        doctor()
    assert 'pip install "fedquilt[flower]"' in printed.get() + capsys.readouterr().out


def test_names_with_brackets_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    with show.console.capture() as printed:
        show.listing([{"file": "runs/[red]x", "client": ":smile: [/b]"}], "a [title]")
    assert all(text in printed.get() for text in ("[red]x", ":smile: [/b]", "a [title]"))


def test_a_bar_shows_brackets_of_its_title_and_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = made(140)
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(progress, "console", screen)
    with Progress() as shown:
        bar = shown.bar("run[1]", 3)
        bar.step(1, "train [head]", 1, 2)
        bar.round(3, {"test_loss": 1.0})
    assert "run[1]" in said(screen)


@pytest.mark.parametrize("width", [10, 24, 40, 60, 80, 133])
def test_notes_break_between_words_on_a_screen(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    screen = made(width)
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(progress, "console", screen)
    with Progress() as shown:
        shown.note(LONG)
    assert broken(f"note: {LONG}", width) in said(screen)
    for line in broken(f"note: {LONG}", width).split("\n"):
        assert len(line) <= width or " " not in line
        assert set(line.split()) <= {"note:", *LONG.split()}


def test_plain_notes_on_a_screen_break_between_words(monkeypatch: pytest.MonkeyPatch) -> None:
    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("COLUMNS", "30")
    out = Screen()
    say(LONG, file=out)
    assert out.getvalue().split() == LONG.split()
    assert all(len(line) <= 30 or " " not in line for line in out.getvalue().splitlines())


def test_where_there_is_no_screen_a_note_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    Progress().note(LONG * 3)
    assert capsys.readouterr().out == f"note: {LONG * 3}\n"


@pytest.mark.parametrize("screen", [True, False], ids=["screen", "pipe"])
@pytest.mark.parametrize("width", [10, 30, 60, 72, 100, 160, 400])
def test_tables_break_no_word(width: int, screen: bool) -> None:
    console, table = made(width, screen), wide()
    expected = {w for column in table.columns for cell in column.cells for w in str(cell).split()}
    show_table(table, console)
    assert expected <= set(words(said(console)))
    if screen:
        assert all(len(line.rstrip()) <= width or " " not in line.strip() for line in said(console).splitlines())


def test_errors_keep_their_brackets(tmp_path: Path) -> None:
    said = fedquilt("resume", tmp_path / "run[red]")
    assert (said.code, "run[red]" in said.err) == (2, True)


def test_the_console_takes_nothing_for_markup() -> None:
    assert terminal.console is show.console
    assert terminal.console.render_str("[bold]x[/bold]").plain == "[bold]x[/bold]"


class Screen(io.StringIO):
    """A screen that remembers."""

    def isatty(self) -> bool:
        """It is one."""
        return True


@pytest.mark.parametrize("screen", [True, False])
def test_long_work_is_counted_where_somebody_watches(monkeypatch, screen: bool) -> None:
    errors = Screen() if screen else io.StringIO()
    clock = iter(range(100))
    monkeypatch.setattr("sys.stderr", errors)
    monkeypatch.setattr("time.monotonic", lambda: float(next(clock)))
    assert list(counted("abcd", 4, "reading")) == list("abcd")
    assert ("reading: 4 of 4, 0 s left" in errors.getvalue()) is screen
