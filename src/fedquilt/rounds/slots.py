"""Where clients' states live between client updates."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Protocol

from fedquilt.core.table import ClientId


class Slots(Protocol):
    """Where clients' states live between client updates, as frames.

    What is put can be taken back until it is settled: a reply counts only if the server can take it.
    """

    def get(self, client: ClientId) -> bytes | None:
        """The client's frame; None before its first change."""
        ...

    def put(self, client: ClientId, frame: bytes) -> None:
        """Keep a new frame."""
        ...

    def unsettled(self) -> tuple[ClientId, ...]:
        """The clients for whom something was put that is not settled."""
        ...

    def back(self, client: ClientId) -> None:
        """Take back what was put for a client since it was last settled."""
        ...

    def settle(self) -> None:
        """Let go of what was replaced."""
        ...

    def digests(self) -> Mapping[ClientId, str]:
        """The sha256 of every frame kept."""
        ...


class MemorySlots:
    """Slots in this process's memory."""

    def __init__(self) -> None:
        self.frames: dict[ClientId, bytes] = {}
        self._old: dict[ClientId, bytes | None] = {}

    def get(self, client: ClientId) -> bytes | None:
        """The client's frame."""
        return self.frames.get(client)

    def put(self, client: ClientId, frame: bytes) -> None:
        """Keep a new frame."""
        self._old.setdefault(client, self.frames.get(client))
        self.frames[client] = frame

    def unsettled(self) -> tuple[ClientId, ...]:
        """The clients for whom something was put that is not settled."""
        return tuple(self._old)

    def back(self, client: ClientId) -> None:
        """Take back what was put for a client since it was last settled."""
        if client in self._old:
            old = self._old.pop(client)
            del self.frames[client]
            if old is not None:
                self.frames[client] = old

    def settle(self) -> None:
        """Let go of what was replaced."""
        self._old.clear()

    def digests(self) -> Mapping[ClientId, str]:
        """The sha256 of every frame kept."""
        return {c: hashlib.sha256(f).hexdigest() for c, f in self.frames.items()}


class Handles(MemorySlots):
    """Slots that an engine keeps elsewhere: what is here is only the sha256 of each frame."""

    def digests(self) -> Mapping[ClientId, str]:
        """The sha256 of every frame kept."""
        return {client: handle.hex() for client, handle in self.frames.items()}
