"""The building blocks of panels, as plain values: the page draws each kind. Text is always text, never markup.

A chart may have ``variants``: equal charts for other choices, told apart by their ``keys`` (for example method and
seed), which become menus. Numbers beside a chart are made from the same values by the page.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np

from fedquilt.core.plain import JSON, Array, Row

Block = Row


@dataclass(frozen=True)
class Panel:
    """A section of the report: below which tab it stands, its heading, a sentence on how to read it, and its blocks."""

    tab: str
    key: str
    title: str
    blocks: Sequence[Block] = field(default_factory=tuple)
    note: str = ""

    def plain(self) -> Row:
        """As JSON takes it."""
        return asdict(self)


def text(*paragraphs: str, tone: str = "plain") -> Block:
    """Paragraphs; the tone 'warning' sets them apart."""
    return {"kind": "text", "paragraphs": list(paragraphs), "tone": tone}


def facts(*items: tuple[str, str, str]) -> Block:
    """Cards: a label, a large value, a small note."""
    return {"kind": "facts", "items": [list(i) for i in items]}


def column(key: str, label: str, kind: str = "text", **more: JSON) -> Row:
    """A column of a table. Kinds: text, number, percent (of a fraction); ``half`` names the key of its ± value,
    ``group`` the set of columns it is shown with, ``digits`` its decimals, ``help`` what it means."""
    return {"key": key, "label": label, "kind": kind, **more}


RUN = (column("method", "method"), column("seed", "seed", "number", digits=0))  # where lines of runs begin


def table(key: str, columns: Sequence[Mapping[str, JSON]], rows: Sequence[Mapping[str, JSON]], **more: JSON) -> Block:
    """Rows that can be sorted, filtered and copied as Markdown, LaTeX or CSV."""
    return {"kind": "table", "key": key, "columns": list(columns), "rows": list(rows), **more}


def used(columns: Sequence[Row], rows: Sequence[Mapping[str, JSON]]) -> list[Row]:
    """The columns that some row has a value of."""
    return [c for c in columns if any(row.get(c["key"]) is not None for row in rows)]


def only(keys: Collection[str], row: Mapping[str, JSON]) -> Row:
    """These values of a row."""
    return {name: value for name, value in row.items() if name in keys}


def chart(kind: str, key: str, title: str, **content: JSON) -> Block:
    """A picture of one of the kinds that assets/charts*.js draws."""
    return {"kind": kind, "key": key, "title": title, **content}


def picture(key: str, title: str, source: str) -> Block:
    """An image inside the page; the source is a data: URL."""
    return {"kind": "picture", "key": key, "title": title, "source": source}


def numbers(values: Array | Sequence[float | None], digits: int = 5) -> list[JSON]:
    """An array as lists of rounded numbers; what is not finite becomes None."""
    rounded = np.round(np.asarray(values, dtype=float), digits)
    return (
        [[_finite(v) for v in row] for row in rounded.tolist()]
        if rounded.ndim == 2
        else [_finite(v) for v in rounded.tolist()]
    )


def _finite(value: float) -> float | int | None:
    if value != value or value in (np.inf, -np.inf):
        return None
    return int(value) if value == int(value) else value
