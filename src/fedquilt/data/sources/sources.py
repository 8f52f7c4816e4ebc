"""Data sets by name: those that come with packages, official files in the folder FEDQUILT_DATA, and your own .npz."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedquilt import registry
from fedquilt.core.plain import Array, Row
from fedquilt.data.checks import channels_first
from fedquilt.data.npz import Arrays, arrays_of, headers, load
from fedquilt.data.sources import cache
from fedquilt.data.sources.catalogue import DatasetEntry, call, function_of
from fedquilt.data.sources.download import Checked, Report, check, download
from fedquilt.data.sources.formats.text import Strings
from fedquilt.data.sources.hub import from_hub
from fedquilt.data.sources.known import KNOWN
from fedquilt.data.sources.own import arrays_of_own
from fedquilt.data.sources.places import FOLDER, data_folder, installed, missing, opened, place
from fedquilt.errors import InputError
from fedquilt.own_code import is_reference


def read(name: str) -> Arrays:
    """The arrays of a named data set; see :func:`available` for the names.

    A name like ``my.py:function`` is that of code of one's own. Official files are decoded once and mapped from the
    cache afterwards (:mod:`fedquilt.data.sources.cache`).
    """
    if is_reference(name):
        return arrays_of_own(name)
    entry = find(name)
    if entry is None:
        path = _own_files().get(name)
        if path is None:
            raise InputError(unknown(name))
        arrays = arrays_of(load(path), str(path))
        return replace(arrays, classes=_classes(arrays.y, arrays.y_test), name=name, source=str(path))
    arrays = _packaged(entry) if entry.needs else _from_files(entry)
    arrays = replace(arrays, classes=arrays.classes or entry.classes, name=name, ready=arrays.table is None)
    if entry.licence == "not stated":
        return arrays
    return replace(arrays, licence=entry.licence, source=entry.source)


def texts(name: str) -> Strings:
    """The texts of a named data set as they are, for encoders that number words themselves."""
    entry = find(name)
    if entry is None or entry.texts is None:
        raise InputError(f"{name} is not a text data set; these are {', '.join(n for n in KNOWN if KNOWN[n].texts)}.")
    here = place(entry)
    if here is None or (here.path.is_file() and not here.packed):
        raise InputError(f"The texts of {name} are not here: its official files are needed. {missing(entry)}")
    found: Any = function_of(entry.texts)((opened(entry, here) if here.packed else here).path)
    if not isinstance(found, Strings):
        raise InputError(f"The texts of {name} came as {type(found).__name__}. Update the package that brings them.")
    return found


def find(name: str) -> DatasetEntry | None:
    """What is known of this name: by this package, or by an installed one."""
    if name in KNOWN:
        return KNOWN[name]
    known = _from_packages().get(name)
    return None if known is None else _entry_of(known)


def fetch(name: str, via: str = "official", report: Report | None = None) -> list[Path]:
    """Download a data set into its folder below FEDQUILT_DATA; where the files are.

    ``via`` is 'official' (the published files, checked) or 'hf' (the Hugging Face hub, kept as NAME.npz).
    """
    entry, root = _known(name), data_folder()
    if root is None:
        raise InputError(f"Where to? Set {FOLDER} to the folder for data sets, for example {FOLDER}=$HOME/data.")
    if entry.needs:
        raise InputError(f"{name} is not downloaded: it comes with a package. {missing(entry)}")
    if via == "hf":
        return [from_hub(entry, root / f"{name}.npz")]
    if via != "official":
        raise InputError(f"via is 'official' or 'hf', got {via!r}.")
    return download(entry, root / entry.place, report)


def verify(name: str) -> list[Checked]:
    """Compare the official files of a data set that are here with their published sizes and checksums."""
    entry, root = _known(name), data_folder()
    if root is None or not entry.files:
        why = f"{FOLDER} is not set" if entry.files else f"{name} has no official files"
        raise InputError(f"There is nothing to check: {why}.")
    return [check(root / entry.place, file) for file in entry.files]


def available() -> list[Row]:
    """Every data set that has a name, whether it is here, and where to put it when it is not. Reads no big array."""
    brought = [_describe_brought(n) for n in _from_packages() if n not in KNOWN]
    taken = {*KNOWN, *(row["name"] for row in brought)}
    own = [row for name, path in _own_files().items() if name not in taken for row in _describe_own(name, path)]
    return [_describe(entry) for entry in KNOWN.values()] + brought + own


def _packaged(entry: DatasetEntry) -> Arrays:
    if not installed(entry.needs.partition(".")[0]):
        raise InputError(f"{entry.name} needs the package {entry.needs}. {missing(entry)}")
    assert entry.read is not None
    return call(entry.read, what=entry.name)


def _from_files(entry: DatasetEntry) -> Arrays:
    """From NAME.npz or the folder NAME; what takes time to decode goes through the cache."""
    here = place(entry)
    if here is None:
        raise InputError(f"{entry.name} is not here. {missing(entry)}")
    if here.packed:
        here = opened(entry, here)
    if here.path.is_file():
        assert entry.npz is not None
        if not any("_webp_" in name for name in headers(here.path)):
            return call(entry.npz, here.path, what=entry.name)
        reader, root, files = function_of(entry.npz), here.path.parent, [here.path]
    else:
        assert entry.read is not None
        reader, root = function_of(entry.read), here.path
        files = list(_files_below(root))
    stamp = cache.key(reader, root, files)
    return cache.cached(entry.name, stamp, lambda: call(reader, here.path, what=entry.name))


def _files_below(root: Path) -> Iterator[Path]:
    """Every file, also through links to folders (images often lie elsewhere), each folder once."""
    seen: set[str] = set()
    for here, folders, names in os.walk(root, followlinks=True):
        real = os.path.realpath(here)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        yield from (path for path in (Path(here, name) for name in names) if path.is_file())


def _known(name: str) -> DatasetEntry:
    entry = find(name)
    if entry is None:
        raise InputError(f"{name} is a file of your own." if name in _own_files() else unknown(name))
    return entry


def _describe(entry: DatasetEntry) -> Row:
    here = place(entry)
    present = installed(entry.needs.partition(".")[0]) if entry.needs else here is not None
    found = str(here.path) if here is not None else f"the package {entry.needs}"
    return {
        "name": entry.name,
        "shape": entry.shape,
        "count": entry.count,
        "classes": entry.classes,
        "present": present,
        "licence": entry.licence,
        "where": found if present else missing(entry),
        "source": entry.source,
        "download": entry.size,
        "downloadable": entry.downloadable,
        "by_hand": entry.by_hand,
        "files": [asdict(file) for file in entry.files],
        "hub": entry.hub.id if entry.hub is not None else None,
    }


def _describe_brought(name: str) -> Row:
    """What a package brings; if it cannot be imported, why."""
    known = _from_packages()[name]
    try:
        return _describe(_entry_of(known))
    except InputError as error:
        broken = DatasetEntry(name, "not stated", known.package, npz=None)
        return {**_describe(broken), "present": False, "where": str(error)}


def _describe_own(name: str, path: Path) -> Iterator[Row]:
    """One entry, or none for a file that is not a data set."""
    try:
        found = headers(path)
        part = "" if {"x", "y"} <= found.keys() else "_train"
        if not all(name in found and found[name].shape for name in (f"x{part}", f"y{part}")):
            return
        labels = load(path, only=f"y{part}")[f"y{part}"]
    except InputError:
        return
    x = torch.empty((1, *found[f"x{part}"].shape[1:]), device="meta")
    shape = (channels_first(x) if found[f"x{part}"].dtype == np.uint8 else x).shape[1:]
    entry = DatasetEntry(
        name, "not stated", str(path), tuple(shape), found[f"x{part}"].shape[0], _classes(labels), npz=None
    )
    yield {**_describe(entry), "present": True, "where": str(path)}


def _classes(*labels: Array | None) -> int | None:
    whole = [y for y in labels if y is not None and len(y) and y.dtype.kind in "iu"]
    return max((int(np.max(y)) + 1 for y in whole), default=None)


def _own_files() -> dict[str, Path]:
    folder = data_folder()
    return {p.stem: p for p in sorted(folder.glob("*.npz"))} if folder is not None else {}


def unknown(name: str) -> str:
    """What to say of a name that no data set has."""
    names = list(dict.fromkeys([*KNOWN, *_from_packages(), *_own_files()]))
    close = difflib.get_close_matches(str(name), names, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return (
        f"There is no data set called {name!r}.{hint} There are: {', '.join(names)}; and any NAME.npz in the folder "
        f"that {FOLDER} names."
    )


def _from_packages() -> dict[str, registry.RegistryEntry]:
    """Names of data sets and what brings them, in the order of names. Imports nothing."""
    return dict(sorted(registry.entries("dataset").items()))


def _entry_of(known: registry.RegistryEntry) -> DatasetEntry:
    """The catalogue entry that a package brings: itself, or made of a function without arguments that reads."""
    name, package = known.name, known.package or "your own"
    try:
        found: Any = known.load()
    except Exception as error:  # whatever another package does while it is imported
        reason = error.__cause__ if isinstance(error, InputError) and error.__cause__ else error
        raise InputError(f"The data set {name!r} of {package} cannot be imported: {reason}.") from error
    if isinstance(found, DatasetEntry):
        return replace(found, name=name)
    if not callable(found):
        raise InputError(
            f"The data set {name!r} of {package} is {type(found).__name__}. It must be a function that "
            "gives fedquilt.data.Arrays, or a fedquilt.data.DatasetEntry."
        )
    return DatasetEntry(name, "not stated", package, read=found, npz=None, needs=known.where.partition(":")[0])
