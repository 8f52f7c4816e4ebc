"""Which runs there are below a folder: a run, the planned runs of a comparison, or any number of both."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fedquilt.config.shown import shown_of
from fedquilt.errors import InputError
from fedquilt.results.views import CELLS, read_json

_DEPTH = 3


@dataclass(frozen=True)
class RunPlace:
    """Where a run is, or will be: its folder, its name, the comparison it belongs to, and what that plans."""

    folder: Path
    label: str
    group: str = ""
    seed: int | None = None
    rounds: int | None = None
    named: str = ""

    def told(self) -> dict[str, str]:
        """What pages know it by."""
        return {"id": self.key, "label": self.label, "display": self.display, "group": self.group}

    @property
    def display(self) -> str:
        """What people read: of a run of a comparison its method, of others the name of the folder."""
        return self.named or (shown_of(self.label) if self.group else self.label)

    @property
    def key(self) -> str:
        """What pages call it: says nothing of the path, and is looked up, never followed."""
        return hashlib.blake2b(os.fsencode(self.folder), digest_size=6).hexdigest()


def places(top: Path) -> list[RunPlace]:
    """All runs below a folder, in the order of names and of comparisons."""
    return list(_below(top, _DEPTH))


def _below(folder: Path, depth: int) -> Iterator[RunPlace]:
    if (folder / "config.toml").is_file():
        yield RunPlace(folder, folder.resolve().name)
        return
    plan = read_json(folder / CELLS)
    if isinstance(plan.get("cells"), list):
        group, rounds = folder.resolve().name, plan.get("rounds")
        for cell in plan["cells"]:
            try:
                name, label, seed = str(cell["folder"]), str(cell["label"]), int(cell["seed"])
                named = str(cell.get("display", ""))
            except (LookupError, TypeError, ValueError):  # a damaged plan: its other runs are there all the same
                continue
            if Path(name).name == name:
                yield RunPlace(folder / name, label, group, seed, rounds if isinstance(rounds, int) else None, named)
        return
    if depth:
        for child in _folders(folder):
            yield from _below(child, depth - 1)


def _folders(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return sorted(
                Path(e.path) for e in entries if e.is_dir(follow_symlinks=False) and not e.name.startswith(".")
            )
    except OSError:  # gone meanwhile, or not ours to see
        return []


def check_folder(top: Path) -> bool:
    """Whether there is a run below a folder already; raise if there never will be one."""
    if not top.is_dir():
        what = "is a file" if top.exists() else "does not exist"
        raise InputError(f"'{top}' {what}. Give the folder of a run, of a comparison, or a folder of runs.")
    if places(top):
        return True
    if not _folders(top) and any(not name.startswith(".") for name in os.listdir(top)):
        raise InputError(
            f"'{top}' is not the folder of a run (it has no config.toml), nor of a comparison, nor does it hold any. "
            "Give a folder written by 'fedquilt run' or 'fedquilt compare', or its parent."
        )
    return False
