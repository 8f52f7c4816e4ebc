"""Data sets as an installed package would bring them, and a small reader of official files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedquilt.data import Arrays, DatasetEntry, File
from fedquilt.errors import InputError

NOT_A_DATA_SET = 3


def waves() -> Arrays:
    """Twelve rows of two people."""
    return Arrays(
        np.arange(48, dtype=np.float32).reshape(12, 4),
        np.arange(12) % 3,
        user=np.arange(12) // 6,
        licence="CC0",
        source="made here",
    )


def nothing() -> int:
    """Not what a data set gives."""
    return 7


def pictures(folder: Path) -> Arrays:
    """pictures.bin: rows of 1 label byte and 6 x 5 x 3 pixel bytes."""
    path = folder / "pictures.bin"
    if not path.is_file():
        raise InputError(f"{path} is not there.")
    rows = np.frombuffer(path.read_bytes(), np.uint8).reshape(-1, 91)
    return Arrays(rows[:, 1:].reshape(-1, 6, 5, 3), rows[:, 0].astype(np.int64), user=np.array(["a", "b"] * 3))


def picture_bytes() -> bytes:
    """Six rows for :func:`pictures`, labels 0, 1, 2, 0, 1, 2."""
    rows = np.random.default_rng(0).integers(0, 256, (6, 91), dtype=np.uint8)
    rows[:, 0] = np.arange(6) % 3
    return rows.tobytes()


PICTURES = DatasetEntry(
    "pictures",
    "CC0",
    "made here",
    (3, 6, 5),
    6,
    3,
    "helpers.plugged:pictures",
    markers=("pictures.bin",),
    files=(File("pictures.zip", ("http://127.0.0.1:9/pictures.zip",)),),
)
