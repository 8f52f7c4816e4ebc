"""Files that are written whole or not at all, and errors that say what to do."""

from __future__ import annotations

import errno
import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from fedquilt.core.plain import JSON
from fedquilt.errors import StorageError

if TYPE_CHECKING:
    from fedquilt.core.table import ClientId


_TRIES = 5  # to replace a file


@contextmanager
def storage(path: Path) -> Iterator[None]:
    """Turn the system's complaints about a folder into one clear error."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        advice = {
            errno.ENOSPC: "The disk is full: free some space",
            errno.EFBIG: "The file may not grow further: raise the limit or free some space",
            errno.EDQUOT: "The quota is used up: free some space",
            errno.EROFS: "The file system is read-only: choose another output.folder",
            errno.EACCES: "No permission to write there: choose another output.folder",
            errno.EPERM: "No permission to write there: choose another output.folder",
        }.get(error.errno or 0, "Check the folder")
        begun = False
        with suppress(OSError):  # for a name that is too long there is no answer either
            begun = (path / "config.toml").exists()
        hope = f" Snapshots written before are intact; go on with 'fedquilt resume {path}'." if begun else ""
        raise StorageError(f"Cannot write below '{path}': {error.strerror or error}. {advice}.{hope}") from error


def write_atomic(path: Path, content: bytes, run: Path | None = None) -> None:
    """Write, fsync, rename: a reader finds the old file or the new one, never half of one.

    ``run`` is the folder of the run that errors name, if it is not the file's own.
    """
    with storage(run or path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(path.name + ".part")
        try:
            with part.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            _replace(part, path)
            flush(path.parent)
        except OSError:
            part.unlink(missing_ok=True)
            raise


def _replace(part: Path, path: Path) -> None:
    """Put a file in another one's place. Windows refuses while somebody reads the old one: it is tried again then."""
    for _ in range(_TRIES):
        try:
            part.replace(path)
            return
        except PermissionError:
            time.sleep(0.02)
    part.replace(path)


def to_json(value: object, indent: int | None = None) -> str:
    """JSON that every reader takes: numbers that are not finite become null."""
    try:
        return json.dumps(value, indent=indent, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), indent=indent, allow_nan=False)


def _finite(value: JSON) -> JSON:
    if isinstance(value, Mapping):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def flush(path: Path) -> None:
    """Bring a file, or the names in a folder, to the disk; Windows looks after names by itself."""
    folder = path.is_dir()
    if folder and not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(path, os.O_RDONLY if folder else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_name(client: ClientId) -> str:
    """A client's id as part of a file's name."""
    if isinstance(client, int):
        return str(client)
    return json.dumps(client).replace("%", "%25").replace("/", "%2F").strip('"')
