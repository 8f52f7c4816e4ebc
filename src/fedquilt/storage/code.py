"""Copies of the user's own code in the folder of a run: with them it resumes and reproduces."""

from __future__ import annotations

import difflib
import json
from pathlib import Path

from fedquilt.core.plain import Row
from fedquilt.errors import InputError
from fedquilt.own_code import COPIES, used
from fedquilt.storage.files import to_json, write_atomic

_INDEX = "files.json"  # beside the copies: where each came from, and the hashes of its files


def write_code(folder: Path, settings: Row) -> None:
    """Keep a copy of the code that settings name."""
    codes = used(settings)
    if not codes:
        return
    index = _index(folder)
    for code in codes:
        for path, content in code.files.items():
            write_atomic(folder / COPIES / code.folder / path, content, folder)
        index.setdefault(code.folder, {"entry": code.entry, "from": code.root, "sha256": code.prints})
    write_atomic(folder / COPIES / _INDEX, to_json(index, indent=1).encode(), folder)


def _index(folder: Path) -> Row:
    try:
        found: Row = json.loads((folder / COPIES / _INDEX).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found


def refuse_changed(folder: Path) -> None:
    """Raise if a file that the run was made with is another one by now; one that is gone does not matter."""
    changes = [
        line
        for name, entry in _index(folder).items()
        for path in entry["sha256"]
        for line in _diff(folder / COPIES / name / path, Path(entry["from"]) / path)
    ]
    if changes:
        raise InputError(
            f"The code of '{folder}' has changed since the run:\n\n" + "\n".join(changes) + "\n\nPut it back as it "
            f"was, or continue with the copy in '{folder / COPIES}' (--saved-code), or start a run with the new code "
            "('fedquilt run' with its recipe)."
        )


def _diff(copy: Path, now: Path) -> list[str]:
    """What changed, line by line."""
    try:
        before, after = copy.read_bytes(), now.read_bytes()
    except OSError:
        return []
    if before == after:
        return []
    old, new = (content.decode("utf-8", errors="replace").splitlines() for content in (before, after))
    return list(difflib.unified_diff(old, new, str(copy), str(now), lineterm=""))
