"""The hyperparameters of every method in its card: the tables in docs/methods/*.md, from the methods' docstrings.

    python docs/method_options.py

A card says where a table belongs, and of which methods, by two marks::

    <!-- hyperparameters: fedadam fedyogi -->
    <!-- end of hyperparameters -->

What stands between them is written anew, from what ``fedquilt methods NAME`` prints. The tables are HTML: cells of
Markdown tables can be neither wrapped nor hold a ``|``. tests/docs/test_method_options.py holds the cards against it.
"""

from __future__ import annotations

import html
import re
import textwrap
from collections.abc import Sequence
from functools import cache
from pathlib import Path

CARDS = Path(__file__).resolve().parent / "methods"
BLOCK = re.compile(r"(<!-- hyperparameters: ([\w ]+?) -->\n).*?(<!-- end of hyperparameters -->)", re.S)
TRAIN = (
    "<p>Local training (epochs, batch size, optimizer, learning rate schedule, gradient clipping) is set in "
    "<code>[train]</code>; see <code>fedquilt methods {}</code>.</p>"
)
PLAIN = {"true or false", "whole number", "number", "text", "table", "file", "name or table"}
WIDTH = 116


def main() -> None:
    """Write every card anew."""
    for card in cards():
        card.write_text(with_tables(card.read_text(encoding="utf-8")), encoding="utf-8")


def cards() -> list[Path]:
    """The pages that may have tables."""
    return sorted(CARDS.glob("*.md"))


def methods_of(page: str) -> list[str]:
    """The methods whose hyperparameters a page has."""
    return [name for _, names, _ in BLOCK.findall(page) for name in names.split()]


def with_tables(page: str) -> str:
    """The page with the tables of now."""
    return BLOCK.sub(lambda found: f"{found[1]}\n{table(found[2].split())}\n\n{found[3]}", page)


def table(methods: Sequence[str]) -> str:
    """One table for these methods; an option that not all of them have in this form names those that have it."""
    having: dict[tuple[str, str, str], list[str]] = {}
    for method in methods:
        for row in rows(method):
            having.setdefault(row, []).append(method)
    lines = ["<table>", "<thead><tr><th>name</th><th>default</th><th>meaning</th></tr></thead>", "<tbody>"]
    for (name, default, meaning), owners in sorted(having.items(), key=lambda found: _place(found[0][0])):
        only = "" if len(owners) == len(methods) else f" ({', '.join(map(_code, owners))})"
        lines += _wrapped(f"<tr><td>{_code(name)}{only}</td><td>{_code(default)}</td>")
        lines += _wrapped(f"<td>{html.escape(meaning, quote=False)}.</td></tr>")
    return "\n".join([*lines, "</tbody>", "</table>", "", *_wrapped(TRAIN.format(methods[0]))])


def rows(method: str) -> list[tuple[str, str, str]]:
    """Name, default and meaning of each option; of local training only where the method differs from FedAvg."""
    usual = _described("fedavg")
    return [
        (name.removeprefix("method."), default, meaning)
        for name, default, meaning in _described(method)
        if name.startswith("method.") or (name, default, meaning) not in usual
    ]


@cache
def _described(method: str) -> tuple[tuple[str, str, str], ...]:
    from fedquilt.config.described import detail, lines

    found = lines(detail("method", method))
    return tuple(
        (row["setting"], row["default"], row["meaning"] + _choices(row["type"], row["meaning"])) for row in found
    )


def _choices(kind: str, meaning: str) -> str:
    """What one can choose from, if the meaning does not say most of it."""
    words = [word for word in kind.split(" | ") if word != "none"]
    plain = any(word in PLAIN or word.startswith("list of ") for word in words)
    if plain or 2 * sum(word in meaning for word in words) > len(words):
        return ""
    return f". One of: {', '.join(words)}"


def _place(name: str) -> int:
    """A method's own options first, then what all have."""
    return 2 if name.startswith("train.") else int(name in ("aggregate", "shared_start"))


def _code(text: str) -> str:
    return f"<code>{html.escape(text, quote=False)}</code>"


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    main()
