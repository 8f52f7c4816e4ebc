"""Where the files of a data set are: NAME.npz or the folder NAME below FEDQUILT_DATA, unpacked safely and once."""

from __future__ import annotations

import gzip
import importlib.util
import lzma
import os
import shutil
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, cast

from fedquilt.data.sources import cache
from fedquilt.data.sources.catalogue import DatasetEntry
from fedquilt.data.sources.download import by_hand
from fedquilt.errors import InputError

UNPACKED = "unpacked"
_DEPTH = 4  # folders inside folders: unpacked / archive / what the authors put inside
_TARS = (".tar.gz", ".tgz", ".tar")
_DAMAGED = (OSError, EOFError, zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, RuntimeError)


def located(folder: Path, markers: Sequence[str]) -> Path | None:
    """The shallowest folder, this one or one below, that holds one of the markers."""
    waiting = deque([(folder, 0)])
    while waiting:
        here, depth = waiting.popleft()
        if any((here / marker).exists() for marker in markers):
            return here
        if depth < _DEPTH and here.is_dir():
            with os.scandir(here) as inside:  # many thousand images may lie here
                names = sorted(e.name for e in inside if e.is_dir() and e.name[0] not in "._")
            waiting.extend((here / name, depth + 1) for name in names)
    return None


def archives(folder: Path) -> list[Path]:
    """The archives directly in a folder."""
    if not folder.is_dir():
        return []
    return [p for p in sorted(folder.iterdir()) if p.is_file() and _is_archive(p) and p.name[0] != "."]


def unpack_all(folder: Path, into: Path, markers: Sequence[str]) -> Path | None:
    """Unpack the archives of a folder, and those inside them, until the markers show up; where they are."""
    waiting = archives(folder)
    while waiting:
        made = unpack(waiting.pop(0), into)
        found = located(into, markers)
        if found is not None:
            return found
        waiting += [p for inner in (made, *(d for d in made.iterdir() if d.is_dir())) for p in archives(inner)]
    return None


def unpack(archive: Path, into: Path) -> Path:
    """Unpack one archive into a folder of its own below ``into``; whole or not at all, and only once.

    A folder that holds everything else is left out. Members that would land elsewhere, links and devices are refused.
    """
    target = into / archive.name.replace(".", "_")  # not the name of a file that a reader looks for
    if target.is_dir():
        return target
    into.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=".unpacking-", dir=into))
    try:
        for name, size, content in _members(archive):
            room = shutil.disk_usage(part).free * 9 // 10
            if size > room:
                raise OSError(f"{name!r} alone says it has {size:,} bytes, more than the disk has left")
            path = part / _safe(name, archive)
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as sink:
                _copy(content, sink, room)
        _only_folder(part).rename(target)
        target.chmod(0o755)
    except _DAMAGED as error:
        if not target.is_dir():  # else somebody else was faster
            raise InputError(
                f"{archive} cannot be unpacked: {error}. Download it again, or free some space."
            ) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return target


def _copy(content: IO[bytes], sink: IO[bytes], most: int) -> None:
    """Copy a file of unknown length, unless it would fill the disk."""
    while part := content.read(1 << 20):
        most -= len(part)
        if most < 0:
            raise OSError("it would fill the disk")
        sink.write(part)


def _only_folder(folder: Path) -> Path:
    """The folder in this one that holds everything else, or this one."""
    inside = list(folder.iterdir())
    return inside[0] if len(inside) == 1 and inside[0].is_dir() else folder


def _members(archive: Path) -> Iterator[tuple[str, int, IO[bytes]]]:
    """The regular files of an archive: names, sizes as told (0: not told), and bytes to read before the next one."""
    if archive.name.endswith(_TARS):
        with tarfile.open(archive) as tar:
            for member in tar:
                content = tar.extractfile(member) if member.isfile() else None
                if content is not None:
                    yield member.name, member.size, content
                elif not member.isdir():
                    raise InputError(f"{archive} holds {member.name!r}, which is a link or a device. It is rejected.")
    elif archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as packed:
            for entry in (e for e in packed.infolist() if not e.is_dir()):
                with packed.open(entry) as stream:
                    yield entry.filename, entry.file_size, stream
    else:
        with gzip.open(archive, "rb") as unzipped:
            yield archive.stem, 0, cast(IO[bytes], unzipped)


def _safe(name: str, archive: Path) -> PurePosixPath:
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or not path.parts or ":" in path.parts[0]:
        raise InputError(f"{archive} holds {name!r}, which would be written outside its folder. It is rejected.")
    return path


def _is_archive(path: Path) -> bool:
    return path.name.endswith((*_TARS, ".zip", ".gz"))


FOLDER = cache.DATA


@dataclass(frozen=True)
class DatasetPlace:
    """Where a data set is: an .npz, or a folder; ``packed`` when its archive has to be unpacked first."""

    path: Path
    packed: bool = False


def data_folder() -> Path | None:
    """The folder that FEDQUILT_DATA names."""
    chosen = os.environ.get(FOLDER)
    return Path(chosen) if chosen else None


def installed(package: str) -> bool:
    """Whether a package is here, without importing it."""
    try:
        return importlib.util.find_spec(package) is not None
    except ValueError:  # imported, but not from a file
        return package in sys.modules


def place(entry: DatasetEntry) -> DatasetPlace | None:
    """Where the files of a data set are, or None. Unpacks nothing."""
    root = data_folder()
    if root is None or entry.needs:
        return None
    folder = root / entry.place
    stored = [] if entry.npz is None else [root / f"{entry.name}.npz", folder / f"{entry.name}.npz"]
    if path := next(filter(Path.is_file, stored), None):
        return DatasetPlace(path)
    if entry.read is None or not folder.is_dir():
        return None
    for start in (folder, *_unpacked(entry)):
        found = located(start, entry.markers)
        if found is not None:
            return DatasetPlace(folder if entry.scattered else found)
    return DatasetPlace(folder, packed=True) if archives(folder) else None


def opened(entry: DatasetEntry, packed: DatasetPlace) -> DatasetPlace:
    """The same after unpacking; where the data folder is read-only, that goes to the cache."""
    tried = _unpacked(entry)
    into = next((folder for folder in tried if cache.made(folder)), None)
    if into is None:
        raise InputError(
            f"{packed.path} holds archives, but no folder can be written to unpack them: unpack them there."
        )
    found = unpack_all(packed.path, into, entry.markers)
    if found is None:
        seen = ", ".join(p.name for p in archives(packed.path))
        raise InputError(f"{packed.path} holds {seen}, but nothing of {entry.name} in it. {missing(entry)}")
    return DatasetPlace(packed.path if entry.scattered else found)


def missing(entry: DatasetEntry) -> str:
    """What to do about a data set that is not here."""
    if entry.needs:
        return f"Install it: {entry.install or entry.source}."
    root = data_folder()
    where = f"the folder {root} ({FOLDER})" if root else f"a folder, and set {FOLDER} to that folder"
    ways = [f"Put {entry.name}.npz with the keys {entry.keys} into {where}."] if entry.npz is not None else []
    if entry.downloadable:
        ways.append(f"Or download it: fedquilt datasets --download {entry.name}")
    if entry.hub is not None and entry.hub.image:
        ways.append(f"Or from Hugging Face ({entry.hub.id}): fedquilt datasets --download {entry.name} --via hf")
    if entry.files:
        ways.append("Or by hand. " + by_hand(entry, (root or Path(f"${FOLDER}")) / entry.place))
    return "\n".join(ways)


def _unpacked(entry: DatasetEntry) -> list[Path]:
    root = data_folder()
    inside = [root / entry.place / UNPACKED] if root is not None else []
    return inside + [folder / UNPACKED / entry.place for folder in cache.folders()]
