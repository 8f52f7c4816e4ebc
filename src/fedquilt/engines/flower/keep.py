"""What a node keeps of its clients between messages: their states, in versions, so that a server can go back.

A state is kept under its sha256. A server that is restarted goes on from its last snapshot and asks for the states
of that time; so a version stays until no snapshot can need it: it was made in a round that a snapshot can go back to,
or a version that was made in such a round came from it, or the server has just asked for it.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Iterator, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from fedquilt.errors import InputError, SnapshotError

if TYPE_CHECKING:
    from fedquilt.core.table import ClientId

_ABANDONED = 3600.0  # seconds after which an unfinished file is nobody's


@dataclass(frozen=True)
class Version:
    """One state of one client: its digest, the round that made it, and the digest of the state it came from."""

    client: str
    digest: str
    round: int
    parent: str

    @property
    def name(self) -> str:
        """Everything about the version in one line; also its file name."""
        return f"{self.client}.{self.round:06d}.{self.digest}.{self.parent or 'first'}"

    @classmethod
    def of(cls, name: str) -> Version:
        """The version of a name."""
        client, round, digest, parent = name.split(".")[:4]
        return cls(client, digest, int(round), "" if parent == "first" else parent)


class Shelf(Protocol):
    """Where frames lie under names."""

    def names(self) -> Iterator[str]:
        """All names."""
        ...

    def read(self, name: str) -> bytes:
        """The frame under a name."""
        ...

    def write(self, name: str, frame: bytes) -> None:
        """Keep a frame; it must survive once this returns, as far as this shelf survives anything."""
        ...

    def remove(self, name: str) -> None:
        """Forget a name."""
        ...


class InMemory:
    """A shelf in a mapping, for example in the state that Flower hands to a client app. Lost when the node ends."""

    def __init__(self, frames: MutableMapping[str, bytes]) -> None:
        self.frames = frames

    def names(self) -> Iterator[str]:
        """All names."""
        return iter(list(self.frames))

    def read(self, name: str) -> bytes:
        """The frame under a name."""
        return self.frames[name]

    def write(self, name: str, frame: bytes) -> None:
        """Keep a frame."""
        self.frames[name] = frame

    def remove(self, name: str) -> None:
        """Forget a name."""
        self.frames.pop(name, None)


class OnDisk:
    """A shelf in a folder that only its owner can read: it survives a restart of the node."""

    suffix = ".safetensors"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for part in folder.glob("*.part"):  # of a process that was killed while it wrote
            with suppress(FileNotFoundError):
                if time.time() - part.stat().st_mtime > _ABANDONED:
                    part.unlink()

    def names(self) -> Iterator[str]:
        """All names."""
        return (path.name.removesuffix(self.suffix) for path in sorted(self.folder.glob(f"*{self.suffix}")))

    def read(self, name: str) -> bytes:
        """The frame under a name."""
        return (self.folder / (name + self.suffix)).read_bytes()

    def write(self, name: str, frame: bytes) -> None:
        """Write, flush to the disk, rename; the file is readable by its owner only (mode 0600)."""
        descriptor, part = tempfile.mkstemp(dir=self.folder, suffix=".part")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(frame)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, self.folder / (name + self.suffix))
        except BaseException:
            Path(part).unlink(missing_ok=True)
            raise
        directory = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def remove(self, name: str) -> None:
        """Forget a name."""
        (self.folder / (name + self.suffix)).unlink(missing_ok=True)


def safe(run: str) -> str:
    """A run's key, if it can be part of a path."""
    if not run.isalnum() or not run.isascii():
        raise InputError(f"a run's key must be letters and digits, got {run!r}")
    return run


def token(client: ClientId) -> str:
    """A client's id as part of a file name."""
    return hashlib.blake2b(repr(client).encode(), digest_size=8).hexdigest()


@dataclass(frozen=True)
class Keep:
    """The states of one run's clients at this node."""

    shelf: Shelf

    def get(self, client: ClientId, digest: bytes) -> bytes:
        """The state with this digest, checked."""
        names = [version.name for version in self._versions(client) if version.digest == digest.hex()]
        for name in names:
            frame = self.shelf.read(name)
            if hashlib.sha256(frame).digest() == digest:
                return frame
        if names:
            raise SnapshotError("the private state kept at this site is damaged; restore it from a backup")
        raise SnapshotError(
            "the private state that the server counts on is not kept at this site; was the node restarted without a "
            "state folder, or the folder removed?"
        )

    def put(self, client: ClientId, frame: bytes, round: int, parent: bytes | None) -> bytes:
        """Keep a new state; returns its digest."""
        digest = hashlib.sha256(frame).digest()
        version = Version(token(client), digest.hex(), round, "" if parent is None else parent.hex())
        if version.name not in set(self.shelf.names()) or self.shelf.read(version.name) != frame:
            self.shelf.write(version.name, frame)
        return digest

    def prune(self, client: ClientId, asked: bytes | None, keep_from: int) -> None:
        """Let go of what no snapshot of the server can need any more."""
        versions = list(self._versions(client))
        recent = [v for v in versions if v.round >= keep_from]
        needed = {v.digest for v in recent} | {v.parent for v in recent}
        if asked is not None:
            needed.add(asked.hex())
        for version in versions:
            if version.digest not in needed:
                self.shelf.remove(version.name)

    def _versions(self, client: ClientId) -> Iterator[Version]:
        mine = token(client)
        return (Version.of(name) for name in self.shelf.names() if name.startswith(mine + "."))
