"""Downloads on their way: coded and packed once for all clients that are sent the very same thing."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from fedquilt.core.exchange import as_it_is
from fedquilt.core.table import ClientId
from fedquilt.records.record import pack, same
from fedquilt.rounds.traffic import Load, load_of

Carry = Callable[..., tuple[object, object]]


class SentDownload(NamedTuple):
    """A download: as the client sees it, its frame, and what that is made of."""

    seen: object
    frame: bytes
    load: Load


class Sender:
    """Codes and packs downloads, once for all clients that are sent the very same thing.

    It holds what is under way and a few recent frames, so memory does not grow with the cohort.
    """

    recent = 16

    def __init__(
        self,
        down: Callable[[ClientId], object],
        carry: Carry,
        failed: Callable[[ClientId, Exception], Exception],
        uncoded: Callable[[Any], object] = as_it_is,
    ) -> None:
        self._down, self._carry, self._failed, self._uncoded = down, carry, failed, uncoded
        self._kept: deque[tuple[object, SentDownload]] = deque(maxlen=self.recent)
        self._under_way: dict[ClientId, SentDownload] = {}

    def send(self, client: ClientId) -> SentDownload:
        """The download of a client; kept until the client is ``done``."""
        sent = self._under_way.get(client)
        if sent is None:
            try:
                sent = self._under_way[client] = self._packed(self._down(client))
            except Exception as error:
                raise self._failed(client, error) from error
        return sent

    def done(self, client: ClientId) -> SentDownload:
        """The same, for the last time."""
        sent = self.send(client)
        del self._under_way[client]
        return sent

    def _packed(self, record: object) -> SentDownload:
        known = next((kept for kept in reversed(self._kept) if same(kept[0], record)), None)
        if known is None:
            seen, wire = self._carry(record)
            frame = pack(wire, compact=True)
            known = (record, SentDownload(seen, frame, load_of(self._uncoded(record), wire, frame)))
            self._kept.append(known)
        return known[1]
