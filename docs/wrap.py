"""Wraps the long lines of the documents' sources at 120 characters; what is shown stays as it was.

    python docs/wrap.py                    wraps every page
    python docs/wrap.py docs/cli.md        wraps one

Only paragraphs and list items that hold a long line are touched. Code, tables, headings, HTML and front matter are as
they are written: what is too long there is mended by hand. tests/docs/test_wrap.py says where that is.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WIDTH = 120
WHOLE = re.compile(r"(?<![\\`])(`+)(?!`).+?(?<!`)\1(?!`)|\\\(.+?\\\)|\{[:.][^}]*\}", re.S)  # code, formulas, attributes
ITEM = re.compile(r" *(?:[-*+]|\d+\.|\[\^[\w-]+\]:|:) +")
MARK = re.compile(r" (?=(?:[-*+>|:#=~]|\d+[.)])+(?: |$))")  # before what means something at the start of a line
OTHER = re.compile(r" *(?:[|<>#]|!!!|\?\?\?|===|    )")  # what is no plain words
TOGETHER = "\x00"  # a space at which no line ends


def main(*names: str) -> None:
    """Wrap what is named, or every page."""
    for page in [Path(name) for name in names] or pages():
        text = page.read_text(encoding="utf-8")
        if (new := wrapped(text)) != text:
            page.write_text(new, encoding="utf-8")
            print(page)


def pages() -> list[Path]:
    """Every document of the project, but for those of the notebooks, which docs/tutorials.py writes."""
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return sorted(page for page in found if page.parent.name != "tutorials")


def wrapped(text: str) -> str:
    """A document with its long lines wrapped."""
    return "\n".join(line for block, words in blocks(text.split("\n")) for line in (filled(block) if words else block))


def blocks(lines: list[str]) -> Iterator[tuple[list[str], bool]]:
    """Lines that are filled together, a paragraph or an item; and lines of anything else, one by one."""
    block: list[str] = []
    fence = ""
    for number, line in enumerate(lines):
        found = re.match(r" *(```+|~~~+|\$\$|---$)", line)
        mark = found[1] if found and (found[1] != "---" or number == 0 or fence == "---") else ""
        inside = ITEM.match(line) or (block and line.startswith("    "))
        words = bool(not fence and not mark and line.strip() and (inside or not OTHER.match(line)))
        if block and (not words or ITEM.match(line)):
            yield block, True
            block = []
        if words:
            block.append(line)
        else:
            yield [line], False
        if mark:
            fence = "" if fence == mark else fence or mark
    if block:
        yield block, True


def filled(block: list[str]) -> list[str]:
    """A block in lines of the width, if one is longer; what belongs together stays in one line."""
    if all(len(line) <= WIDTH for line in block):
        return block
    item = ITEM.match(block[0])
    first = item[0] if item else re.match(" *", block[0])[0]
    rest = " " * (4 if first.startswith("[^") else len(first))
    text = " ".join([block[0][len(first) :], *(line.strip() for line in block[1:])])
    text = MARK.sub(TOGETHER, WHOLE.sub(lambda found: found[0].replace(" ", TOGETHER), text))
    lines = textwrap.wrap(
        text, WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )
    return [line.replace(TOGETHER, " ") for line in lines]


if __name__ == "__main__":
    main(*sys.argv[1:])
