"""Downloading official files: into a temporary file, checked, then renamed; and checking files that are here."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedquilt.data.sources.catalogue import DatasetEntry, File
from fedquilt.errors import DownloadError, InputError

Report = Callable[[str, int, int | None], None]
TIMEOUT = 30.0
_CHUNK = 1 << 18
_NETWORK = (urllib.error.URLError, http.client.HTTPException, OSError)


@dataclass(frozen=True)
class Checked:
    """What a check of one file found; ``ok`` is None when there is nothing to compare with."""

    file: str
    state: str
    ok: bool | None


def download(entry: DatasetEntry, folder: Path, report: Report | None = None) -> list[Path]:
    """Every official file that is not here and whole; where they are. Nothing half-written is left behind."""
    if not entry.downloadable:
        raise InputError(f"{entry.name} cannot be downloaded by a program. {entry.by_hand or by_hand(entry, folder)}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DownloadError(f"Cannot make the folder {folder}: {error.strerror}. Choose another one.") from error
    wanted = [f for f in entry.files if f.urls]
    for file in wanted:
        if not (folder / file.name).is_file() or check(folder, file).ok is False:
            _one(file, folder, entry, report or _silent)
    return [folder / file.name for file in wanted]


def check(folder: Path, file: File) -> Checked:
    """Compare one file with its published size and checksum."""
    paths = sorted(folder.glob(file.name)) if "*" in file.name else [folder / file.name]
    if not paths or not paths[0].is_file():
        return Checked(file.name, "optional, not here" if file.optional else "not here", None)
    size = sum(p.stat().st_size for p in paths)
    if file.size is not None and size != file.size:
        return Checked(file.name, f"wrong: {size} bytes, published are {file.size}", False)
    if not file.checksum:
        known = "size as published, checksum not known" if file.size is not None else "size and checksum not known"
        return Checked(file.name, known, None)
    kind, _, published = file.checksum.partition(":")
    found = _checksum(paths[0], kind)
    if found != published:
        return Checked(file.name, f"wrong: {kind} {found}, published is {published}", False)
    return Checked(file.name, f"{kind} as published", True)


def _checksum(path: Path, kind: str) -> str:
    digest = hashlib.new(kind, usedforsecurity=False)
    with path.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def by_hand(entry: DatasetEntry, folder: Path) -> str:
    """What to put where, file by file, for a person."""
    lines = []
    for file in entry.files:
        source = f" from {file.urls[0]}" if file.urls else ""
        lines.append(f"  {file.name}{source}{' (optional)' if file.optional else ''}")
    said = f"Put these into {folder}:\n" + "\n".join(lines) if lines else ""
    return f"{said}\n{entry.by_hand}".strip()


def _one(file: File, folder: Path, entry: DatasetEntry, report: Report) -> None:
    """Try the addresses in turn."""
    problems = []
    for url in file.urls:
        try:
            return _from(url, file, folder, report)
        except _NETWORK as error:
            problems.append(f"  {url}: {_reason(error)}")
    raise DownloadError(
        f"{file.name} of {entry.name} could not be downloaded:\n" + "\n".join(problems) + "\nCheck the connection and "
        f"try again, or download manually. {by_hand(entry, folder)}"
    )


def _from(url: str, file: File, folder: Path, report: Report) -> None:
    if not url.startswith(("http://", "https://")):
        raise OSError("only http and https addresses are used")
    asked = urllib.request.Request(url, headers={"User-Agent": "fedquilt", "Accept-Encoding": "identity"})
    handle, part = tempfile.mkstemp(prefix=f".{file.name}.", suffix=".part", dir=folder)
    try:
        with os.fdopen(handle, "wb") as sink, urllib.request.urlopen(asked, timeout=TIMEOUT) as answer:
            told = answer.headers.get("Content-Length")
            total = int(told) if told and told.isdigit() else file.size
            done = 0
            for chunk in _chunks(answer):
                sink.write(chunk)
                done += len(chunk)
                report(file.name, done, total)
            if total is not None and done != total:
                raise OSError(f"the body ended after {done} of {total} bytes")
            sink.flush()
            os.fsync(sink.fileno())
        found = check(folder, File(Path(part).name, size=file.size, checksum=file.checksum))
        if found.ok is False:
            raise OSError(f"{found.state}; it was thrown away")
        os.chmod(part, 0o644)
        os.replace(part, folder / file.name)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)


def _chunks(answer: Any) -> Iterator[bytes]:
    """The body, as far as it comes."""
    try:
        while chunk := answer.read(_CHUNK):
            yield chunk
    except http.client.IncompleteRead as cut:
        yield cut.partial


def _reason(error: BaseException) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"the server answers {error.code} {error.reason}"
    inner = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
    return str(getattr(inner, "strerror", None) or inner)


def _silent(name: str, done: int, total: int | None) -> None:
    del name, done, total
