"""Progress in the terminal: a live view on a screen, plain lines on a build machine and in a pipe."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fedquilt.config.config import load
from fedquilt.runs import progress
from fedquilt.runs.progress import Progress, span
from fedquilt.studies.compare import cells, compare
from helpers.command import fedquilt, small

SCORES = {"test_loss": 0.5, "test_accuracy": 0.8731, "train_loss": 0.25}
TOTALS = {"bytes_up": 2e6, "bytes_down": 3e6, "quarantined": 0}


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """A terminal that remembers what was written to it."""
    text = io.StringIO()
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(progress, "console", Console(file=text, force_terminal=True, width=140, color_system=None))
    return text


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparisons end without tables and pictures, which take longer than their runs."""
    monkeypatch.setattr("fedquilt.studies.compare.conclude", lambda *_: {"failed": []})
    monkeypatch.setattr("fedquilt.show.studies.comparison_table", lambda summary: None)


def last(screen: io.StringIO) -> list[str]:
    """The lines as they stand at the end."""
    return [line.strip() for line in re.split(r"\x1b\[[\d?]*[A-Za-z]|\n|\r", screen.getvalue()) if line.strip()]


def test_times_in_words() -> None:
    assert [span(s) for s in (0, 59.4, 60, 200, 3599, 3660, 90000)] == [
        "0 s",
        "59 s",
        "1 min 00 s",
        "3 min 20 s",
        "59 min 59 s",
        "1 h 01 min",
        "25 h 00 min",
    ]


def test_a_screen_shows_scores_bytes_what_was_left_out_and_the_phase(screen: io.StringIO) -> None:
    with Progress() as shown:
        bar = shown.bar("quick", 10)
        bar.round(3, SCORES, TOTALS | {"quarantined": 2})
        bar.step(4, "train", 5, 20)
        shown.note("[odd] client")
    said = last(screen)[-1]
    assert said.startswith("quick")
    assert "3/10" in said
    assert "test accuracy 0.873, training loss 0.250, 5.0 MB, 2 dropped train 5/20" in said
    assert "note: [odd] client" in screen.getvalue()


def test_scores_stay_in_rounds_without_any(screen: io.StringIO) -> None:
    with Progress() as shown:
        bar = shown.bar("quick", 10)
        bar.round(3, SCORES, TOTALS)
        bar.round(4, {"train_loss": 0.1}, TOTALS)
    assert "4/10" in last(screen)[-1]
    assert "test accuracy 0.873" in last(screen)[-1]


@pytest.mark.usefixtures("no_pictures")
def test_a_comparison_shows_all_and_the_one_that_runs(screen: io.StringIO, tmp_path: Path) -> None:
    config = load(small(tmp_path), ['compare.methods=["fedavg","local_only"]', "compare.seeds=[0]", "rounds=2"])
    with Progress() as shown:
        watch = shown.parts(config.rounds, 2)
        compare(config, watch)
        assert shown.live is not None
        assert [(task.description, task.completed, task.total) for task in shown.live.tasks] == [("all runs", 4, 4)]
    text = screen.getvalue()
    for label in ("FedAvg", "Local only"):
        assert re.search(rf"{label} seed 0: 2 rounds test accuracy 0\.\d+, training loss \d", text)  # its line above
    with Progress() as shown:  # what is finished is not played, and not missing either
        (_, second) = cells(config)[1]
        for file in second.folder.rglob("*"):
            file.unlink() if file.is_file() else None
        compare(config, shown.parts(config.rounds, 2))
        assert shown.live is not None
        assert shown.live.tasks[0].completed == 4


@pytest.mark.parametrize("setting", [{"CI": "true"}, {"TERM": "dumb"}])
def test_build_machines_get_plain_lines(
    screen: io.StringIO, setting: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    for name, value in setting.items():
        monkeypatch.setenv(name, value)
    clock = [0.0]
    monkeypatch.setattr("fedquilt.runs.progress.time.monotonic", lambda: clock[0])
    with Progress() as shown:
        bar = shown.bar("quick", 10)
        for done in range(1, 11):
            clock[0] += 4
            bar.round(done, SCORES, TOTALS)
    assert screen.getvalue() == ""
    assert capsys.readouterr().out.splitlines() == [
        "quick: 3/10 test accuracy 0.873, training loss 0.250, 5.0 MB (about 28 s left)",
        "quick: 6/10 test accuracy 0.873, training loss 0.250, 5.0 MB (about 16 s left)",
        "quick: 9/10 test accuracy 0.873, training loss 0.250, 5.0 MB (about 4 s left)",
        "quick: 10/10 test accuracy 0.873, training loss 0.250, 5.0 MB",
    ]


def test_quiet_is_quiet(screen: io.StringIO, capsys: Any) -> None:
    with Progress(quiet=True) as shown:
        shown.bar("quick", 1).round(1, SCORES, TOTALS)
        shown.note("nothing")
    assert screen.getvalue() + capsys.readouterr().out == ""


@pytest.mark.usefixtures("no_pictures")
def test_a_comparison_in_plain_lines_says_where_to_watch(tmp_path: Path) -> None:
    said = fedquilt("compare", small(tmp_path), "rounds=1", 'compare.methods=["fedavg"]', "compare.seeds=[0]")
    assert said.code == 0, said.err
    first, second = said.out.splitlines()[:2]
    assert re.fullmatch(r"1 run; to follow in a browser: fedquilt watch .*/compare-small-\w+", first)
    assert second.startswith("FedAvg seed 0: 1/1 test accuracy")
