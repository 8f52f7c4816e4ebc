"""The IDX format of MNIST and its relatives: a big-endian header (type, number of axes, their lengths), then numbers.

Facts: yann.lecun.com/exdb/mnist (the format), github.com/facebookresearch/qmnist (extended labels: column 0 the digit,
column 2 the NIST writer), and Cohen et al. 2017, arXiv:1702.05373 (EMNIST, whose images are stored transposed).
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

from fedquilt.core.plain import Array
from fedquilt.data.npz import Arrays
from fedquilt.data.sources.formats.files import AGAIN, content, find, locate, same_length
from fedquilt.errors import InputError

_TYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


def mnist(folder: Path) -> Arrays:
    """MNIST; with qmnist-train-labels-idx2-int beside it, ``user`` is the writer of each digit."""
    arrays = _four(folder, "train-{}", "t10k-{}", classes=10)
    writers = find(folder, "qmnist-train-labels-idx2-int")
    if writers is None:
        return arrays
    extended = read(writers, 2)
    same_length(digits=(Path(folder) / "train-labels-idx1-ubyte", len(arrays.y)), writers=(writers, len(extended)))
    if extended.shape[1] != 8 or not np.array_equal(extended[:, 0], arrays.y):
        raise InputError(f"{writers} does not fit the digits of MNIST: it is for other labels. {AGAIN}.")
    return Arrays(arrays.x, arrays.y, arrays.x_test, arrays.y_test, user=extended[:, 2], classes=10)


def fashion_mnist(folder: Path) -> Arrays:
    """Fashion-MNIST: the file names of MNIST."""
    return _four(folder, "train-{}", "t10k-{}", classes=10)


def emnist_balanced(folder: Path) -> Arrays:
    """EMNIST Balanced: 47 classes."""
    return _emnist(folder, "balanced", 47)


def emnist_byclass(folder: Path) -> Arrays:
    """EMNIST ByClass: 62 classes, digits, upper case and lower case."""
    return _emnist(folder, "byclass", 62)


def emnist_letters(folder: Path) -> Arrays:
    """EMNIST Letters: 26 classes. The file counts them from 1; here they count from 0."""
    return _emnist(folder, "letters", 26, first=1)


def emnist_digits(folder: Path) -> Arrays:
    """EMNIST Digits: 10 classes."""
    return _emnist(folder, "digits", 10)


def _emnist(folder: Path, part: str, classes: int, first: int = 0) -> Arrays:
    found = _four(folder, f"emnist-{part}-train-{{}}", f"emnist-{part}-test-{{}}", classes, first)
    assert found.x_test is not None
    upright, test = (np.ascontiguousarray(x.swapaxes(1, 2)) for x in (found.x, found.x_test))
    return Arrays(upright, found.y, test, found.y_test, classes=classes)


def _four(folder: Path, train: str, test: str, classes: int, first: int = 0) -> Arrays:
    parts = [_part(folder, pattern, classes, first) for pattern in (train, test)]
    return Arrays(*parts[0], *parts[1], classes=classes)


def _part(folder: Path, pattern: str, classes: int, first: int) -> tuple[Array, Array]:
    images, labels = (locate(folder, pattern.format(k)) for k in ("images-idx3-ubyte", "labels-idx1-ubyte"))
    x, raw = read(images, 3), read(labels, 1)
    for path, found in ((images, x), (labels, raw)):
        if found.dtype != np.uint8:
            raise InputError(f"{path} holds {found.dtype}, not bytes. {AGAIN}.")
    y = raw.astype(np.int64) - first
    same_length(images=(images, len(x)), labels=(labels, len(y)))
    if x.shape[1:] != (28, 28):
        raise InputError(f"{images} holds images of {x.shape[1:]}, not of (28, 28). {AGAIN}.")
    if len(y) and not 0 <= y.min() <= y.max() < classes:
        low, high = y.min() + first, y.max() + first
        raise InputError(f"{labels} has labels from {low} to {high}, not {first} to {first + classes - 1}. {AGAIN}.")
    return x, y


def read(path: Path, axes: int) -> Array:
    """The array of an IDX file, which must have this many axes; numbers in the byte order of this machine."""
    data = content(path)
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in _TYPES or data[3] != axes:
        raise InputError(
            f"{path} does not begin as an IDX file with {axes} axes (its first bytes are {data[:4].hex(' ')}). {AGAIN}."
        )
    head = 4 + 4 * axes
    if len(data) < head:
        raise InputError(f"{path} ends within its header, after {len(data)} bytes. {AGAIN}.")
    shape = struct.unpack(f">{axes}I", data[4:head])
    kind = np.dtype(_TYPES[data[2]])
    wanted = head + kind.itemsize * int(np.prod(shape, dtype=object))
    if len(data) != wanted:
        raise InputError(f"{path} has {len(data)} bytes; its header ({shape}) asks for {wanted}. {AGAIN}.")
    return np.frombuffer(data, kind, offset=head).reshape(shape).astype(kind.newbyteorder("="))
