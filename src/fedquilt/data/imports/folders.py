"""Images in folders named after their classes, once for all or once for each client."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedquilt.core.plain import Array
from fedquilt.data.lazy.images import decoded_on_disk
from fedquilt.data.npz import Arrays, unlabelled
from fedquilt.data.reading import Reading
from fedquilt.data.sources.cache import CACHE
from fedquilt.data.sources.formats.folders import class_files, has_images, images_in, loaded, subfolders
from fedquilt.data.sources.formats.pictures import check_size
from fedquilt.errors import InputError

_LAYOUTS = "PATH/CLASS/*.png, PATH/CLIENT/CLASS/*.png, or PATH/train/CLASS/*.png and PATH/test/CLASS/*.png"
_TRAIN, _TEST = ("train", "val", "valid"), "test"


Read = Callable[[Sequence[tuple[Path, int]], Path], tuple[Array, Array]]
IN_MEMORY = 2**28  # bytes of decoded images up to which they are kept in memory unless asked otherwise


def of_folder(path: Path, size: int = 64, lazy: bool | None = None) -> Arrays:
    """Class folders of images, at a common size; classes are numbered in the order of their names.

    Images that lie in the folder itself have no labels. Else three layouts: one folder for each class; the same in a
    folder for each client, whose name becomes ``user``; or the same in folders called train and test (val and valid are
    added to train), of which test belongs to no client.

    With ``lazy``, the images are decoded once onto disk, and read from there when they are asked for; by default if
    they would take more than 256 MB.
    """
    check_size(size)
    read = partial(_read, size, lazy)
    if not path.is_dir():
        raise InputError(f"There is no folder {path}. Check the path; relative ones start at {Path.cwd()}.")
    tops = subfolders(path)
    if not tops:
        return _without_labels(path, read)
    if flat := [top.name for top in tops if has_images(top)]:
        return _classes(path, tops, flat, read)
    names = sorted({inner.name for top in tops for inner in subfolders(top)})
    if not names:
        raise InputError(f"{path}: there are no images in its folders. Lay them out as {_LAYOUTS}.")
    parts = {top.name for top in tops}
    if "train" in parts and parts <= {*_TRAIN, _TEST}:
        return _parts(path, names, read)
    return _clients(path, tops, names, read)


def _read(size: int, lazy: bool | None, files: Sequence[tuple[Path, int]], root: Path) -> tuple[Array, Array]:
    """The images of a list of (file, label), and the labels."""
    if lazy or (lazy is None and 3 * size * size * len(files) > IN_MEMORY):
        rows: Any = decoded_on_disk([path for path, _ in files], size, root)
        if rows is not None:
            return rows, np.array([label for _, label in files], np.int64)
        if lazy:
            raise InputError(f"There is no folder for decoded images. Name one in the environment variable {CACHE}.")
    return loaded(files, size)


def _without_labels(path: Path, read: Read) -> Arrays:
    if not has_images(path):
        raise InputError(f"{path} has no folders in it. Lay images out as {_LAYOUTS}.")
    return unlabelled(read([(file, 0) for file in images_in(path)], path)[0], None, str(path))


def _classes(path: Path, tops: list[Path], flat: list[str], read: Read) -> Arrays:
    if len(flat) < len(tops):
        odd = next(top.name for top in tops if top.name not in flat)
        raise InputError(f"{path}: {flat[0]} holds images, {odd} does not. Lay images out as {_LAYOUTS}.")
    reading = Reading(tuple(flat))
    return Arrays(*read(class_files(path, flat), path), classes=len(flat), name=str(path), reading=reading)


def _parts(path: Path, names: list[str], read: Read) -> Arrays:
    train = [pair for part in _TRAIN for pair in class_files(path / part, names)]
    test = class_files(path / _TEST, names)
    x_test, y_test = read(test, path) if test else (None, None)
    x, y = read(train, path)
    return Arrays(x, y, x_test, y_test, classes=len(names), name=str(path), reading=Reading(tuple(names)))


def _clients(path: Path, tops: list[Path], names: list[str], read: Read) -> Arrays:
    own = [(top.name, class_files(top, names)) for top in tops]
    x, y = read([pair for _, pairs in own for pair in pairs], path)
    user = np.repeat([name for name, _ in own], [len(pairs) for _, pairs in own])
    return Arrays(x, y, user=user, classes=len(names), name=str(path), reading=Reading(tuple(names)))
