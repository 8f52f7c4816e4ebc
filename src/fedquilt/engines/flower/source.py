"""The clients of a federation as its server knows them: by name and size. Their data are elsewhere."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from fedquilt.core.columns import PerColumn
from fedquilt.core.table import ClientId, in_order
from fedquilt.engines.flower.jobs import PROTOCOL, Here
from fedquilt.errors import InputError


@dataclass(frozen=True)
class Elsewhere:
    """A source without data: what the nodes said of themselves, checked against each other.

    Args:
        sites: What each node said, under Flower's number of the node.
        classes: How many classes there are, if the nodes do not know.
        prepare: How tables are prepared, once the sites have agreed on that.
    """

    sites: Mapping[int, Here]
    wanted: int | None = None
    ids: tuple[ClientId, ...] = field(init=False)
    evaluated: tuple[ClientId, ...] = field(init=False)

    prepare: PerColumn | None = None
    groups: None = None
    global_test: None = None

    def __post_init__(self) -> None:
        if not self.sites:
            raise InputError("No node has introduced itself. Start some with 'fedquilt join'.")
        self._agree()
        owner: dict[ClientId, int] = {}
        for node, site in self.sites.items():
            for client in {*site.clients, *site.evaluated}:
                if client in owner:
                    raise InputError(
                        f"Two nodes both say that they are client {client!r}. Give each site a name of its own: "
                        "fedquilt join --name ..."
                    )
                owner[client] = node
        object.__setattr__(self, "ids", in_order([c for s in self.sites.values() for c in s.clients]))
        object.__setattr__(self, "evaluated", in_order([c for s in self.sites.values() for c in s.evaluated]))

    def _agree(self) -> None:
        first, *others = self.sites.values()
        for site in (first, *others):
            if site.protocol != PROTOCOL:
                raise InputError(f"A node speaks version {site.protocol} of the protocol, this server {PROTOCOL}.")
            for what in ("shape", "dtype", "prepare"):
                mine, theirs = getattr(first, what), getattr(site, what)
                if mine != theirs:
                    names = ", ".join(repr(c) for c in list(site.clients)[:3])
                    raise InputError(
                        f"The sites differ in the {what} of their rows: {mine}, but {theirs} at client {names}. "
                        "All sites must prepare their data in the same way."
                    )

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one prepared row."""
        return next(iter(self.sites.values())).shape if self.prepare is None else (self.prepare.width,)

    @property
    def table(self) -> PerColumn | None:
        """The columns of the sites' tables, before anything is known of their cells; None for other rows."""
        found: PerColumn | None = next(iter(self.sites.values())).table
        return found

    @property
    def preparation(self) -> PerColumn | None:
        """What is done to the columns of tables."""
        return self.prepare

    @property
    def classes(self) -> int | None:
        """How many classes: as asked for, or the most that any site has."""
        known = [site.classes for site in self.sites.values() if site.classes is not None]
        return self.wanted if self.wanted is not None else max(known, default=None)

    def size(self, client: ClientId) -> int:
        """How many training samples the client said it has."""
        return next((s.clients[client] for s in self.sites.values() if client in s.clients), 0)

    def fingerprint(self) -> str:
        """What data this is, as the sites' own (salted) prints tell; Flower's numbers of the nodes do not matter."""
        prints = sorted(repr((in_order(list(s.clients)), s.fingerprint)) for s in self.sites.values())
        return hashlib.sha256("\n".join(prints).encode()).hexdigest()

    def site(self, client: ClientId, round: int) -> NoReturn:
        """The server has no data."""
        raise InputError(f"The data of client {client!r} are at its own site; the server of a federation has none.")

    def evaluation(self, client: ClientId, split: str, round: int = 0) -> None:
        """The server has no held-out samples."""

    def pooled(self) -> NoReturn:
        """Pooling would mean moving the data."""
        raise InputError("A method that pools all data cannot run on a real federation: the data stay at the sites.")


def facts(sites: Sequence[Here]) -> dict[str, object]:
    """What to record of the nodes: how many, and which versions they run."""
    versions = {name: sorted({s.versions.get(name, "?") for s in sites}) for name in ("fedquilt", "torch", "flwr")}
    return {"nodes": len(sites), "versions": versions}
