"""Clients' states on the disk."""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fedquilt.core.table import ClientId
from fedquilt.errors import SnapshotError
from fedquilt.storage.files import flush, storage

KEPT = 2  # snapshots
_AT_ONCE = 8  # files flushed side by side: a disk writes them together
Entries = dict[ClientId, bytes]  # the sha256 of each client's file


def file_of(client: ClientId, digest: bytes) -> str:
    """The file that holds a client's frame."""
    token = hashlib.blake2b(repr(client).encode(), digest_size=8).hexdigest()
    return f"{token[:2]}/{token}.{digest.hex()[:16]}.safetensors"


def manifest(entries: Mapping[ClientId, bytes]) -> bytes:
    """Entries as one block of bytes: a snapshot of many clients then costs few objects."""
    return "\n".join(json.dumps([client, digest.hex()]) for client, digest in entries.items()).encode()


def entries_of(block: bytes) -> Entries:
    """The entries of a manifest."""
    rows = [json.loads(line) for line in block.decode().splitlines()]
    return {client_id(client): bytes.fromhex(digest) for client, digest in rows}


def client_id(value: object) -> ClientId:
    """A client's id as it was before it was written as JSON."""
    return tuple(client_id(part) for part in value) if isinstance(value, list) else value  # JSON has no tuples


class FolderSlots:
    """Clients' states as files, one per client and version, so that a snapshot costs what changed since the last.

    A new state is written beside the old one. Once the new one is settled, a file that was replaced goes at once if no
    snapshot knows it, and otherwise when the last snapshot that does is gone: after as many further snapshots as are
    kept.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now: Entries = {}
        self._old: dict[ClientId, bytes | None] = {}  # what was before all that is not settled
        self._fresh: set[str] = set()  # written since the last snapshot
        self._replaced: deque[dict[str, ClientId]] = deque({} for _ in range(KEPT))

    def get(self, client: ClientId) -> bytes | None:
        """The client's frame, checked."""
        digest = self.now.get(client)
        if digest is None:
            return None
        path = self.folder / file_of(client, digest)
        try:
            frame = path.read_bytes()
        except OSError as error:
            raise SnapshotError(f"The state of client {client!r} cannot be read: {error}.") from error
        if hashlib.sha256(frame).digest() != digest:
            raise SnapshotError(f"The state of client {client!r} in '{path}' is damaged.")
        return frame

    def put(self, client: ClientId, frame: bytes) -> None:
        """Keep a new frame."""
        digest, old = hashlib.sha256(frame).digest(), self.now.get(client)
        if old == digest:
            return
        name = file_of(client, digest)
        with storage(self.folder.parent):
            path = self.folder / name
            if not path.exists():  # a file that a snapshot relies on is never touched
                path.parent.mkdir(parents=True, exist_ok=True)
                self._fresh.add(name)
                path.write_bytes(frame)
            if old is not None and client in self._old and self._old[client] != old:
                self._retire(file_of(client, old), client)
        self._old.setdefault(client, old)
        self.now[client] = digest

    def unsettled(self) -> tuple[ClientId, ...]:
        """The clients for whom something was put that is not settled."""
        return tuple(self._old)

    def back(self, client: ClientId) -> None:
        """Take back what was put for a client since it was last settled."""
        if client not in self._old:
            return
        old, new = self._old.pop(client), self.now.pop(client)
        if old is not None:
            self.now[client] = old
        if new != old:
            with storage(self.folder.parent):
                self._retire(file_of(client, new), client)

    def settle(self) -> None:
        """Let go of what was replaced."""
        with storage(self.folder.parent):
            for client, old in self._old.items():
                if old is not None and old != self.now.get(client):
                    self._retire(file_of(client, old), client)
        self._old.clear()

    def _retire(self, name: str, client: ClientId) -> None:
        if name in self._fresh:
            self._fresh.discard(name)
            (self.folder / name).unlink(missing_ok=True)
        else:
            self._replaced[-1][name] = client

    def digests(self) -> Mapping[ClientId, str]:
        """The sha256 of every frame kept."""
        return {client: digest.hex() for client, digest in self.now.items()}

    def secure(self) -> None:
        """Make sure that what was put is on the disk."""
        self.settle()
        with storage(self.folder.parent), ThreadPoolExecutor(_AT_ONCE) as pool:
            for _ in pool.map(flush, [self.folder / name for name in self._fresh]):
                pass

    def mark(self) -> None:
        """A snapshot now relies on the present files; those that only a dropped snapshot needed go."""
        self._fresh.clear()
        gone = self._replaced.popleft()
        self._replaced.append({})
        for name, client in gone.items():
            digest = self.now.get(client)
            back = digest is not None and file_of(client, digest) == name
            if not back and not any(name in later for later in self._replaced):
                (self.folder / name).unlink(missing_ok=True)

    def restore(self, now: Mapping[ClientId, bytes], older: Sequence[Mapping[ClientId, bytes]] = ()) -> None:
        """Go back to the files of a snapshot, and remove all others but those that ``older`` snapshots rely on."""
        self.now = dict(now)
        self._old.clear()
        self._fresh.clear()
        here = {file_of(c, d) for c, d in now.items()}
        old = {file_of(c, d): c for entries in older for c, d in entries.items()}
        self._replaced = deque([{name: c for name, c in old.items() if name not in here}])
        self._replaced.extend({} for _ in range(KEPT - 1))
        for path in self.folder.glob("*/*.safetensors"):
            name = f"{path.parent.name}/{path.name}"
            if name not in here and name not in old:
                path.unlink(missing_ok=True)

    def verify(self, now: Mapping[ClientId, bytes]) -> None:
        """Raise unless every file of a snapshot is there and whole."""
        for client, digest in now.items():
            try:
                whole = hashlib.sha256((self.folder / file_of(client, digest)).read_bytes()).digest() == digest
            except OSError:
                whole = False
            if not whole:
                raise SnapshotError(f"the state of client {client!r} is missing or damaged")


class HandleSlots(FolderSlots):
    """Slots whose frames are kept by the engine, elsewhere; here is only the sha256 of each."""

    def get(self, client: ClientId) -> bytes | None:
        """The handle of the client's frame."""
        return self.now.get(client)

    def put(self, client: ClientId, frame: bytes) -> None:
        """Keep a new handle."""
        self._old.setdefault(client, self.now.get(client))
        self.now[client] = frame

    def _retire(self, name: str, client: ClientId) -> None:
        """There is no file."""

    def secure(self) -> None:
        """Handles are in the snapshot itself."""

    def mark(self) -> None:
        """Handles are in the snapshot itself."""

    def restore(self, now: Mapping[ClientId, bytes], older: Sequence[Mapping[ClientId, bytes]] = ()) -> None:
        """Go back to the handles of a snapshot."""
        self.now = dict(now)
        self._old.clear()

    def verify(self, now: Mapping[ClientId, bytes]) -> None:
        """Whether the frames are whole is checked where they are, when they are asked for."""
