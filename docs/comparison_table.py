"""The table of docs/comparison.md, from docs/comparison.toml.

    python docs/comparison_table.py           writes table and footnotes between the page's two marks
    python docs/comparison_table.py --short   prints the short table, without footnotes, for the README

tests/docs/test_comparison.py holds the page against the data, and the data against this library.
"""

from __future__ import annotations

import sys
import textwrap
import tomllib
from pathlib import Path
from typing import Any

HOME = Path(__file__).resolve().parent
DATA, PAGE = HOME / "comparison.toml", HOME / "comparison.md"
BEGIN, END = "<!-- comparison: docs/comparison_table.py writes it -->", "<!-- end of comparison -->"


def load() -> dict[str, Any]:
    """The columns, rows and sources."""
    return tomllib.loads(DATA.read_text(encoding="utf-8"))


def table(data: dict[str, Any], short: bool = False) -> str:
    """All rows with footnotes, or the short ones without."""
    lines = ["| | " + " | ".join(data["columns"]) + " |", "|---" * (len(data["columns"]) + 1) + "|"]
    for row in data["rows"]:
        if short and not row.get("short", False):
            continue
        cells = (word if short else f"{word}[^{source}]" for word, source in row["cells"])
        lines.append(f"| {row['what']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def footnotes(data: dict[str, Any]) -> str:
    """One for each source, in the order of first use."""
    used = dict.fromkeys(source for row in data["rows"] for _, source in row["cells"])
    notes = []
    for source in used:
        words = f"[^{source}]: " + " ".join(data["sources"][source].split())
        notes.append(
            textwrap.fill(words, 118, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
        )
    return "\n".join(notes)


def with_table(page: str, data: dict[str, Any]) -> str:
    """The page with its table and footnotes written anew."""
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n{table(data)}\n\n{footnotes(data)}\n{END}{tail}"


if __name__ == "__main__":
    found = load()
    if sys.argv[1:] == ["--short"]:
        print(table(found, short=True))
    else:
        PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), found), encoding="utf-8")
