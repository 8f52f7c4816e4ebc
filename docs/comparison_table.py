"""The tables of docs/comparison.md, from docs/comparison.toml; our lines of code are counted in examples/.

    python docs/comparison_table.py           writes tables and footnotes between the page's marks
    python docs/comparison_table.py --short   prints the short table, without footnotes, for the README

tests/docs/test_comparison.py holds the page against the data, and the data against this library.
"""

from __future__ import annotations

import io
import sys
import textwrap
import tokenize
import tomllib
from pathlib import Path
from typing import Any

HOME = Path(__file__).resolve().parent
DATA, PAGE = HOME / "comparison.toml", HOME / "comparison.md"
BEGIN, END = "<!-- comparison: docs/comparison_table.py writes it -->", "<!-- end of comparison -->"
LINES, LINES_END = "<!-- lines: docs/comparison_table.py writes it -->", "<!-- end of lines -->"
EXAMPLES = HOME.parent / "examples"
LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


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


def footnotes(data: dict[str, Any], cells: list[list[str]]) -> str:
    """One for each source of the cells, in the order of first use."""
    notes = []
    for source in dict.fromkeys(source for _, source in cells):
        words = f"[^{source}]: " + " ".join(data["sources"][source].split())
        notes.append(
            textwrap.fill(words, 118, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
        )
    return "\n".join(notes)


def logical(code: str) -> tuple[int, int]:
    """Statements that are no imports, and imports; blank lines, comments and docstrings are neither."""
    lines: list[list[tokenize.TokenInfo]] = [[]]
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type == tokenize.NEWLINE:
            lines.append([])
        elif token.type not in LAYOUT:
            lines[-1].append(token)
    counted = [line for line in lines if any(token.type != tokenize.STRING for token in line)]
    imports = sum(line[0].string in {"import", "from"} for line in counted)
    return len(counted) - imports, imports


def our_lines(ours: dict[str, Any]) -> list[str]:
    """The cell of a job: files of examples/, keys of own.toml (each a line) and commands."""
    lines, imports = len(ours["keys"]) + ours.get("commands", 0), 0
    recipe = tomllib.loads((EXAMPLES / "own.toml").read_text(encoding="utf-8"))
    for key in ours["keys"]:
        found: Any = recipe
        for part in key.split("."):
            found = found[part]  # a key that is not there is a mistake in the data
    for file in ours["files"]:
        more, imported = logical((EXAMPLES / file).read_text(encoding="utf-8"))
        lines, imports = lines + more, imports + imported
    return [f"{lines} + {imports}", ours["source"]]


def jobs(data: dict[str, Any]) -> list[tuple[str, list[list[str]]]]:
    """What each job is, and its cells, ours first."""
    return [(job["what"], [our_lines(job["ours"]), *job["cells"]]) for job in data["lines"]["jobs"]]


def lines_table(data: dict[str, Any]) -> str:
    """Lines that a user writes, with footnotes."""
    columns = data["lines"]["columns"]
    lines = ["| lines for | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for what, cells in jobs(data):
        lines.append(f"| {what} | " + " | ".join(f"{words}[^{source}]" for words, source in cells) + " |")
    return "\n".join(lines) + "\n\n" + footnotes(data, [cell for _, cells in jobs(data) for cell in cells])


def between(page: str, begin: str, end: str, words: str) -> str:
    """The page with these words between its two marks."""
    head, _, rest = page.partition(begin)
    _, _, tail = rest.partition(end)
    return f"{head}{begin}\n{words}\n{end}{tail}"


def with_table(page: str, data: dict[str, Any]) -> str:
    """The page with its tables and footnotes written anew."""
    notes = footnotes(data, [cell for row in data["rows"] for cell in row["cells"]])
    page = between(page, BEGIN, END, f"{table(data)}\n\n{notes}")
    return between(page, LINES, LINES_END, lines_table(data))


if __name__ == "__main__":
    found = load()
    if sys.argv[1:] == ["--short"]:
        print(table(found, short=True))
    else:
        PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), found), encoding="utf-8")
