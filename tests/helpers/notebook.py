"""Runs a notebook's code cells in this process, and writes what they print and show back into it.

    PYTHONPATH=src:tests python -m helpers.notebook examples/podfcssv.ipynb

Cells share one namespace; of IPython they have ``display`` and ``Image``. The format is plain JSON, so nothing is
installed for it.
"""

from __future__ import annotations

import base64
import io
import json
import os
import sys
import tempfile
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch


def play(path: Path, folder: Path) -> dict[str, Any]:
    """The notebook with the outputs of all its code cells, run in this folder; an error stops it."""
    notebook: dict[str, Any] = json.loads(path.read_text())
    shown: list[dict[str, Any]] = []

    def display(picture: str) -> None:
        data = base64.b64encode(Path(picture).read_bytes()).decode()
        shown.append({"output_type": "display_data", "metadata": {}, "data": {"image/png": data}})

    names: dict[str, Any] = {"__name__": "notebook"}
    count = 0
    with _inside(folder), patch.dict(sys.modules, _ipython(display)):
        for cell in notebook["cells"]:
            if cell["cell_type"] != "code":
                continue
            count += 1
            out = io.StringIO()
            with redirect_stdout(out):
                exec(compile("".join(cell["source"]), f"{path.name}[{count}]", "exec"), names)
            text = [{"output_type": "stream", "name": "stdout", "text": out.getvalue().splitlines(keepends=True)}]
            cell["execution_count"], cell["outputs"] = count, [*(text if out.getvalue() else []), *shown]
            shown.clear()
    return notebook


def _ipython(display: Any) -> dict[str, ModuleType]:
    """The two names of IPython.display that notebooks here use."""
    module = ModuleType("IPython.display")
    module.display, module.Image = display, str  # type: ignore[attr-defined]
    return {"IPython.display": module}  # without its package, whose presence matplotlib would notice


@contextmanager
def _inside(folder: Path) -> Any:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def printed(notebook: dict[str, Any]) -> list[str]:
    """What each code cell printed."""
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return ["".join("".join(o["text"]) for o in c["outputs"] if o["output_type"] == "stream") for c in cells]


if __name__ == "__main__":
    for name in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as place:
            whole = play(Path(name).resolve(), Path(place))
        Path(name).write_text(json.dumps(whole, indent=1) + "\n")
