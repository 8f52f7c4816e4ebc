"""Decoded data sets on disk: decoded once, mapped into memory afterwards.

One folder per data set and key, with one .npy file per array. The key is made of who decodes (the reader's own source
and this package's version) and of what (names, sizes and times of the files), so that a changed file or reader is
decoded anew. A folder is written elsewhere and renamed: readers find it whole or not at all.

Arrays are mapped copy-on-write: torch takes them without a copy and without a warning, pages are read when used, and
nothing that is written to them ever reaches the file.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from fedquilt.core.plain import Array, Row
from fedquilt.data.npz import Arrays
from fedquilt.data.reading import Reading
from fedquilt.data.sources.catalogue import Reader
from fedquilt.errors import InputError

CACHE, DATA = "FEDQUILT_CACHE", "FEDQUILT_DATA"
_FIELDS = ("x", "y", "x_test", "y_test", "user", "user_test")
_FACTS = ("classes", "name", "licence", "source")
_CHANNELS = (1, 3, 4)


def folders() -> list[Path]:
    """Where the cache may be, the first choice first: FEDQUILT_CACHE, or the data folder, else the user's own."""
    chosen = os.environ.get(CACHE)
    if chosen:
        return [Path(chosen)]
    data = os.environ.get(DATA)
    return ([Path(data) / ".cache"] if data else []) + [_users_own()]


def _users_own() -> Path:
    mac = Path("~/Library/Caches") if sys.platform == "darwin" else Path("~/.cache")
    return Path(os.environ.get("XDG_CACHE_HOME") or mac.expanduser()) / "fedquilt"


def writable() -> Path | None:
    """The first folder of these that can be written, made if need be; None if there is none."""
    return next((folder for folder in folders() if made(folder)), None)


def made(folder: Path) -> bool:
    """Make a folder unless it is there; whether it can be written. What is marked read-only stays so, also for root."""
    there = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    if not there.is_dir() or not there.stat().st_mode & 0o222:
        return False
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK | os.X_OK)


def key(reader: Reader, root: Path, files: Iterable[Path]) -> str:
    """Who decodes what, in 16 digits; the files are below ``root``."""
    try:
        code = inspect.getsource(inspect.getmodule(reader) or reader)
    except (OSError, TypeError):
        code = repr(reader)
    try:
        release = version("fedquilt")
    except PackageNotFoundError:
        release = ""
    stats = [(str(p.relative_to(root)), p.stat()) for p in sorted(files)]
    facts = [(path, stat.st_size, stat.st_mtime_ns) for path, stat in stats]
    name = f"{reader.__module__}:{getattr(reader, '__qualname__', '')}"
    return hashlib.sha256(json.dumps([name, code, release, facts]).encode()).hexdigest()[:16]


def cached(name: str, stamp: str, decode: Callable[[], Arrays]) -> Arrays:
    """The decoded arrays of this name and key: mapped from the cache, or decoded and kept there."""
    for folder in folders():
        found = _load(folder / f"{name}-{stamp}")
        if found is not None:
            return found
    arrays, target = decode(), writable()
    if target is None or any(a is not None and a.dtype.hasobject for a in _arrays(arrays).values()):
        return arrays
    try:
        _keep(arrays, target, name, stamp)
    except OSError:  # full or gone: the data were read all the same
        return arrays
    return _load(target / f"{name}-{stamp}") or arrays


def clear() -> tuple[int, list[Path]]:
    """Remove what is cached; how many bytes that were, and where."""
    removed, places = 0, []
    for folder in folders():
        for kept in [p for p in folder.glob("*") if _ours(p)] if folder.is_dir() else []:
            removed += sum(f.stat().st_size for f in kept.rglob("*") if f.is_file())
            shutil.rmtree(kept, ignore_errors=True)
            places.append(kept)
    return removed, places


def _ours(path: Path) -> bool:
    return path.is_dir() and ((path / "facts.json").is_file() or path.name == "unpacked" or path.name[:5] == ".part")


def _keep(arrays: Arrays, folder: Path, name: str, stamp: str) -> None:
    """Write beside, then rename; older keys of this name go."""
    part = Path(tempfile.mkdtemp(prefix=".part-", dir=folder))
    try:
        _write(arrays, part)
        part.chmod(0o755)
        target = folder / f"{name}-{stamp}"
        if _load(target) is None:  # else somebody else was faster
            shutil.rmtree(target, ignore_errors=True)
            part.rename(target)
        for old in folder.glob(f"{name}-{'[0-9a-f]' * 16}"):
            if old != target:
                shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _write(arrays: Arrays, folder: Path) -> None:
    """A file for each array, and the facts."""
    held = {field: array for field, array in _arrays(arrays).items() if array is not None}
    facts: Row = {fact: getattr(arrays, fact) for fact in _FACTS}
    facts["reading"] = None if arrays.reading is None else asdict(arrays.reading)
    facts["turned"] = [field for field, array in held.items() if _channels_last(array)]
    facts["bytes"] = {}
    for field, array in held.items():
        whole = np.ascontiguousarray(array.transpose(0, 3, 1, 2) if field in facts["turned"] else array)
        np.save(folder / f"{field}.npy", whole, allow_pickle=False)
        facts["bytes"][field] = (folder / f"{field}.npy").stat().st_size
    (folder / "facts.json").write_text(json.dumps(facts), encoding="utf-8")


def _load(folder: Path) -> Arrays | None:
    """What is kept here, mapped; None if it is not there or not whole."""
    try:
        facts = json.loads((folder / "facts.json").read_text(encoding="utf-8"))
        arrays: dict[str, Any] = {
            field: _mapped(folder / f"{field}.npy", size) for field, size in facts["bytes"].items()
        }
        for field in facts["turned"]:
            arrays[field] = arrays[field].transpose(0, 2, 3, 1)
        reading = None if facts.get("reading") is None else Reading.of(facts["reading"])
        return Arrays(**arrays, **{fact: facts[fact] for fact in _FACTS}, reading=reading)
    except (OSError, ValueError, KeyError, TypeError, EOFError):
        return None


def _mapped(path: Path, size: int) -> Array:
    if path.stat().st_size != size:
        raise InputError(f"{path} is cut short. Remove it.")
    mapped: Array = np.load(path, mmap_mode="c", allow_pickle=False).view(np.ndarray)
    return mapped


def _arrays(arrays: Arrays) -> dict[str, Array | None]:
    return {field: getattr(arrays, field) for field in _FIELDS}


def _channels_last(array: Array) -> bool:
    """Byte images that a federation would turn: they are kept turned, so that it need not copy them."""
    images = array.dtype == np.uint8 and array.ndim == 4
    return images and array.shape[-1] in _CHANNELS and array.shape[1] not in _CHANNELS
