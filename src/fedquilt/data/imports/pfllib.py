"""A division made by PFLlib: dataset/NAME/{config.json, train/I.npz, test/I.npz}, one pair of files for each client.

Each file holds ``data``, a pickled dict of x and y (dataset/utils/dataset_utils.py in github.com/TsingZ0/PFLlib); it is
read without running anything. Files with plain arrays x and y are read as well.

Arrays out of pickled objects without running anything: the one reader of pickles here.

A pickle is a program: it may call whatever it can name. This reader lets it name four things of numpy, and even for
these it gives stand-ins that only take notes: the arrays are made afterwards, from the notes, once shapes and lengths
are checked. Every other name is refused before anything is done with it.
"""

from __future__ import annotations

import io
import math
import pickle  # noqa: TID251 -- restricted below: no name is ever imported
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fedquilt.core.memory import check_bytes
from fedquilt.core.plain import Array
from fedquilt.core.seed import Seed
from fedquilt.data.checks import check_fractions
from fedquilt.data.npz import load
from fedquilt.data.sources.formats.files import parsed
from fedquilt.errors import InputError

_DEPTH = 8  # a division needs four: array, dict, array, array
_TYPE = re.compile(r"[biuf][1248]|O8?")


def unpickled(data: bytes, where: str) -> Any:
    """Dicts, lists, texts, numbers and numeric arrays; anything else is refused by name."""
    try:
        return _plain(_Restricted(io.BytesIO(data), where).load())
    except InputError:
        raise
    except Exception as error:  # damaged bytes make the machine fail in any way it can
        raise InputError(f"{where} holds a damaged pickle: {error}. Make the file again.") from error


class _Restricted(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, where: str) -> None:
        super().__init__(stream)
        self._where = where

    def find_class(self, module: str, name: str) -> Any:
        found = _ADMITTED.get((module.replace("numpy.core", "numpy._core"), name))
        if found is None:
            raise InputError(
                f"{self._where} holds a pickle that asks for {module}.{name}. Only numpy arrays are read from pickles: "
                "anything else could run code. Do not trust the file; if it is your own, save x and y with np.savez."
            )
        return found


class _Call:
    """A name a pickle may use: it can be called, and nothing else."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make

    def __call__(self, *given: Any) -> Any:
        return self._make(*given)

    def __setstate__(self, state: object) -> None:
        raise pickle.UnpicklingError("it changes what is not its own")


class _Type:
    """Notes on a dtype: its code and byte order."""

    __slots__ = ("code", "order")

    def __init__(self, code: str) -> None:
        if not isinstance(code, str) or not _TYPE.fullmatch(code):
            raise pickle.UnpicklingError(f"arrays of type {code!r:.40} are not read")
        self.code, self.order = code, "="

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if state[1] not in ("<", ">", "|", "="):
            raise pickle.UnpicklingError(f"byte order {state[1]!r:.40}")
        self.order = state[1]

    @property
    def numeric(self) -> np.dtype[Any]:
        return np.dtype(self.order + self.code)


class _Array:
    """Notes on an array: its shape, its type, and its bytes or, for objects, its members."""

    __slots__ = ("state",)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.state = state

    def value(self, depth: int) -> Any:
        _, shape, kind, by_columns, raw = self.state
        count = math.prod(shape)
        if kind.code.startswith("O"):
            if not isinstance(raw, list) or len(raw) != count:
                raise pickle.UnpicklingError("an array of objects without its members")
            members = [_plain(member, depth) for member in raw]
            return members if shape else members[0]
        if min(shape, default=0) < 0 or count * kind.numeric.itemsize != len(raw):
            raise pickle.UnpicklingError(f"an array of {shape!r:.40} with {len(raw)} bytes")
        return np.frombuffer(raw, kind.numeric).reshape(shape, order="F" if by_columns else "C")


def _scalar(kind: _Type, raw: bytes) -> Any:
    return np.frombuffer(raw, kind.numeric, count=1)[0]


def _plain(value: object, depth: int = 0) -> Any:
    if depth > _DEPTH:
        raise pickle.UnpicklingError("it is nested too deeply")
    if isinstance(value, _Array):
        return value.value(depth + 1)
    if isinstance(value, dict):
        return {name: _plain(inner, depth + 1) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner, depth + 1) for inner in value]
    return value


_ADMITTED = {
    ("numpy._core.multiarray", "_reconstruct"): _Call(lambda *given: _Array()),
    ("numpy._core.multiarray", "scalar"): _Call(_scalar),
    ("numpy", "ndarray"): _Call(lambda *given: _Array()),
    ("numpy", "dtype"): _Call(lambda code, *given: _Type(code)),
}


Pair = tuple[Array, Array]


def is_split(path: Path) -> bool:
    """Whether this folder looks like one."""
    return (path / "train").is_dir() and next((path / "train").glob("*.npz"), None) is not None


def of_pfllib(path: Path, valid: float, seed: Seed) -> tuple[dict[int, dict[str, Pair]], int | None]:
    """The rows of each client in train, valid and test, and the number of classes if config.json tells it.

    PFLlib has no validation samples: round(valid * n) of each client's training samples, halves up, become so.
    """
    check_fractions(0, valid)
    if not is_split(path):
        raise InputError(f"{path} has no train/*.npz. Give the folder that PFLlib wrote, dataset/NAME.")
    clients = {client: _client(path, client, valid, seed) for client in _numbers(path / "train")}
    if set(clients) != set(_numbers(path / "test")):
        raise InputError(f"{path}: train and test do not hold the same clients. Make the division again.")
    settings = parsed(path / "config.json") if (path / "config.json").is_file() else {}
    if not isinstance(settings, dict):
        raise InputError(f"{path / 'config.json'} holds no table of settings. Make the division again.")
    told = settings.get("num_clients", len(clients))
    if told != len(clients):
        raise InputError(f"{path}: config.json tells of {told} clients, but train holds {len(clients)} files.")
    return clients, settings.get("num_classes")


def _numbers(folder: Path) -> list[int]:
    files = sorted(folder.glob("*.npz"))
    odd = [file.name for file in files if not file.stem.isdecimal()]
    if odd:
        raise InputError(f"{folder / odd[0]} is not called after a client's number. Take it out of the folder.")
    return sorted(int(file.stem) for file in files)


def _client(path: Path, client: int, valid: float, seed: Seed) -> dict[str, Pair]:
    (x, y), test = (_pair(path / part / f"{client}.npz") for part in ("train", "test"))
    count = min(int(np.floor(len(y) * valid + 0.5)), max(len(y) - 1, 0))
    order = seed.fold("split", client).numpy().permutation(len(y))
    held, kept = np.sort(order[:count]), np.sort(order[count:])
    return {"train": (x[kept], y[kept]), "valid": (x[held], y[held]), "test": test}


def _pair(path: Path) -> Pair:
    found = _content(path)
    if not isinstance(found, dict) or not {"x", "y"} <= found.keys():
        raise InputError(f"{path} holds no x and y. Give the folder that PFLlib wrote, dataset/NAME.")
    try:
        x, y = np.asarray(_texts(found["x"])), np.asarray(found["y"])
    except ValueError as error:
        raise InputError(f"{path}: its rows have different lengths. Bring them to one length first.") from error
    if not (x.ndim and y.ndim):
        raise InputError(f"{path}: x has the shape {x.shape} and y {y.shape}. Make the division again.")
    if len(x) != len(y):
        raise InputError(f"{path}: x has {len(x)} rows but y has {len(y)}. Make the division again.")
    return x, y


def _texts(rows: object) -> Any:
    """Texts without their lengths: PFLlib keeps (token ids, length), in a list of pairs or an array of two columns."""
    if not isinstance(rows, list) or not rows:
        return rows
    if all(isinstance(row, list) and len(row) == 2 and _is_text(*row) for row in rows):
        return [ids for ids, _ in rows]
    paired = len(rows) % 2 == 0 and all(_is_text(*rows[i : i + 2]) for i in range(0, len(rows), 2))
    return rows[::2] if paired else rows


def _is_text(ids: object, length: object) -> bool:
    return isinstance(ids, list | np.ndarray) and isinstance(length, int | np.integer)


def _content(path: Path) -> Any:
    try:
        with zipfile.ZipFile(path) as archive:
            if "data.npy" not in archive.namelist():
                return load(path)
            check_bytes(archive.getinfo("data.npy").file_size, str(path))
            stream = io.BytesIO(archive.read("data.npy"))
    except FileNotFoundError as error:
        raise InputError(f"There is no {path}. Make the division again.") from error
    except InputError:
        raise
    except Exception as error:  # damaged bytes fail in many ways: BadZipFile, zlib.error, RuntimeError, ...
        raise InputError(f"{path} cannot be read as .npz: {error}. Make the division again.") from error
    try:
        first = np.lib.format.read_magic(stream) == (1, 0)
        read = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
        kind = read(stream)[2]
    except Exception as error:  # see above
        raise InputError(f"{path} holds a damaged array: {error}. Make the division again.") from error
    if not kind.hasobject:
        raise InputError(f"{path}: data is an array of {kind}, not a dict of x and y.")
    return unpickled(stream.read(), str(path))
