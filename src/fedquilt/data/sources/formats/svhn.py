"""SVHN, cropped digits (format 2): MATLAB files with X [32, 32, 3, n] and y [n, 1], in which 10 stands for the digit 0.

Facts: ufldl.stanford.edu/housenumbers (Netzer et al. 2011).
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedquilt.core.memory import check_bytes
from fedquilt.core.plain import Array
from fedquilt.data.npz import Arrays
from fedquilt.data.sources.formats.files import AGAIN, content, locate
from fedquilt.errors import InputError

_WIDTHS = {"uint8": 1, "int8": 1, "logical": 1, "char": 2, "uint16": 2, "int16": 2, "single": 4}  # bytes; others 8


def svhn(folder: Path) -> Arrays:
    """SVHN: train_32x32.mat and test_32x32.mat; images [n, 32, 32, 3], labels the digits."""
    train, test = (_part(locate(folder, f"{part}_32x32.mat")) for part in ("train", "test"))
    return Arrays(*train, *test, classes=10)


def _part(path: Path) -> tuple[Array, Array]:
    from scipy.io import loadmat, whosmat

    raw = io.BytesIO(content(path))
    try:
        check_bytes(sum(math.prod(shape) * _WIDTHS.get(kind, 8) for _, shape, kind in whosmat(raw)), str(path))
        raw.seek(0)
        found = loadmat(raw, variable_names=["X", "y"])
    except InputError:
        raise
    except Exception as error:  # scipy raises what its parser happens to meet: ValueError, TypeError, zlib.error, ...
        raise InputError(f"{path} cannot be read as a MATLAB file: {error}. {AGAIN}.") from error
    if not {"X", "y"} <= found.keys():
        raise InputError(f"{path} has no X and y. Take the cropped digits (format 2), {path.name}.")
    return _checked(path, found)


def _checked(path: Path, found: Mapping[str, Array]) -> tuple[Array, Array]:
    """Images with their channels first, and digits."""
    x, y = found["X"], found["y"].reshape(-1)
    if x.dtype != np.uint8 or x.shape[:3] != (32, 32, 3) or x.shape[3:] != y.shape:
        raise InputError(
            f"{path}: X is {x.dtype} {x.shape} and y {y.shape}; expected uint8 (32, 32, 3, n) and n labels."
        )
    if not len(y) or y.dtype.kind not in "iuf" or (y != np.floor(y)).any():
        raise InputError(f"{path}: y holds {len(y)} values of type {y.dtype}; expected whole numbers. {AGAIN}.")
    if not 1 <= y.min() <= y.max() <= 10:
        raise InputError(f"{path} has labels from {y.min()} to {y.max()}, not 1 to 10. {AGAIN}.")
    return np.ascontiguousarray(x.transpose(3, 0, 1, 2)), y.astype(np.int64) % 10
