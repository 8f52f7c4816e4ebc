"""One word per thing, and it is the field's: words that this project once had of its own stay away."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedquilt.cli import PANELS
from helpers.command import fedquilt

ROOT = Path(__file__).parents[2]
OLD = {  # what is not said any more, and what is said instead
    r"slopes?": "gradient",
    r"exams?|examined?|examiners?": "evaluation",
    r"visits?|visited": "client update",
    r"tapes?": "captured step",
    r"trips?": "exchange",
    r"errands?": "jobs",
    r"rosters?": "membership",
    r"strangers?": "new client",
    r"liars?": "malicious client",
    r"knobs?": "hyperparameter",
    r"(?:reply|site|wire)\.examples": "samples",
}
PATTERN = re.compile(rf"(?<![A-Za-z])(?:{'|'.join(OLD)})(?![a-z])|\bturn\.(?:seed|round|client)\b", re.IGNORECASE)
CAMEL = re.compile(r"Slope|Exam(?!ple)|Visit|Tape|Trip(?!le)|Errand|Roster|Turn(?!ed|s)(?=[A-Z]|$)")
PLAIN = {  # of the pages that users read and of every --help, what is better said otherwise
    r"anew": "again, from scratch",
    r"(?:goes|go|went) on": "continues",
    r"whoever|everybody": "a client, all clients",
    r"ledgers?": "dropped replies",
    r"told apart": "significantly different",
    r"plays? (?:a|the) (?:run|round|recipe)": "runs",
    r"`examples`": "samples",
}
KEPT = (  # where the old words must stand
    "src/fedquilt/moved.py",  # what 0.1 called it
    "tests/unit/test_moved.py",
    "tests/docs/test_words.py",
)
LINES = (  # lines that must have one
    r'name="fedquilt\.',  # the name of a record in frames
    r"written=",  # and of its fields
    r"renamed\(|current\(",  # what 0.1 called an attribute
    r"WERE = ",  # and a log
    r"FEDQUILT_TAPES",
    r"fold\(",  # words from which randomness is drawn
    r"cc_visit",  # radon's
    r"round trip",
    r"InTurn",  # one after another
    r"visit_Import|\.visit\(",  # Python's own walk through a syntax tree
    r"visits\.csv",  # people who visit a hospital
)


def _pages() -> Iterator[Path]:
    yield from (ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md"))
    yield from sorted((ROOT / "docs").rglob("*.md"))


def _sources() -> Iterator[Path]:
    for folder in ("src", "examples", "benchmarks", "docs"):
        yield from sorted((ROOT / folder).rglob("*.py"))


def _found(path: Path) -> Iterator[str]:
    if path.relative_to(ROOT).as_posix() in KEPT:
        return
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if any(re.search(kept, line) for kept in LINES):
            continue
        for match in PATTERN.finditer(line):
            yield f"{path.relative_to(ROOT)}:{number}: {match[0]}"


@pytest.mark.parametrize("paths", [_pages, _sources], ids=["pages", "sources"])
def test_old_words_stay_away(paths) -> None:
    found = [place for path in paths() for place in _found(path)]
    assert found == []


def _plain() -> Iterator[tuple[str, str]]:
    """What users read first: pages but for the decisions, and what every command says of itself."""
    for path in _pages():
        if "decisions" not in path.parts:
            yield path.name, path.read_text(encoding="utf-8")
    for command in sorted(
        name for panel in PANELS.values() for name in (one.__name__.replace("_", "-") for one in panel)
    ):
        yield f"fedquilt {command} --help", fedquilt(command, "--help").out
    yield "fedquilt --help", fedquilt("--help").out


def test_pages_and_help_are_plain() -> None:
    pattern = re.compile(rf"\b(?:{'|'.join(PLAIN)})\b|`examples`", re.IGNORECASE)
    found = [f"{name}: {match[0]}" for name, text in _plain() for match in pattern.finditer(" ".join(text.split()))]
    assert found == []


def test_no_name_has_an_old_word_in_it() -> None:
    found = []
    for path in _sources():
        if path.relative_to(ROOT).as_posix() in KEPT:
            continue
        tokens = tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline)
        found += [
            f"{path.relative_to(ROOT)}:{token.start[0]}: {token.string}"
            for token in tokens
            if token.type == tokenize.NAME and CAMEL.search(token.string) and token.string != "InTurn"
        ]
    assert found == []


def test_an_old_word_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text("A client's first visit.\nAll is well: examples, stripes, slopeless.\nThe `turn.seed` of it.\n")
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    assert list(_found(page)) == ["page.md:1: visit", "page.md:3: turn.seed"]
