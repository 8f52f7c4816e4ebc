"""The folder of a run: atomic files, logs that resume, snapshots that can be trusted."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from fedquilt.core.errors import FrameError, SnapshotError, StorageError
from fedquilt.core.record import pack, record, unpack
from fedquilt.core.table import ClientId

LOGS = ("metrics/rounds.jsonl", "metrics/clients.jsonl", "metrics/visits.jsonl", "ledger.jsonl")
KEPT = 2


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
            part.replace(path)
            _sync_folder(path.parent)
        except OSError:
            part.unlink(missing_ok=True)
            raise


def to_json(value: Any, indent: int | None = None) -> str:
    """JSON that every reader takes: numbers that are not finite become null."""
    try:
        return json.dumps(value, indent=indent, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@record
class SnapshotRecord:
    """All state of a run between rounds, and how long its logs were."""

    identity: str
    data: str
    done: int
    state: Any
    slots: dict[Any, Any]
    progress: dict[str, Any]
    logs: dict[str, int]


class FolderSlots:
    """Clients' states as files, one per client and version, so that a snapshot costs what changed since the last.

    A new state is written beside the old one; the old file goes when no kept snapshot needs it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now: dict[ClientId, tuple[str, str]] = {}  # client -> (file, sha256)
        self._fresh: set[str] = set()
        self._needed: list[set[str]] = []

    def get(self, client: ClientId) -> bytes | None:
        """The client's frame, checked."""
        entry = self.now.get(client)
        if entry is None:
            return None
        try:
            frame = (self.folder / entry[0]).read_bytes()
        except OSError as error:
            raise SnapshotError(f"The state of client {client!r} cannot be read: {error}.") from error
        if hashlib.sha256(frame).hexdigest() != entry[1]:
            raise SnapshotError(f"The state of client {client!r} in '{self.folder / entry[0]}' is damaged.")
        return frame

    def put(self, client: ClientId, frame: bytes) -> None:
        """Keep a new frame."""
        token = hashlib.blake2b(repr(client).encode(), digest_size=8).hexdigest()
        digest = hashlib.sha256(frame).hexdigest()
        name = f"{token[:2]}/{token}.{digest[:16]}.safetensors"
        old = self.now.get(client)
        if old is not None and old[0] == name:
            return
        path = self.folder / name
        with storage(self.folder.parent):
            if not any(name in needed for needed in self._needed):  # a file that a snapshot relies on is never touched
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(frame)
            if old is not None and old[0] in self._fresh and not any(old[0] in needed for needed in self._needed):
                self._drop(old[0])
        self.now[client] = (name, digest)
        self._fresh.add(name)

    def digests(self) -> Mapping[ClientId, str]:
        """The sha256 of every frame kept."""
        return {client: digest for client, (_, digest) in self.now.items()}

    def secure(self) -> None:
        """Make sure that what was put is on the disk."""
        with storage(self.folder.parent):
            for name in self._fresh:
                descriptor = os.open(self.folder / name, os.O_RDONLY)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)

    def mark(self) -> None:
        """A snapshot now relies on the present files; those that only older snapshots needed may go."""
        self._needed.append({name for name, _ in self.now.values()})
        self._fresh.clear()
        while len(self._needed) > KEPT:
            gone = self._needed.pop(0)
            for name in gone.difference(*self._needed):
                self._drop(name)

    def restore(self, now: Mapping[ClientId, tuple[str, str]], older: Sequence[set[str]] = ()) -> None:
        """Go back to the files of a snapshot, and remove all others but those that ``older`` snapshots rely on."""
        self.now = {c: (str(n), str(d)) for c, (n, d) in now.items()}
        self._needed = [*older, {name for name, _ in self.now.values()}]
        self._fresh.clear()
        keep = set().union(*self._needed)
        for path in self.folder.glob("*/*.safetensors"):
            if f"{path.parent.name}/{path.name}" not in keep:
                path.unlink(missing_ok=True)

    def verify(self, now: Mapping[ClientId, tuple[str, str]]) -> None:
        """Raise unless every file of a snapshot is there and whole."""
        for client, (name, digest) in now.items():
            try:
                whole = hashlib.sha256((self.folder / name).read_bytes()).hexdigest() == digest
            except OSError:
                whole = False
            if not whole:
                raise SnapshotError(f"the state of client {client!r} is missing or damaged")

    def _drop(self, name: str) -> None:
        (self.folder / name).unlink(missing_ok=True)
        self._fresh.discard(name)


class RunFolder:
    """Reads and writes one run's folder; only one process at a time may hold it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.slots = FolderSlots(path / "clients")
        self._logs: dict[str, IO[str]] = {}
        self._lock: IO[str] | None = None

    def open(self) -> None:
        """Make the folder and take hold of it."""
        with storage(self.path):
            (self.path / "metrics").mkdir(parents=True, exist_ok=True)
            (self.path / "snapshots").mkdir(exist_ok=True)
            lock = (self.path / ".lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.close()
            raise StorageError(f"Another process is running '{self.path}'. Wait for it, or stop it first.") from error
        self._lock = lock

    def close(self) -> None:
        """Let go of the folder."""
        for file in self._logs.values():
            with suppress(OSError):  # what a full disk did not take was complained about when it was written
                file.close()
        self._logs = {}
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def remove(self) -> None:
        """Delete the folder, unless another process is running it."""
        self.open()
        try:
            with storage(self.path):
                shutil.rmtree(self.path)
        finally:
            self.close()

    # Logs

    def log(self, name: str, rows: list[dict[str, Any]]) -> None:
        """Append rows to one of the logs."""
        if not rows:
            return
        with storage(self.path):
            if name not in self._logs:
                self._logs[name] = (self.path / name).open("a", encoding="utf-8")
            self._logs[name].write("".join(to_json(row) + "\n" for row in rows))
            self._logs[name].flush()

    def rows(self, name: str) -> list[dict[str, Any]]:
        """The rows of a log; an unfinished last line is left out."""
        path = self.path / name
        if not path.exists():
            return []
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    # Snapshots

    def save(self, identity: str, data: str, done: int, state: Any, progress: dict[str, Any]) -> None:
        """Write a snapshot; the one before it is kept."""
        with storage(self.path):
            for file in self._logs.values():
                os.fsync(file.fileno())
        self.slots.secure()
        logs = {n: (self.path / n).stat().st_size for n in LOGS if (self.path / n).exists()}
        slots = {c: [n, d] for c, (n, d) in self.slots.now.items()}
        frame = pack(SnapshotRecord(identity, data, done, state, slots, progress, logs))
        digest = hashlib.sha256(frame).hexdigest()[:16]
        write_atomic(self.path / "snapshots" / f"round-{done:06d}.{digest}.safetensors", frame, self.path)
        with storage(self.path):
            for old in self.snapshots()[KEPT:]:
                old.unlink(missing_ok=True)
            self.slots.mark()  # after that, so that every snapshot there is has its clients' files

    def snapshots(self) -> list[Path]:
        """The snapshot files, newest first."""
        return sorted((self.path / "snapshots").glob("round-*.safetensors"), reverse=True)

    def restore(self, identity: str, data: str) -> tuple[SnapshotRecord | None, list[str]]:
        """The newest snapshot that is whole, and what was wrong with newer ones; logs go back to its time."""
        notes = []
        files = self.snapshots()
        for place, file in enumerate(files):
            try:
                found = self._read(file, identity, data)
            except (SnapshotError, FrameError, OSError) as error:
                notes.append(f"snapshot {file.name} cannot be used: {error}")
                continue
            self._rewind(found, files[:place], files[place + 1 :])
            return found, notes
        if files:
            raise SnapshotError(f"No snapshot of '{self.path}' can be used. " + "; ".join(notes))
        self._rewind(None)
        return None, notes

    def _read(self, file: Path, identity: str, data: str) -> SnapshotRecord:
        frame = file.read_bytes()
        if hashlib.sha256(frame).hexdigest()[:16] != file.name.split(".")[1]:
            raise SnapshotError("truncated or damaged (its checksum differs)")
        found: SnapshotRecord = unpack(bytearray(frame))
        if found.identity != identity:
            raise SnapshotError(
                "it was made by another method, seed or schedule; use another folder, or delete this one"
            )
        if found.data != data:
            raise SnapshotError("the data are not those the run began with")
        self.slots.verify({c: (n, d) for c, (n, d) in found.slots.items()})
        return found

    def _rewind(self, found: SnapshotRecord | None, damaged: Sequence[Path] = (), older: Sequence[Path] = ()) -> None:
        """Make the folder what it was at a snapshot's time; ``older`` snapshots stay usable."""
        with storage(self.path):
            for file in [*damaged, *(self.path / "snapshots").glob("*.part")]:
                file.unlink(missing_ok=True)
            needed = [files for file in reversed(older) if (files := _files_of(file)) is not None]
            self.slots.restore({} if found is None else {c: (n, d) for c, (n, d) in found.slots.items()}, needed)
            for name in LOGS:
                path = self.path / name
                if path.exists():
                    length = 0 if found is None else found.logs.get(name, 0)
                    os.truncate(path, min(length, path.stat().st_size))


def _files_of(snapshot: Path) -> set[str] | None:
    """The clients' files that a snapshot relies on; None if it cannot be read."""
    try:
        return {name for name, _ in unpack(bytearray(snapshot.read_bytes())).slots.values()}
    except (FrameError, OSError, AttributeError):
        return None
