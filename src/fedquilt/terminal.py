"""How words and tables reach a terminal: text as it is, never as markup, and lines that break between words.

Names of files, clients and settings may hold brackets, which rich would take for styles; so nothing printed here is
markup. On a screen a line that is too long is continued below, between words; a word that is longer than the screen (a
path) stays whole, so that it can be copied. Where nobody watches a screen, lines are not broken at all.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator
from typing import TextIO, TypeVar

from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.table import Column, Table

console = Console(markup=False, emoji=False)
_WIDE = 10_000
T = TypeVar("T")


def say(text: str, file: TextIO | None = None, screen: Console | None = None) -> None:
    """Print a text; on a screen its lines break between words."""
    if screen is not None:
        screen.print(broken(text, screen.width), markup=False, highlight=False, soft_wrap=True)
        return
    out = sys.stdout if file is None else file
    print(broken(text, shutil.get_terminal_size().columns) if out.isatty() else text, file=out, flush=True)


def counted(items: Iterable[T], total: int, title: str) -> Iterator[T]:
    """The same items; a line on the screen, if there is one, counts them where they take more than a second."""
    began = last = time.monotonic()
    watched = sys.stderr.isatty()
    for number, item in enumerate(items, 1):
        yield item
        now = time.monotonic()
        if watched and now - began > 1 and (now - last > 0.2 or number == total):
            left = (now - began) / number * (total - number)
            told = f"{title}: {number:,} of {total:,}, {left:,.0f} s left"
            print(f"\r{told:<{shutil.get_terminal_size().columns - 1}}", end="", file=sys.stderr, flush=True)
            last = now
    if watched and last > began:
        print(file=sys.stderr, flush=True)


def broken(text: str, width: int) -> str:
    """A text whose lines are at most so wide, but for words that are longer; lines keep their beginning spaces."""
    return "\n".join(
        "\n".join(textwrap.wrap(line, max(width, 1), break_long_words=False, break_on_hyphens=False)) or line
        for line in text.split("\n")
    )


def show_table(table: Table, screen: Console | None = None) -> None:
    """Print a table that breaks no word: what is too wide for a screen is shown row by row, and where there is no
    screen a table is as wide as it must be."""
    to = console if screen is None else screen
    most = [max(map(cell_len, _lines(column))) for column in table.columns]
    least = [
        wide if column.no_wrap else max(map(cell_len, _words(column)))
        for column, wide in zip(table.columns, most, strict=True)
    ]
    frame = Measurement.get(to, to.options.update(width=_WIDE), table).maximum - sum(most)
    needed = sum(least) + frame
    if to.is_terminal and needed > to.width:
        say(_listed(table), screen=to)
        return
    room = max(to.width, needed)
    if sum(most) + frame > room:
        _share(table, room - frame, least, most)
    table.width = min(room, sum(most) + frame)
    to.print(table, crop=False)


def _share(table: Table, room: int, least: list[int], most: list[int]) -> None:
    """Give each column the room of its longest word, and the rest to whoever lacks the most."""
    given = list(least)
    for _ in range(room - sum(least)):
        place = max(range(len(given)), key=lambda i: most[i] - given[i])
        given[place] += 1
    for column, width in zip(table.columns, given, strict=True):
        column.width = width


def _words(column: Column) -> list[str]:
    return [word for line in _lines(column) for word in (line.split() or [""])]


def _lines(column: Column) -> list[str]:
    return [line for cell in (column.header, *column.cells) for line in str(cell).split("\n")]


def _listed(table: Table) -> str:
    """The rows one below the other, each cell after the name of its column."""
    heads = [str(column.header) for column in table.columns]
    blocks = [str(table.title)] if table.title else []
    for cells in zip(*(column.cells for column in table.columns), strict=False):
        named = [(head, str(cell)) for head, cell in zip(heads, cells, strict=False) if str(cell)]
        blocks.append("\n".join(f"{head}: {cell}" if head else cell for head, cell in named))
    return "\n\n".join(blocks)
