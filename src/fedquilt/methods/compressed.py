"""Any method, with codecs on its messages."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from fedquilt.core.exchange import Codec, Exchange, Method, plain
from fedquilt.errors import InputError
from fedquilt.methods.on_base import OnBase


@dataclass(frozen=True, kw_only=True)
class Compressed(OnBase):
    """The base, whose uploads and downloads of one exchange travel by codecs.

    Args:
        base: Any method; it need not know of codecs.
        codec: How uploads travel.
        download: How downloads travel.
        exchange: Which exchange; by default the one called 'train', or else the first.

    Example:
        >>> from torch import nn
        >>> from fedquilt.core.net import Net
        >>> from fedquilt.methods.fedavg import FedAvg
        >>> from fedquilt.pieces.codecs import error_feedback, top_k
        >>> net = Net(nn.Linear, 4, 2)
        >>> method = Compressed(base=FedAvg(objective=net), codec=error_feedback(top_k(0.01)))
    """

    base: Method
    codec: Codec = plain
    download: Codec = plain
    exchange: str | None = None

    def __post_init__(self) -> None:
        for name in ("codec", "download"):
            codec = getattr(self, name)
            if not hasattr(codec, "encode") or not hasattr(codec, "decode"):
                raise InputError(f"{name} must be a codec such as half(), got {codec!r}.")

    def __getattr__(self, name: str) -> Any:  # what only some methods have: how newcomers are treated, say
        if name.startswith("_") or name == "base":
            raise AttributeError(name)
        return getattr(self.base, name)

    def exchanges(self) -> tuple[Exchange, ...]:
        """As the base, one of them with codecs."""
        trips = {e.name: e for e in self.base.exchanges()}
        chosen = self.exchange or ("train" if "train" in trips else next(iter(trips)))
        if chosen not in trips:
            raise InputError(f"There is no exchange {chosen!r}; there is {', '.join(trips)}.")
        trip = trips[chosen]
        trips[chosen] = replace(
            trip,
            codec=trip.codec if self.codec == plain else self.codec,
            download=trip.download if self.download == plain else self.download,
        )
        return tuple(trips.values())

    def plan(self, state: object, round: int) -> tuple[str, ...]:
        """As the base."""
        return self.base.plan(state, round)
