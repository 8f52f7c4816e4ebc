"""Brings the line numbers of the links in walk.md up to date: ``python docs/walk_links.py``.

A link is ``[`name`](/src/fedquilt/file.py#L12)``; its name is what that file defines, ``Class.method`` for a method.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

HOME = Path(__file__).resolve().parents[1]
PAGE = HOME / "docs" / "walk.md"
LINK = re.compile(r"\[`([\w.]+)`\]\(/(src/fedquilt/[\w/]+\.py)#L(\d+)\)")


def lines_of(file: str) -> dict[str, int]:
    """Where a file defines its functions, classes and methods."""
    found: dict[str, int] = {}
    for node in ast.parse((HOME / file).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = node.lineno
        for inner in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(inner, ast.FunctionDef):
                found[f"{node.name}.{inner.name}"] = inner.lineno
    return found


def links(page: str) -> list[tuple[str, str, int]]:
    """Every link's name, file and line."""
    return [(name, file, int(line)) for name, file, line in LINK.findall(page)]


def updated(page: str) -> str:
    """The page with the lines as they are; raises for a name that its file does not define."""

    def link(found: re.Match[str]) -> str:
        name, file, _ = found.groups()
        return f"[`{name}`](/{file}#L{lines_of(file)[name]})"

    return LINK.sub(link, page)


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
