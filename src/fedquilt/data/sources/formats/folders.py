"""Image sets kept as one folder for each class. Classes are numbered in the order of their names.

Facts: the archives tiny-imagenet-200.zip (Stanford CS231n), EuroSAT.zip (Helber et al. 2019, RGB), dtd-r1.0.1.tar.gz
(Cimpoi et al. 2014) and NWPU-RESISC45.rar (Cheng et al. 2017).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from fedquilt.core.plain import Array
from fedquilt.data.npz import Arrays
from fedquilt.data.reading import Reading
from fedquilt.data.sources.formats.files import AGAIN, locate, text
from fedquilt.data.sources.formats.pictures import ENDINGS, decoded
from fedquilt.errors import InputError


def tiny_imagenet(folder: Path, size: int = 64) -> Arrays:
    """Tiny ImageNet: train/WNID/images/*.JPEG, 200 classes; the official validation part is the test set.

    (The official test part has no labels.)
    """
    train = locate(folder, "train")
    names = _names(train)
    files = [(path, label) for label, name in enumerate(names) for path in images_in(train / name / "images")]
    notes = locate(folder, "val/val_annotations.txt")
    test = [_annotated(notes, line, names) for line in text(notes).splitlines() if line.strip()]
    return Arrays(*loaded(files, size), *loaded(test, size), classes=len(names))


def eurosat(folder: Path, size: int = 64) -> Arrays:
    """EuroSAT (RGB): 2750/CLASS/*.jpg, 10 classes of land use. There is no official test set."""
    return _classes(locate(folder, "AnnualCrop").parent, size)


def resisc45(folder: Path, size: int = 64) -> Arrays:
    """NWPU-RESISC45: CLASS/*.jpg, 45 classes of aerial views. There is no official test set."""
    return _classes(locate(folder, "airplane").parent, size)


def dtd(folder: Path, size: int = 64) -> Arrays:
    """Describable Textures: images/CLASS/*.jpg, 47 classes, split 1 of 10 (train1 and val1 to train, test1 to test)."""
    images = locate(folder, "images")
    names = _names(images)
    parts = []
    for lists in (("train1", "val1"), ("test1",)):
        paths = [locate(folder, f"labels/{name}.txt") for name in lists]
        lines = [(path, line.strip()) for path in paths for line in text(path).splitlines() if line.strip()]
        parts.append(loaded([(images / line, _number(path, line, names)) for path, line in lines], size))
    return Arrays(*parts[0], *parts[1], classes=len(names), reading=Reading(tuple(names)))


def images_in(folder: Path) -> list[Path]:
    """The image files of a folder, by name. Other files, such as notes, do not count; hidden ones neither."""
    found = sorted(p for p in folder.iterdir() if _is_image(p)) if folder.is_dir() else []
    if not found:
        raise InputError(f"{folder} holds no images. Put some there ({', '.join(sorted(ENDINGS))}), or remove it.")
    return found


def has_images(folder: Path) -> bool:
    """Whether image files lie directly in this folder."""
    return any(_is_image(path) for path in folder.iterdir())


def subfolders(folder: Path) -> list[Path]:
    """The folders in a folder, by name, hidden ones left out."""
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith((".", "__")))


def loaded(files: Sequence[tuple[Path, int]], size: int) -> tuple[Array, Array]:
    """The images of a list of (file, label), and the labels."""
    return decoded([path for path, _ in files], size), np.array([label for _, label in files], np.int64)


def class_files(root: Path, names: Iterable[str]) -> list[tuple[Path, int]]:
    """Every image of the class folders below ``root``, with the place of its class among the names."""
    return [
        (path, label) for label, name in enumerate(names) if (root / name).is_dir() for path in images_in(root / name)
    ]


def _classes(root: Path, size: int) -> Arrays:
    names = _names(root)
    return Arrays(*loaded(class_files(root, names), size), classes=len(names), reading=Reading(tuple(names)))


def _names(root: Path) -> list[str]:
    names = [p.name for p in subfolders(root)]
    if not names:
        raise InputError(f"{root} has no class folders. Unpack the official archive there.")
    return names


def _annotated(notes: Path, line: str, names: Sequence[str]) -> tuple[Path, int]:
    name, _, rest = line.partition("\t")
    wnid = rest.partition("\t")[0].strip()
    if wnid not in names:
        raise InputError(f"{notes}: {line!r} names a class that is not in train. {AGAIN}.")
    return notes.parent / "images" / name, names.index(wnid)


def _number(path: Path, line: str, names: Sequence[str]) -> int:
    name = line.partition("/")[0]
    if name not in names:
        raise InputError(f"{path}: {line!r} names a class that has no folder. {AGAIN}.")
    return names.index(name)


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in ENDINGS and not path.name.startswith(".") and path.is_file()
