"""Runs a notebook's code cells in this process, and writes what they print and show back into it.

    PYTHONPATH=src:tests python -m helpers.notebook examples/podfcssv.ipynb

Cells share one namespace, and the value of a cell's last line is shown, as a picture or a table if it can be one. Of
IPython cells have ``display`` and ``Image``, and the line ``!fedquilt ...``, which is the command in this process. The
format is plain JSON, so nothing is installed for it.
"""

from __future__ import annotations

import ast
import base64
import io
import json
import os
import re
import shlex
import sys
import tempfile
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import PIL.Image
import torch

from fedquilt.runs.outputs import environment
from fedquilt.terminal import console
from helpers.command import fedquilt

COLOURS = 64  # of a kept picture
COMMAND = re.compile(r"^!fedquilt (.*)$", re.M)


def play(path: Path, folder: Path) -> dict[str, Any]:
    """The notebook with the outputs of all its code cells, run in this folder; an error stops it."""
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    shown: list[dict[str, Any]] = []

    def display(value: object) -> None:
        shown.append({"output_type": "display_data", "metadata": {}, "data": _shown(value)})

    module = ModuleType("notebook")
    count = 0
    with _inside(folder), _known({"notebook": module, **_ipython(display)}):
        for cell in notebook["cells"]:
            if cell["cell_type"] != "code":
                continue
            count += 1
            out = io.StringIO()
            with redirect_stdout(out):
                value = _run("".join(cell["source"]), f"{path.name}[{count}]", module.__dict__)
                if value is not None:
                    display(value)
            text = [{"output_type": "stream", "name": "stdout", "text": out.getvalue().splitlines(keepends=True)}]
            cell["execution_count"], cell["outputs"] = count, [*(text if out.getvalue() else []), *shown]
            shown.clear()
    return notebook


def _run(source: str, name: str, names: dict[str, Any]) -> object:
    """Run a cell; the value of its last line, if that is an expression."""
    names["_command"] = _command
    tree = ast.parse(COMMAND.sub(lambda line: f"_command({line[1]!r})", source), name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec", dont_inherit=True), names)
    return None if last is None else eval(compile(ast.Expression(last.value), name, "eval"), names)


def _command(line: str) -> None:
    """Print what the command says in a terminal of 100 columns."""
    with patch.dict(os.environ, {"COLUMNS": "100"}), patch.object(console, "_width", 100):  # however early it was made
        said = fedquilt(*shlex.split(line))
    print("\n".join(line.rstrip() for line in said.out.strip().splitlines()))
    assert said.code == 0, f"fedquilt {line}: {said.err}"


def _shown(value: Any) -> dict[str, Any]:
    """A value as notebooks show it."""
    if hasattr(value, "_repr_png_"):
        return {"image/png": base64.b64encode(_small(value._repr_png_())).decode()}
    if hasattr(value, "_repr_html_"):
        rows = value._repr_html_().replace("</tr>", "</tr>\n")
        return {"text/html": rows.splitlines(keepends=True)}
    return {"text/plain": repr(value).splitlines(keepends=True)}


def _small(png: bytes) -> bytes:
    """The same picture in few colours."""
    content = io.BytesIO()
    picture = PIL.Image.open(io.BytesIO(png)).convert("RGB")
    picture.quantize(COLOURS, dither=PIL.Image.Dither.NONE).save(content, "PNG", optimize=True)
    return content.getvalue()


class _Image:
    """A picture in a file."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    def _repr_png_(self) -> bytes:
        return self.path.read_bytes()


def _ipython(display: Any) -> dict[str, ModuleType]:
    """The two names of IPython.display that notebooks here use."""
    module = ModuleType("IPython.display")
    module.display, module.Image = display, _Image  # type: ignore[attr-defined]
    return {"IPython.display": module}  # without its package, whose presence matplotlib would notice


@contextmanager
def _known(modules: dict[str, ModuleType]) -> Any:
    """These can be imported; what cells import beside them stays imported, as it would otherwise be made twice."""
    before = {name: sys.modules[name] for name in modules if name in sys.modules}
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in modules:
            del sys.modules[name]
        sys.modules.update(before)


@contextmanager
def _inside(folder: Path) -> Any:
    """In this folder, with one thread: small tensors are not worth more."""
    before, threads = Path.cwd(), torch.get_num_threads()
    os.chdir(folder)
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        os.chdir(before)


def printed(notebook: dict[str, Any]) -> list[str]:
    """What each code cell printed."""
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return ["".join("".join(o["text"]) for o in c["outputs"] if o["output_type"] == "stream") for c in cells]


if __name__ == "__main__":
    for name in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as place:
            whole = play(Path(name).resolve(), Path(place))
        whole["metadata"]["made_with"] = environment()
        Path(name).write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
