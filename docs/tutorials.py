"""Runs the notebooks of docs/tutorials, each in a process of its own, and writes their pages.

    python docs/tutorials.py                  runs all notebooks, keeps their outputs in them, and writes all pages
    python docs/tutorials.py own-method       one of them
    python docs/tutorials.py --pages          writes the pages from the outputs that the notebooks hold

A page is its notebook's cells and outputs, and nothing else. tests/docs/test_tutorials.py runs notebooks and compares.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / "docs" / "tutorials"
NAMES = (  # in the order in which they are read
    "first-federation",
    "compare",
    "own-method",
    "three-hospitals",
    "hidden-groups",
    "long-tails",
    "stream-without-labels",
    "merging",
)
Cell = Mapping[str, Any]


def main(*arguments: str) -> None:
    """Run what is named, or everything; then write the pages."""
    names = [name for name in arguments if name != "--pages"] or NAMES
    for name in names:
        if "--pages" not in arguments:
            run(HOME / f"{name}.ipynb")
        written = page(name, json.loads((HOME / f"{name}.ipynb").read_text(encoding="utf-8")))
        for old in HOME.glob(f"{name}-[0-9].png"):
            old.unlink()
        for file, content in written.items():
            (HOME / file).write_bytes(content)
        print(f"{name}: {', '.join(written)}")


def run(notebook: Path) -> None:
    """Write outputs into a notebook."""
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    command = [sys.executable, "-m", "helpers.notebook", str(notebook)]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": path})


def page(name: str, notebook: Mapping[str, Any]) -> dict[str, bytes]:
    """The files of a page: the text, and its pictures."""
    pictures: dict[str, bytes] = {}
    title, *cells = notebook["cells"]
    parts = [text_of(title["source"]), f"[This page as a notebook]({name}.ipynb){{ .notebook }}"]
    for cell in cells:
        if cell["cell_type"] == "markdown":
            parts.append(text_of(cell["source"]))
            continue
        parts.append(f"```py\n{text_of(cell['source'])}\n```")
        parts += shown(name, cell, pictures)
    text = "\n\n".join(parts) + "\n"
    return {f"{name}.md": text.encode(), **pictures}


def shown(name: str, cell: Cell, pictures: dict[str, bytes]) -> Iterator[str]:
    """The outputs of a cell; its pictures come to the others."""
    for output in cell["outputs"]:
        data = output.get("data", {"text/plain": output.get("text", "")})
        if "image/png" in data:
            file = f"{name}-{len(pictures) + 1}.png"
            pictures[file] = base64.b64decode(data["image/png"])
            yield f"![{alt(cell)}]({file})"
        elif "text/html" in data:
            yield f'<div class="output">\n{text_of(data["text/html"])}\n</div>'
        else:
            yield f"``` {{ .text .output .no-copy }}\n{text_of(data['text/plain'])}\n```"


def alt(cell: Cell) -> str:
    """What a picture shows: the comment in the first line of its cell."""
    first = text_of(cell["source"]).splitlines()[0]
    assert first.startswith("# "), f"a cell with a picture begins with a comment that says what it shows, not: {first}"
    return first[2:]


def text_of(lines: str | list[str]) -> str:
    """The text of a cell or an output."""
    return "".join(lines).rstrip("\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
