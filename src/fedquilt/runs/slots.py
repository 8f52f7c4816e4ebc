"""Clients' states on the disk."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedquilt.core.errors import SnapshotError
from fedquilt.core.table import ClientId
from fedquilt.runs.files import storage

KEPT = 2  # snapshots
Entry = tuple[str, str]  # a file and its sha256
Entries = dict[ClientId, Entry]


def manifest(entries: Mapping[ClientId, Entry]) -> bytes:
    """Entries as one block of bytes: a snapshot of many clients then costs few objects."""
    return "\n".join(json.dumps([client, *entry]) for client, entry in entries.items()).encode()


def entries_of(block: bytes) -> Entries:
    """The entries of a manifest."""
    rows = [json.loads(line) for line in block.decode().splitlines()]
    return {_client(client): (str(file), str(digest)) for client, file, digest in rows}


def _client(value: Any) -> ClientId:
    return tuple(_client(part) for part in value) if isinstance(value, list) else value  # JSON has no tuples


class FolderSlots:
    """Clients' states as files, one per client and version, so that a snapshot costs what changed since the last.

    A new state is written beside the old one; the old file goes when no kept snapshot needs it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now: Entries = {}
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

    def restore(self, now: Mapping[ClientId, Entry], older: Sequence[set[str]] = ()) -> None:
        """Go back to the files of a snapshot, and remove all others but those that ``older`` snapshots rely on."""
        self.now = {c: (str(n), str(d)) for c, (n, d) in now.items()}
        self._needed = [*older, {name for name, _ in self.now.values()}]
        self._fresh.clear()
        keep = set().union(*self._needed)
        for path in self.folder.glob("*/*.safetensors"):
            if f"{path.parent.name}/{path.name}" not in keep:
                path.unlink(missing_ok=True)

    def verify(self, now: Mapping[ClientId, Entry]) -> None:
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
