"""The folder of a run: logs that resume, snapshots that can be trusted."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from fedquilt.core.locks import KEEPS_OPEN_FILES, lock
from fedquilt.core.plain import Row
from fedquilt.errors import FrameError, SnapshotError, StorageError
from fedquilt.records.record import pack, record, unpack
from fedquilt.storage.files import storage, to_json, write_atomic
from fedquilt.storage.logs import LOGS as LOGS
from fedquilt.storage.logs import WERE, Extent, extent_of, read, where
from fedquilt.storage.mending import Missing, cut_back, faults, mend
from fedquilt.storage.slots import KEPT, Entries, FolderSlots, HandleSlots, entries_of, manifest

LOCK = ".lock"
_ATTEMPTS = 6


def is_held(folder: Path) -> bool:
    """Whether a process is running the run in a folder; for looking only."""
    try:
        with (folder / LOCK).open("rb") as file:
            return not lock(file, shared=True)
    except OSError:  # no such run, or nobody may look
        return False


@record(name="fedquilt.runs.storage:SnapshotRecord")
class SnapshotRecord:
    """All state of a run between rounds, and of each log its length and checksum (once its length alone)."""

    identity: str
    data: str
    done: int
    state: Any
    slots: bytes
    progress: Row
    logs: Row

    @property
    def extents(self) -> dict[str, Extent]:
        """What it vouches for of each log."""
        return {WERE.get(name, name): Extent.of(value) for name, value in self.logs.items()}


class RunFolder:
    """Reads and writes one run's folder; only one process at a time may hold it.

    With ``states_elsewhere`` the clients' states are where the clients are, and only their digests are here.
    """

    def __init__(self, path: Path, states_elsewhere: bool = False) -> None:
        self.path = path
        self.slots = (HandleSlots if states_elsewhere else FolderSlots)(path / "clients")
        self.missing: Missing = {}  # what of the logs was lost when the folder was restored
        self._logs: dict[str, IO[bytes]] = {}
        self._extents: dict[str, Extent] = {}
        self._lock: IO[bytes] | None = None

    def open(self) -> None:
        """Make the folder and take hold of it."""
        with storage(self.path):
            (self.path / "metrics").mkdir(parents=True, exist_ok=True)
            (self.path / "snapshots").mkdir(exist_ok=True)
            file = (self.path / LOCK).open("wb")
        for attempt in range(_ATTEMPTS):  # whoever looks whether it is held (is_held) holds it for a moment
            if attempt:
                time.sleep(0.02)
            if lock(file):
                break
        else:
            file.close()
            raise StorageError(f"Another process is running '{self.path}'. Wait for it, or stop it first.")
        self._lock = file
        for new in WERE.values():
            if (old := where(self.path, new)) != self.path / new:
                os.replace(old, self.path / new)

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
                for inner in self.path.iterdir():
                    if inner.is_dir() and not inner.is_symlink():
                        shutil.rmtree(inner)
                    elif inner.name != LOCK:
                        inner.unlink()
                if not KEEPS_OPEN_FILES:
                    self._remove_rest()
        finally:
            self.close()
        if KEEPS_OPEN_FILES:
            with storage(self.path):
                self._remove_rest()

    def _remove_rest(self) -> None:
        (self.path / LOCK).unlink()
        self.path.rmdir()

    # Logs

    def log(self, name: str, rows: list[Row]) -> None:
        """Append rows to one of the logs."""
        if not rows:
            return
        with storage(self.path):
            if name not in self._logs:
                self._extents.setdefault(name, extent_of(self.path / name))
                self._logs[name] = (self.path / name).open("ab")
            content = "".join(to_json(row) + "\n" for row in rows).encode()
            self._logs[name].write(content)
            self._logs[name].flush()
            self._extents[name] = self._extents[name].grown(content)

    def rows(self, name: str) -> list[Row]:
        """The sound rows of a log; an unfinished last line is left out."""
        return read(self.path, name)

    def extents(self) -> dict[str, tuple[int, int | None]]:
        """The length and checksum of every log that was written."""
        return {name: extent.plain for name, extent in self._extents.items() if extent.length}

    # Snapshots

    def save(self, identity: str, data: str, done: int, state: object, progress: Row) -> None:
        """Write a snapshot; the one before it is kept."""
        with storage(self.path):
            for file in self._logs.values():
                os.fsync(file.fileno())
        self.slots.secure()
        frame = pack(SnapshotRecord(identity, data, done, state, manifest(self.slots.now), progress, self.extents()))
        digest = hashlib.sha256(frame).hexdigest()[:16]
        write_atomic(self.path / "snapshots" / f"round-{done:06d}.{digest}.safetensors", frame, self.path)
        with storage(self.path):
            for old in self.snapshots()[KEPT:]:
                old.unlink(missing_ok=True)
            self.slots.mark()  # after that, so that every snapshot there is has its clients' files

    def snapshots(self) -> list[Path]:
        """The snapshot files, newest first."""
        return sorted((self.path / "snapshots").glob("round-*.safetensors"), reverse=True)

    def oldest(self) -> int:
        """The number of rounds done at the oldest snapshot; 0 without one."""
        return min((int(path.name[6:12]) for path in self.snapshots()), default=0)

    def restore(self, identity: str, data: str) -> tuple[SnapshotRecord | None, list[str]]:
        """The newest snapshot that is whole, and what was wrong with newer ones; logs go back to its time.

        One whose logs were whole is preferred: the rounds after it are played again, and so are their rows. Where
        there is none, the newest is taken, its logs are mended, and ``missing`` says what is gone.
        """
        notes: list[str] = []
        files, newest = self.snapshots(), -1
        for place, file in enumerate(files):
            try:
                found = self._read(file, identity, data)
            except (SnapshotError, FrameError, OSError) as error:
                notes.append(f"snapshot {file.name} cannot be used: {error}")
                continue
            trouble = faults(self.path, found.extents)
            if not trouble:
                if newest >= 0:
                    notes.append(f"the rounds after round {found.done}, when the logs were whole, are played again")
                self._rewind(found, files[:place], files[place + 1 :])
                return found, notes
            if newest < 0:
                newest = place
                notes += [f"{name} {why}" for name, why in trouble.items()]
        if newest >= 0:
            found = self._read(files[newest], identity, data)
            self.missing, told = mend(self.path, found.extents, found.done, found.progress)
            notes = [note for note in notes if not note.startswith(tuple(self.missing))] + told
            self._rewind(found, files[:newest], files[newest + 1 :])
            return found, notes
        if files:
            raise SnapshotError(f"No snapshot of '{self.path}' can be used. " + "; ".join(notes))
        self._rewind(None)
        return None, notes

    def newest(self, identity: str, data: str) -> SnapshotRecord | None:
        """The newest snapshot that is whole, or None; for looking only: nothing in the folder changes."""
        for file in self.snapshots():
            with suppress(SnapshotError, FrameError, OSError):
                return self._read(file, identity, data)
        return None

    def _read(self, file: Path, identity: str, data: str) -> SnapshotRecord:
        frame = file.read_bytes()
        if hashlib.sha256(frame).hexdigest()[:16] != file.name.split(".")[1]:
            raise SnapshotError("truncated or damaged (its checksum differs)")
        found: SnapshotRecord = unpack(bytearray(frame))
        if found.identity != identity:
            raise SnapshotError(
                "it belongs to another method, seed or schedule; use another folder, or delete this one"
            )
        if found.data != data:
            raise SnapshotError("the data have changed since the run started")
        self.slots.verify(entries_of(found.slots))
        return found

    def _rewind(self, found: SnapshotRecord | None, damaged: Sequence[Path] = (), older: Sequence[Path] = ()) -> None:
        """Make the folder what it was at a snapshot's time; ``older`` snapshots stay usable."""
        with storage(self.path):
            for file in [*damaged, *(self.path / "snapshots").glob("*.part")]:
                file.unlink(missing_ok=True)
            needed = [entries for file in older if (entries := _entries_in(file)) is not None]
            self.slots.restore({} if found is None else entries_of(found.slots), needed)
            vouched = {} if found is None else found.extents
            mended = {name: extent_of(self.path / name) for name in self.missing}
            self._extents = cut_back(self.path, vouched | mended)


def _entries_in(snapshot: Path) -> Entries | None:
    """The clients' files that a snapshot relies on; None if it cannot be read."""
    try:
        return entries_of(unpack(bytearray(snapshot.read_bytes())).slots)
    except (FrameError, OSError, AttributeError, ValueError):
        return None
