"""Where the files of a data set are looked for: NAME.npz, or the folder NAME, both below FEDQUILT_DATA."""

from __future__ import annotations

import importlib.util
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from fedquilt.data.sources import cache
from fedquilt.data.sources.catalogue import DatasetEntry
from fedquilt.data.sources.download import by_hand
from fedquilt.data.sources.unpack import UNPACKED, archives, located, unpack_all
from fedquilt.errors import InputError

FOLDER = cache.DATA


@dataclass(frozen=True)
class DatasetPlace:
    """Where a data set is: an .npz, or a folder; ``packed`` when its archive has to be unpacked first."""

    path: Path
    packed: bool = False


def data_folder() -> Path | None:
    """The folder that FEDQUILT_DATA names."""
    chosen = os.environ.get(FOLDER)
    return Path(chosen) if chosen else None


def installed(package: str) -> bool:
    """Whether a package is here, without importing it."""
    try:
        return importlib.util.find_spec(package) is not None
    except ValueError:  # imported, but not from a file
        return package in sys.modules


def place(entry: DatasetEntry) -> DatasetPlace | None:
    """Where the files of a data set are, or None. Unpacks nothing."""
    root = data_folder()
    if root is None or entry.needs:
        return None
    folder = root / entry.place
    if entry.npz is not None:
        for path in (root / f"{entry.name}.npz", folder / f"{entry.name}.npz"):
            if path.is_file():
                return DatasetPlace(path)
    if entry.read is None or not folder.is_dir():
        return None
    for start in (folder, *_unpacked(entry)):
        found = located(start, entry.markers)
        if found is not None:
            return DatasetPlace(folder if entry.scattered else found)
    return DatasetPlace(folder, packed=True) if archives(folder) else None


def opened(entry: DatasetEntry, packed: DatasetPlace) -> DatasetPlace:
    """The same after unpacking; where the data folder is read-only, that goes to the cache."""
    tried = _unpacked(entry)
    into = next((folder for folder in tried if cache.made(folder)), None)
    if into is None:
        raise InputError(
            f"{packed.path} holds archives, but no folder can be written to unpack them: unpack them there."
        )
    found = unpack_all(packed.path, into, entry.markers)
    if found is None:
        seen = ", ".join(p.name for p in archives(packed.path))
        raise InputError(f"{packed.path} holds {seen}, but nothing of {entry.name} in it. {missing(entry)}")
    return DatasetPlace(packed.path if entry.scattered else found)


def missing(entry: DatasetEntry) -> str:
    """What to do about a data set that is not here."""
    if entry.needs:
        return f"Install it: {entry.install or entry.source}."
    root = data_folder()
    where = f"the folder {root} ({FOLDER})" if root else f"a folder, and set {FOLDER} to that folder"
    ways = [f"Put {entry.name}.npz with the keys {entry.keys} into {where}."] if entry.npz is not None else []
    if entry.downloadable:
        ways.append(f"Or download it: fedquilt datasets --download {entry.name}")
    if entry.hub is not None and entry.hub.image:
        ways.append(f"Or from Hugging Face ({entry.hub.id}): fedquilt datasets --download {entry.name} --via hf")
    if entry.files:
        ways.append("Or by hand. " + by_hand(entry, (root or Path(f"${FOLDER}")) / entry.place))
    return "\n".join(ways)


def _unpacked(entry: DatasetEntry) -> list[Path]:
    root = data_folder()
    inside = [root / entry.place / UNPACKED] if root is not None else []
    return inside + [folder / UNPACKED / entry.place for folder in cache.folders()]
