"""What HGLS keeps and sends."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from fedquilt.core.exchange import Codec, plain
from fedquilt.core.params import Params
from fedquilt.core.seed import Seed
from fedquilt.records.declared import Count
from fedquilt.records.record import record


@record(name="fedquilt.methods.hgls_records:Peer")
class Peer:
    """A client's head gradient as it travelled, and the round it is of."""

    client: Any
    round: int
    gradient: Any


@record(name="fedquilt.methods.hgls_records:Tally")
class GradientTally:
    """Over the clients that searched: gradients they were given, gradients that pointed their way, gradients they
    took."""

    candidates: Count = 0
    aligned: Count = 0
    taken: Count = 0


@record(name="fedquilt.methods.hgls_records:SearchServer")
class SearchServer:
    """The base's state; the mean head, for those who have none; the gradients; and what was found last.

    ``chosen``: which gradients a client is sent, if not all; ``met``: who has trained; ``holders``: who has already
    been brought the newest body.
    """

    base: Any
    head: Params
    peers: tuple[Peer, ...]
    chosen: dict[Any, tuple[int, ...]]
    met: tuple[Any, ...]
    holders: tuple[Any, ...]
    tally: GradientTally


@record(name="fedquilt.methods.hgls_records:SearchClient")
class SearchClient:
    """The base's state at the client, its own gradient, a body it will need again, and the memory of the gradient's
    codec."""

    base: Any
    gradient: Params
    kept: Any
    memory: Any


@record(name="fedquilt.methods.hgls_records:Invite")
class Invite:
    """What the base sends (None to those who hold it already), and a head for those who never trained."""

    base: Any
    head: Params


@record(name="fedquilt.methods.hgls_records:Others")
class Others:
    """What the base will send next (None when the search is made on the client's own body), and gradients, unnamed."""

    base: Any
    gradients: tuple[Any, ...]


@record(name="fedquilt.methods.hgls_records:HeadUpload")
class HeadUpload:
    """The head ({} if it stays home), its gradient as it travels, and the base's upload."""

    head: Params
    gradient: Any
    base: Any


@dataclass(frozen=True)
class Inside:
    """A codec of the base's messages, inside those of a method that wraps them."""

    codec: Codec

    def encode(self, upload: Any, sent: Any, memory: Any, seed: Seed) -> tuple[object, object]:
        """The base's part as its codec says."""
        wire, memory = self.codec.encode(upload.base, None if sent is None else sent.base, memory, seed)
        return replace(upload, base=wire), memory

    def decode(self, wire: Any, sent: Any) -> Any:
        """The same, back again."""
        return replace(wire, base=self.codec.decode(wire.base, None if sent is None else sent.base))


def inside(codec: Codec) -> Codec:
    """The codec on the base's part; plain stays plain."""
    return codec if codec == plain else Inside(codec)
