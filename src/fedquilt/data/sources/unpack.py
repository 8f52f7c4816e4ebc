"""Archives unpacked safely and once, and the folder inside that holds the files."""

from __future__ import annotations

import gzip
import lzma
import os
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, cast

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
                    raise InputError(f"{archive} holds {member.name!r}, which is a link or a device. It is refused.")
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
        raise InputError(f"{archive} holds {name!r}, which would be written outside its folder. It is refused.")
    return path


def _is_archive(path: Path) -> bool:
    return path.name.endswith((*_TARS, ".zip", ".gz"))
