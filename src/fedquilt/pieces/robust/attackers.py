"""Malicious clients of a simulation: who they are, and what becomes of their replies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedquilt.core.exchange import Reply
from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId, Source
from fedquilt.errors import InputError
from fedquilt.pieces.robust.attacks import Aggregate, Attack


@dataclass(frozen=True)
class Attackers:
    """Malicious clients of a simulation, who collude. They are not scored: metrics are those of honest clients.

    Args:
        attack: What they send or learn; see :mod:`fedquilt.pieces.robust.attacks` and
            :mod:`fedquilt.pieces.robust.poisoning`.
        clients: A share of all clients, who are drawn by the run's seed, or their ids.
        samples: Instead, the share of all training samples that they hold, at most: clients are drawn until no further
            one fits.

    Example:
        >>> from fedquilt.pieces.robust.attacks import sign_flip
        >>> attackers = Attackers(sign_flip(factor=10.0), clients=0.2)
    """

    attack: Attack
    clients: float | tuple[ClientId, ...] = 0.2
    samples: float | None = None

    def __post_init__(self) -> None:
        if isinstance(self.clients, float) and not 0 < self.clients < 1:
            raise InputError(f"attack: clients is a share in (0, 1), or a list of clients, got {self.clients}.")
        if self.samples is not None and not 0 < self.samples < 1:
            raise InputError(f"attack: samples is a share in (0, 1), got {self.samples}.")

    @property
    def poisoning(self) -> Any:
        """The attack, if it spoils training samples."""
        return self.attack if hasattr(self.attack, "poisoned") else None

    def against(self, aggregate: Aggregate | None) -> Attackers:
        """The same, where the attack wants to know what the server does."""
        adapt: Any = getattr(self.attack, "against", None)
        return self if adapt is None or aggregate is None else replace(self, attack=adapt(aggregate))

    def __call__(self, replies: Sequence[Reply], source: Source, run: Seed, seed: Seed) -> list[Reply]:
        """The replies of an exchange, with what the attackers among all clients send; ``seed`` is the exchange's."""
        return self._forge(replies, self.among(source.ids, run, source.size), seed)

    def among(
        self, ids: Sequence[ClientId], seed: Seed, size: Callable[[ClientId], int] | None = None
    ) -> frozenset[ClientId]:
        """Who is malicious, the same all through a run. ``size``: how many samples each has."""
        order = [ids[i] for i in seed.fold("attackers").numpy().permutation(len(ids))]
        if self.samples is not None and size is not None:
            return self._holding(order, size, self.samples)
        if isinstance(self.clients, float):
            return frozenset(order[: max(1, round(self.clients * len(ids)))])
        unknown = [c for c in self.clients if c not in set(ids)]
        if unknown:
            raise InputError(f"attack: no client is called {unknown[0]!r} (known: {list(ids)[:10]}).")
        return frozenset(self.clients)

    def _holding(self, order: Sequence[ClientId], size: Callable[[ClientId], int], share: float) -> frozenset[ClientId]:
        """Clients that together hold at most this share, but one at least."""
        sizes = {client: size(client) for client in order}
        left, chosen = share * sum(sizes.values()), list[ClientId]()
        for client in order:
            if sizes[client] <= left:
                chosen.append(client)
                left -= sizes[client]
        return frozenset(chosen or [min(order, key=sizes.__getitem__)])

    def _forge(self, replies: Sequence[Reply], attackers: frozenset[ClientId], seed: Seed) -> list[Reply]:
        """Uploads without ``delta`` stay as they are."""
        false = [r for r in replies if r.client in attackers and hasattr(r.upload, "delta")]
        honest = [r.upload.delta for r in replies if r.client not in attackers and hasattr(r.upload, "delta")]
        if not false or not honest:
            return list(replies)
        forged = self.attack([r.upload.delta for r in false], honest, seed)
        sent = {r.client: replace(r.upload, delta=delta) for r, delta in zip(false, forged, strict=True)}
        return [replace(r, upload=sent[r.client]) if r.client in sent else r for r in replies]
