"""Images in folders named after their classes, once for all or once for each client."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedquilt.data.npz import Arrays, unlabelled
from fedquilt.data.reading import Reading
from fedquilt.data.sources.formats.folders import class_files, has_images, images_in, loaded, subfolders
from fedquilt.errors import InputError

_LAYOUTS = "PATH/CLASS/*.png, PATH/CLIENT/CLASS/*.png, or PATH/train/CLASS/*.png and PATH/test/CLASS/*.png"
_TRAIN, _TEST = ("train", "val", "valid"), "test"


def of_folder(path: Path, size: int = 64) -> Arrays:
    """Class folders of images, at a common size; classes are numbered in the order of their names.

    Images that lie in the folder itself have no labels. Else three layouts: one folder for each class; the same in a
    folder for each client, whose name becomes ``user``; or the same in folders called train and test (val and valid are
    added to train), of which test belongs to no client.
    """
    if not path.is_dir():
        raise InputError(f"There is no folder {path}. Check the path; relative ones start at {Path.cwd()}.")
    tops = subfolders(path)
    if not tops:
        return _without_labels(path, size)
    if flat := [top.name for top in tops if has_images(top)]:
        return _classes(path, tops, flat, size)
    names = sorted({inner.name for top in tops for inner in subfolders(top)})
    if not names:
        raise InputError(f"{path}: there are no images in its folders. Lay them out as {_LAYOUTS}.")
    parts = {top.name for top in tops}
    if "train" in parts and parts <= {*_TRAIN, _TEST}:
        return _parts(path, names, size)
    return _clients(path, tops, names, size)


def _without_labels(path: Path, size: int) -> Arrays:
    if not has_images(path):
        raise InputError(f"{path} has no folders in it. Lay images out as {_LAYOUTS}.")
    return unlabelled(loaded([(file, 0) for file in images_in(path)], size)[0], None, str(path))


def _classes(path: Path, tops: list[Path], flat: list[str], size: int) -> Arrays:
    if len(flat) < len(tops):
        odd = next(top.name for top in tops if top.name not in flat)
        raise InputError(f"{path}: {flat[0]} holds images, {odd} does not. Lay images out as {_LAYOUTS}.")
    reading = Reading(tuple(flat))
    return Arrays(*loaded(class_files(path, flat), size), classes=len(flat), name=str(path), reading=reading)


def _parts(path: Path, names: list[str], size: int) -> Arrays:
    train = [pair for part in _TRAIN for pair in class_files(path / part, names)]
    test = class_files(path / _TEST, names)
    x_test, y_test = loaded(test, size) if test else (None, None)
    x, y = loaded(train, size)
    return Arrays(x, y, x_test, y_test, classes=len(names), name=str(path), reading=Reading(tuple(names)))


def _clients(path: Path, tops: list[Path], names: list[str], size: int) -> Arrays:
    own = [(top.name, class_files(top, names)) for top in tops]
    x, y = loaded([pair for _, pairs in own for pair in pairs], size)
    user = np.repeat([name for name, _ in own], [len(pairs) for _, pairs in own])
    return Arrays(x, y, user=user, classes=len(names), name=str(path), reading=Reading(tuple(names)))
