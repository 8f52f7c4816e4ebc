"""Reading arrays from .npz files, never with pickle, and looking into one without loading it."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedquilt.core.columns import PerColumn
from fedquilt.core.plain import Array
from fedquilt.data.reading import Reading
from fedquilt.data.sizes import check_npz
from fedquilt.errors import InputError

_WANTED = "x and y, or x_train, y_train, x_test and y_test; or x alone, for methods that need no labels"
_USERS = ("user", "writer")


@dataclass(frozen=True, eq=False)
class Arrays:
    """A data set before it is divided over clients.

    Args:
        x, y: Inputs and labels to be divided.
        labelled: Whether there are labels; if not, y is all zeros.
        x_test, y_test: A test set of its own, for the global model; or None.
        user: Who each row comes from, where that is known; one natural client each.
        user_test: The same for the rows of the test set: natural clients are then evaluated on their own.
        reading: What its numbers stand for, where they were made of names or texts.
        classes: How many classes.
        name, licence, source: What it is called, its terms, and where it comes from.
        table: What the columns of a table are, where they have names or are categories.
        ready: Whether rows are as they are published, and meant to be used so; tables of one's own are standardised.

    Example:
        >>> import numpy as np
        >>> from fedquilt.data import IID
        >>> x, y = np.zeros((6, 4), np.float32), np.arange(6) % 2
        >>> arrays = Arrays(x, y, name="mine")
        >>> from fedquilt import Federation
        >>> len(Federation.from_source(arrays, partition=IID(), clients=2).ids)
        2
    """

    x: Array
    y: Array
    x_test: Array | None = None
    y_test: Array | None = None
    user: Array | None = None
    classes: int | None = None
    name: str = ""
    licence: str = "not stated"
    source: str = ""
    labelled: bool = True
    table: PerColumn | None = None
    ready: bool = False
    user_test: Array | None = None
    reading: Reading | None = None

    @property
    def pair(self) -> tuple[Array, Array | None]:
        """Inputs, and labels or None."""
        return self.x, self.y if self.labelled else None

    @property
    def global_test(self) -> tuple[Array, Array] | None:
        """The separate test set, if there is one."""
        return None if self.x_test is None or self.y_test is None else (self.x_test, self.y_test)


def load(path: Path, only: str | None = None) -> dict[str, Array]:
    """Every array of an .npz file, or one of them."""
    if not path.is_file():
        raise InputError(f"There is no file {path}. Check the path; relative ones start at {Path.cwd()}.")
    if not zipfile.is_zipfile(path):
        raise InputError(f"{path} cannot be read as .npz: it is something else, or cut short. Write it with np.savez.")
    try:
        check_npz(path, only)
        with np.load(path, allow_pickle=False) as found:
            return {name: found[name] for name in found.files if only in (None, name)}
    except MemoryError as error:
        raise InputError(f"{path} asks for more memory than there is: {error}. Write it again, or smaller.") from error
    except InputError:
        raise
    except Exception as error:  # damaged bytes fail in many ways: zlib.error, TokenError, RuntimeError, ...
        if "allow_pickle" in str(error):
            raise InputError(
                f"{path} holds Python objects, which are never loaded: reading them can run code. Save plain numbers "
                "instead, for example x.astype('float32') with equal row lengths."
            ) from error
        raise InputError(f"{path} cannot be read as .npz: {error}. Write it with np.savez.") from error


@dataclass(frozen=True)
class Header:
    """What the head of an array says."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def headers(path: Path) -> dict[str, Header]:
    """Shape and type of every array of an .npz file, without reading the arrays."""
    try:
        with zipfile.ZipFile(path) as archive:
            return {m.removesuffix(".npy"): _header(archive, m) for m in archive.namelist()}
    except Exception as error:  # see load
        raise InputError(f"{path} cannot be read as .npz: {error}. Write it with np.savez.") from error


def _header(archive: zipfile.ZipFile, member: str) -> Header:
    with archive.open(member) as stream:
        first = np.lib.format.read_magic(stream) == (1, 0)
        read = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(stream)
        return Header(shape, dtype)


def arrays_of(found: Mapping[str, Array], where: str, user: str | None = None) -> Arrays:
    """Make sense of an .npz by its keys.

    Either x and y, or x_train, y_train (to which x_val, y_val are added when there) and x_test, y_test, or x alone:
    inputs without labels. ``user`` names the column of natural clients; without it a column called user or writer is
    taken when there is one.
    """
    if {"x", "y"} <= found.keys():
        x, y, test = found["x"], found["y"], None
    elif {"x_train", "y_train"} <= found.keys():
        x, y = _with_val(found, "x", where), _with_val(found, "y", where)
        test = (found["x_test"], found["y_test"]) if {"x_test", "y_test"} <= found.keys() else None
    elif "x" in found and not any(name.startswith("y") for name in found):
        return unlabelled(found["x"], _users(found, where, user), where)
    else:
        raise InputError(f"{where} has the keys {_listed(found)}. It needs {_WANTED}; save it again so.")
    x_test, y_test = test or (None, None)
    return Arrays(x, y, x_test, y_test, _users(found, where, user), name=where)


def unlabelled(x: Array, user: Array | None, name: str) -> Arrays:
    """Inputs without labels."""
    return Arrays(x, np.zeros(len(x) if x.ndim else 0, np.int64), user=user, name=name, labelled=False)


def _with_val(found: Mapping[str, Array], name: str, where: str) -> Array:
    train, val = found[f"{name}_train"], found.get(f"{name}_val")
    if val is None:
        return train
    if train.shape[1:] != val.shape[1:]:
        raise InputError(f"{where}: {name}_train has rows of shape {train.shape[1:]}, {name}_val of {val.shape[1:]}.")
    return np.concatenate([train, val])


def _users(found: Mapping[str, Array], where: str, user: str | None) -> Array | None:
    for name in (user,) if user else _USERS:
        if f"{name}_train" in found:
            return _with_val(found, name, where)
        if name in found:
            return found[name]
    if user:
        raise InputError(f"{where} has no column {user!r} or '{user}_train'. Its keys are {_listed(found)}.")
    return None


def _listed(found: Mapping[str, Array]) -> str:
    names = sorted(found)
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "") if names else "(none)"
