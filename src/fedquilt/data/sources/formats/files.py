"""Finding and opening the files of a data set, with errors that name the file."""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from fedquilt.core.memory import check_bytes
from fedquilt.core.plain import JSON, Array
from fedquilt.data.sizes import check_gzip
from fedquilt.errors import InputError

AGAIN = "Download it again"


def find(folder: Path, *names: str) -> Path | None:
    """The first of these files or folders, also as .gz, in the folder or up to two folders deeper; or None."""
    if not Path(folder).is_dir():
        raise InputError(f"There is no folder {folder}. Give the one into which the data set was unpacked.")
    wanted = [name for base in names for name in (base, f"{base}.gz")]
    for depth in ("", "*/", "*/*/"):
        for name in wanted:
            found = sorted(Path(folder).glob(depth + name))
            if found:
                return found[0]
    return None


def locate(folder: Path, *names: str) -> Path:
    """As :func:`find`; absence is an error."""
    found = find(folder, *names)
    if found is None:
        here = sorted(p.name for p in Path(folder).iterdir())
        listed = ", ".join(here[:8]) + (", ..." if len(here) > 8 else "") if here else "nothing"
        raise InputError(
            f"{folder} has no {' or '.join(names)} (it holds {listed}). Unpack the official archive of the data set "
            "into this folder."
        )
    return found


def content(path: Path) -> bytes:
    """The bytes of a file, uncompressed."""
    try:
        check_bytes(path.stat().st_size, str(path))
        if path.suffix == ".gz":
            check_gzip(path)
        return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{path} cannot be uncompressed: {error}. {AGAIN}.") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from error


def text(path: Path) -> str:
    """The text of a file, which is UTF-8."""
    try:
        return content(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text: {error}. {AGAIN}.") from error


def table(path: Path) -> Iterator[list[str]]:
    """The rows of a csv file, empty lines left out."""
    try:
        yield from (row for row in csv.reader(io.StringIO(text(path), newline=""), strict=True) if row)
    except csv.Error as error:
        raise InputError(f"{path} is not well-formed csv: {error}. {AGAIN}.") from error


def records(path: Path, columns: Sequence[str]) -> Iterator[list[str]]:
    """These columns of a csv file with a header, row by row."""
    rows = table(path)
    header = next(rows, [])
    absent = [name for name in columns if name not in header]
    if absent:
        raise InputError(f"{path} has no column {absent[0]!r}; its first line is {','.join(header)!r}.")
    places = [header.index(name) for name in columns]
    for number, row in enumerate(rows, 2):
        if len(row) != len(header):
            raise InputError(f"{path}: record {number} has {len(row)} fields, the header has {len(header)}. {AGAIN}.")
        yield [row[place] for place in places]


def parsed(path: Path) -> JSON:
    """The value of a JSON file."""
    try:
        return json.loads(text(path))
    except (json.JSONDecodeError, RecursionError) as error:
        raise InputError(f"{path} is not well-formed JSON: {error}. {AGAIN}.") from error


def numbers(path: Path, columns: int) -> Array:
    """A file of numbers divided by blanks, as float64 [rows, columns]."""
    lines = text(path)
    if not lines.strip():
        raise InputError(f"{path} is empty. {AGAIN}.")
    try:
        found = np.loadtxt(io.StringIO(lines), ndmin=2)
    except ValueError as error:
        raise InputError(f"{path} is not a table of numbers: {error}. {AGAIN}.") from error
    if found.shape[1] != columns or not len(found):
        raise InputError(f"{path} holds {found.shape[0]} x {found.shape[1]} numbers, not {columns} columns. {AGAIN}.")
    if not np.isfinite(found).all():
        row = int(np.flatnonzero(~np.isfinite(found).all(1))[0]) + 1
        raise InputError(f"{path}: row {row} holds a number that is not finite. {AGAIN}.")
    return found


def same_length(**parts: tuple[Path, int]) -> None:
    """Raise unless all files have the same number of rows."""
    if len({count for _, count in parts.values()}) > 1:
        told = ", ".join(f"{path.name} {count}" for path, count in parts.values())
        raise InputError(f"{next(iter(parts.values()))[0].parent}: rows do not match ({told}). {AGAIN}.")
