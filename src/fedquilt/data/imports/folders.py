"""Images in folders named after their classes, once for all or once for each client.

Large ones are decoded once into one file of bytes, which several processes share and which is read row by row: a folder
for each list of files and size, beside the other decoded data sets (:mod:`fedquilt.data.sources.cache`). Its name tells
of the files' names, sizes and times, so that a changed folder of images is decoded anew.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import tempfile
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedquilt.core.plain import Array
from fedquilt.data.lazy.files import FileRows
from fedquilt.data.npz import Arrays, unlabelled
from fedquilt.data.reading import Reading
from fedquilt.data.sources import cache
from fedquilt.data.sources.cache import CACHE
from fedquilt.data.sources.formats import pictures
from fedquilt.data.sources.formats.folders import class_files, has_images, images_in, loaded, subfolders
from fedquilt.data.sources.formats.pictures import check_size
from fedquilt.errors import InputError
from fedquilt.terminal import counted

_FORMAT = 1  # of these files, and of how images are decoded
_LOOKED_AT = 16  # rows that are compared with their checksums when a file is opened; others when they are first read


def decoded_on_disk(paths: Sequence[Path], size: int, root: Path) -> FileRows | None:
    """The images as :func:`fedquilt.data.sources.formats.pictures.decoded` gives them, but on disk; None where no
    folder for them can be written."""
    name, stamp = _names(paths, size, root)
    shape = (len(paths), 3, size, size)
    for folder in cache.folders():
        found = _opened(folder / f"{name}-{stamp}", shape)
        if found is not None:
            return found
    target = cache.writable()
    if target is None:
        return None
    with _alone(target / f".lock-{name}"):
        there = target / f"{name}-{stamp}"
        found = _opened(there, shape)  # somebody else may have made it meanwhile
        if found is None:
            _make(paths, shape, target, there)
            _forget(target, name, there)
            found = _opened(there, shape)
        if found is None:
            raise InputError(f"{there} was written and cannot be read. Is the disk healthy?")
        return found


def _names(paths: Sequence[Path], size: int, root: Path) -> tuple[str, str]:
    """The name of the images, which stays when they change, and their stamp, which does not."""
    files = [(path.relative_to(root).as_posix(), path.stat()) for path in paths]
    facts = [(name, stat.st_size, stat.st_mtime_ns) for name, stat in files]
    parts = sorted({name.partition("/")[0] for name, _ in files})
    return f"images-{_print([str(root.resolve()), parts, size])}", _print([_FORMAT, size, facts])


def _print(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def _opened(folder: Path, shape: tuple[int, ...]) -> FileRows | None:
    """The rows that are kept here; None if they are not there or not whole."""
    rows, sums = folder / "x.bin", folder / "sums.npy"
    try:
        facts = json.loads((folder / "facts.json").read_text())
        whole = rows.stat().st_size == math.prod(shape) and zlib.crc32(sums.read_bytes()) == facts["sums"]
        if facts["shape"] != list(shape) or not whole:
            return None
        found = FileRows(str(rows.resolve()), 0, shape, "|u1", sums=str(sums.resolve()))
        found.rows(np.linspace(0, shape[0] - 1, min(shape[0], _LOOKED_AT)).astype(np.int64))
    except (OSError, ValueError, KeyError, TypeError, InputError):
        return None
    return found


def _make(paths: Sequence[Path], shape: tuple[int, ...], folder: Path, target: Path) -> None:
    """Decode into a folder beside, then rename it."""
    need, free = math.prod(shape), shutil.disk_usage(folder).free
    if need > 0.95 * free:
        raise InputError(
            f"{len(paths):,} images of size {shape[2]} take {need / 1e9:,.1f} GB in {folder}, where "
            f"{free / 1e9:,.1f} GB are free. Make room, name another folder in the environment variable "
            f"{cache.CACHE}, or use a smaller size."
        )
    part = Path(tempfile.mkdtemp(prefix=".part-", dir=folder))
    try:
        sums = np.zeros(shape[0], np.uint32)
        with (part / "x.bin").open("wb") as file:
            for place, image in enumerate(counted(_images(paths, shape[2]), len(paths), "decoding images")):
                sums[place] = zlib.crc32(image.data)
                file.write(image.data)
        np.save(part / "sums.npy", sums)
        facts = {"shape": list(shape), "sums": zlib.crc32((part / "sums.npy").read_bytes())}
        (part / "facts.json").write_text(json.dumps(facts))
        part.chmod(0o755)
        shutil.rmtree(target, ignore_errors=True)
        part.rename(target)
    except OSError as error:
        raise InputError(f"The images cannot be written to {folder}: {error.strerror}.") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _images(paths: Iterable[Path], size: int) -> Iterator[Array]:
    """The images in order; threads decode a few ahead, and no more than those are in memory."""
    threads = min(8, os.cpu_count() or 1)
    with ThreadPoolExecutor(threads) as pool:
        ahead: deque[Future[Array]] = deque()
        for path in paths:
            ahead.append(pool.submit(pictures.decoded_one, path, size))
            if len(ahead) > 4 * threads:
                yield np.ascontiguousarray(ahead.popleft().result())
        while ahead:
            yield np.ascontiguousarray(ahead.popleft().result())


def _forget(folder: Path, name: str, but: Path) -> None:
    """Remove what was decoded of the same images before they changed; who reads it has it mapped."""
    for old in folder.glob(f"{name}-{'[0-9a-f]' * 16}"):
        if old != but:
            shutil.rmtree(old, ignore_errors=True)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Processes that want to make the same images wait for the first one."""
    try:
        import fcntl
    except ImportError:  # Windows: both make them, and the later one wins
        yield
        return
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


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
