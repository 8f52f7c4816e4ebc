"""Image sets given as lists beside a tree of images.

Facts: github.com/zhmiao/OpenLongTailRecognition-OLTR (ImageNet-LT: "train/n01440764/n01440764_190.JPEG 0"; Liu et al.
2019) and google-research/federated_vision_datasets (iNaturalist-User-120k and -Geo: user_id, image_id, class; Hsu, Qi,
Brown 2020).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedquilt.data.npz import Arrays
from fedquilt.data.sources.formats.files import AGAIN, find, locate, records, text
from fedquilt.data.sources.formats.folders import loaded
from fedquilt.errors import InputError


def image_net_lt(folder: Path, size: int = 64) -> Arrays:
    """ImageNet-LT: ImageNet_LT_train.txt and ImageNet_LT_test.txt; image paths start at the folder of the lists."""
    train, test = (_listed(locate(folder, f"ImageNet_LT_{part}.txt")) for part in ("train", "test"))
    return Arrays(*loaded(train, size), *loaded(test, size), classes=1000)


def inaturalist(folder: Path, size: int = 64) -> Arrays:
    """iNaturalist-User-120k: federated_train_user_120k.csv and test.csv; ``user`` is the observer.

    Another federated_train*.csv, such as one of iNaturalist-Geo, is read when it is the only one. The images are those
    of iNaturalist 2017, IMAGE_ID.jpg at any depth below the folder.
    """
    train = _user_list(folder)
    rows = list(records(train, ("user_id", "image_id", "class")))
    tests = list(records(locate(folder, "test.csv"), ("image_id", "class")))
    places = {path.stem: path for path in sorted(Path(folder).rglob("*.jpg"))}
    pairs = [
        [(_place(places, i, folder), _label(c, train)) for i, c in part] for part in ([r[1:] for r in rows], tests)
    ]
    user = np.array([int(r[0]) if r[0].isdecimal() else r[0] for r in rows])
    classes = 1 + max(label for part in pairs for _, label in part)
    return Arrays(*loaded(pairs[0], size), *loaded(pairs[1], size), user=user, classes=classes)


def _user_list(folder: Path) -> Path:
    train = find(folder, "federated_train_user_120k.csv") or locate(folder, "federated_train*.csv")
    others = sorted(path.name for path in train.parent.glob("federated_train*.csv"))
    if len(others) > 1 and train.name != "federated_train_user_120k.csv":
        raise InputError(f"{train.parent} has several lists: {', '.join(others)}. Keep the one you want there.")
    return train


def _listed(path: Path) -> list[tuple[Path, int]]:
    found = []
    for number, line in enumerate(text(path).splitlines(), 1):
        name, _, label = line.rstrip().rpartition(" ")
        if not name or not label.isdecimal() or int(label) >= 1000:
            raise InputError(f"{path}: line {number} is {line!r:.80}, not a path and a label from 0 to 999. {AGAIN}.")
        found.append((path.parent / name, int(label)))
    if not found:
        raise InputError(f"{path} is empty. {AGAIN}.")
    return found


def _place(places: dict[str, Path], image: str, folder: Path) -> Path:
    if image not in places:
        raise InputError(f"{folder} has no {image}.jpg. Unpack the images of iNaturalist 2017 (train and val) there.")
    return places[image]


def _label(value: str, path: Path) -> int:
    if not value.isdecimal():
        raise InputError(f"{path}: class {value!r} is not a whole number. {AGAIN}.")
    return int(value)
