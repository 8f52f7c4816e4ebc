"""How much memory a file will take once it is read, from its head alone: a small file can unpack to gigabytes."""

from __future__ import annotations

import gzip
import math
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedquilt.core.memory import check_bytes, most_bytes
from fedquilt.errors import InputError

if TYPE_CHECKING:
    from PIL import Image

MOST_PIXELS = 10**8  # of one image: 300 MB as RGB
_DEFLATE = 1032  # no deflated byte stands for more
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}  # of parquet's physical types


def check_npz(path: Path, only: str | None = None) -> None:
    """Raise if the arrays of an .npz, or one of them, would take too much memory."""
    with zipfile.ZipFile(path) as archive:
        members = [m for m in archive.infolist() if only in (None, m.filename.removesuffix(".npy"))]
        check_bytes(sum(max(member.file_size, _array_bytes(archive, member)) for member in members), str(path))


def _array_bytes(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> int:
    """What the head of an array asks for; 0 for what has no such head, which is found out where it is read."""
    with archive.open(member) as stream:
        try:
            first = np.lib.format.read_magic(stream) == (1, 0)
            read = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
            shape, _, dtype = read(stream)
        except Exception:  # damaged heads fail in many ways
            return 0
    return math.prod(shape) * dtype.itemsize


def check_gzip(path: Path) -> None:
    """Raise if a .gz would take too much memory. One that could is unpacked for its length alone first."""
    most, total = most_bytes(), 0
    if path.stat().st_size * _DEFLATE <= most:
        return
    with gzip.open(path, "rb") as stream:
        while part := len(stream.read(2**20)):
            total += part
            if total > most:
                check_bytes(total, f"{path}, unpacked,")


def check_parquet(file: Any, path: Path) -> None:
    """Raise if the columns of an open parquet file would take too much memory, whatever their encoding saves."""
    about, total = file.metadata, 0
    for group in range(about.num_row_groups):
        for place in range(about.num_columns):
            column = about.row_group(group).column(place)
            rows, stored = column.num_values, column.total_uncompressed_size
            width = _WIDTHS.get(column.physical_type)
            if width is None and column.physical_type == "FIXED_LEN_BYTE_ARRAY":
                width = max(file.schema.column(place).length, 1)
            coded = any("DICTIONARY" in name for name in column.encodings)
            total += rows * width if width else _text_bytes(file, path, group, place) if coded else stored
            check_bytes(total, str(path))


def _text_bytes(file: Any, path: Path, group: int, place: int) -> int:
    """The bytes of a column of texts of which each different one is stored once."""
    from pyarrow import compute, parquet

    name = file.schema.column(place).path
    narrow = parquet.ParquetFile(path, read_dictionary=[name])
    total = 0
    for chunk in narrow.read_row_group(group, columns=[name]).column(0).chunks:
        if not hasattr(chunk, "dictionary"):  # texts inside lists or records
            total += chunk.nbytes
            continue
        lengths = compute.binary_length(chunk.dictionary).to_numpy(zero_copy_only=False).astype(np.int64)
        counts = np.bincount(chunk.indices.drop_null().to_numpy(), minlength=len(lengths))
        total += int(counts @ lengths) + 8 * len(chunk)
    return total


def check_texts(longest: int, rows: int, what: str) -> None:
    """Raise if texts as an array, each with the room of the longest, would take too much memory."""
    check_bytes(4 * longest * rows, what)


def checked_image(image: Image.Image, where: object) -> Image.Image:
    """The image, of which only the head was read, unless it has too many pixels."""
    width, height = image.size
    if width * height > MOST_PIXELS:
        raise InputError(
            f"{where} has {width:,} x {height:,} pixels, and at most {MOST_PIXELS:,} are decoded. Make it smaller, or "
            "take it out."
        )
    check_bytes(4 * width * height, str(where))
    return image
