"""CIFAR-10 and CIFAR-100 in their binary version: records of label bytes and 3 x 32 x 32 pixels, red, green, blue.

Facts: www.cs.toronto.edu/~kriz/cifar.html (binary version; Krizhevsky 2009).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedquilt.core.plain import Array
from fedquilt.data.npz import Arrays
from fedquilt.data.sources.formats.files import AGAIN, content, locate
from fedquilt.errors import InputError

_PIXELS = 3 * 32 * 32


def cifar10(folder: Path) -> Arrays:
    """CIFAR-10: data_batch_1.bin to data_batch_5.bin and test_batch.bin, records of 1 + 3072 bytes."""
    batches = [_records(locate(folder, f"data_batch_{i}.bin"), 1, 10) for i in range(1, 6)]
    x, y = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    return Arrays(x, y, *_records(locate(folder, "test_batch.bin"), 1, 10), classes=10)


def cifar100(folder: Path) -> Arrays:
    """CIFAR-100: train.bin and test.bin, records of coarse label, fine label and 3072 bytes; the fine labels."""
    train, test = (_records(locate(folder, f"{part}.bin"), 2, 100) for part in ("train", "test"))
    return Arrays(*train, *test, classes=100)


def _records(path: Path, labels: int, classes: int) -> tuple[Array, Array]:
    """Images [n, 3, 32, 32] and the last label byte of each record."""
    data, size = content(path), labels + _PIXELS
    if not data or len(data) % size:
        raise InputError(f"{path} has {len(data)} bytes, not a multiple of {size} (one record). {AGAIN}.")
    rows = np.frombuffer(data, np.uint8).reshape(-1, size)
    y = rows[:, labels - 1].astype(np.int64)
    if y.max() >= classes:
        raise InputError(f"{path} has the label {y.max()}, but there are {classes} classes. {AGAIN}.")
    return np.ascontiguousarray(rows[:, labels:]).reshape(-1, 3, 32, 32), y
