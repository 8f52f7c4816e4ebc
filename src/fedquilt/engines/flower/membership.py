"""Who is there: which node has which clients, and on what terms a node may come, and come back."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection

from fedquilt.core.columns import Column, PerColumn
from fedquilt.core.table import ClientId
from fedquilt.engines.flower.jobs import PROTOCOL, Here, Parcel, read
from fedquilt.engines.flower.post import NoAnswer, Post, all_plain, clock, told
from fedquilt.errors import FedquiltError, InputError

_SAME = ("shape", "dtype", "prepare")


class ConnectedSites:
    """The nodes of a federation.

    Until it is closed, any node may come whose clients nobody else has. Afterwards only the sites that were there
    may come back, under whatever number, with the data they had.
    """

    def __init__(self, post: Post, run: str, note: Callable[[str], None]) -> None:
        self.post, self.run, self.note = post, run, note
        self.sites: dict[int, Here] = {}
        self.trouble: dict[int, str] = {}
        self._where: dict[ClientId, int] = {}
        self._terms: dict[ClientId, Here] = {}
        self._asked: dict[int, float] = {}
        self._questions: dict[str, int] = {}  # a slow node may still answer the first of several
        self._held: dict[int, Here] = {}
        self._names: dict[int, str] = {}
        self._away: dict[str, float] = {}  # sites that are not there, and since when

    def node_of(self, client: ClientId) -> int | None:
        """The node that has a client, if it is there now; others are given the chance to say that they have it."""
        if self._where.get(client) not in self.post.online():
            self.meet()
        node = self._where.get(client)
        if node is None or node not in self.post.online():
            return None
        self._back(node)
        return node

    def called(self, node: int | None) -> str:
        """A node's site by its name, or the node by its number if it has not said who it is."""
        return "a site that nobody knows" if node is None else self._names.get(node, f"node {node}")

    def site_of(self, client: ClientId) -> str:
        """The name of a client's site."""
        return self.called(self._where.get(client))

    def missed(self, client: ClientId, what: str, until: float) -> None:
        """Say, once, that a client's site is away: since when, in which exchange, and until when it is waited for."""
        node = self._where.get(client)
        name = self.called(node)
        if node is not None and name not in self._away:
            self._away[name] = self.post.last_seen(node)
            since = clock(self._away[name])
            self.note(f"{name} is away since {since}, in {what}; it is waited for until {clock(until)}")

    def _back(self, node: int) -> None:
        since = self._away.pop(self.called(node), None)
        if since is not None:
            self.note(f"{self.called(node)} is back, after {max(time.time() - since, 0.0):.0f} seconds")

    def fingerprint(self, client: ClientId) -> str:
        """The salted print of the data that the client's site came with."""
        return self._terms[client].fingerprint

    def lacking(self, nodes: int, clients: Collection[ClientId]) -> str:
        """What is still missing of a federation, in words; nothing if it is complete."""
        absent = [c for c in clients if c not in self._where]
        if absent:
            return f"client {', '.join(map(repr, absent[:3]))} of this run did not come"
        return "" if clients or len(self.sites) >= nodes else f"{len(self.sites)} of {nodes} nodes came"

    def close(self, clients: Collection[ClientId]) -> dict[int, Here]:
        """From now on these sites are the federation: all that came, or those of the clients named."""
        wanted = set(clients)
        chosen = {n: s for n, s in sorted(self.sites.items()) if not wanted or wanted & _people(s)}
        self._terms = {client: site for site in chosen.values() for client in _people(site)}
        return chosen

    def meet(self) -> None:
        """Let nodes that are new here introduce themselves, and take those that may come."""
        online = self.post.online()
        self._held = {node: site for node, site in self._held.items() if node in online}
        for node in sorted(online - self.sites.keys() - self._held.keys()):
            self._ask(node)
        for message, node in list(self._questions.items()):
            found = self.post.fetch(message)
            if found is not None:
                del self._questions[message]
                if node not in self.sites:
                    self._introduced(node, found)
        for node, site in list(self._held.items()):
            self._admit(node, site)

    def _ask(self, node: int) -> None:
        if time.monotonic() - self._asked.get(node, float("-inf")) > max(self.post.patience.ask, 1.0):
            self._asked[node] = time.monotonic()
            message = self.post.send(node, "query.here", Parcel().head("run", self.run).frames)
            if message is not None:
                self._questions[message] = node

    def _introduced(self, node: int, found: dict[str, bytes] | NoAnswer) -> None:
        try:
            if isinstance(found, NoAnswer):
                raise InputError(found.reason)
            site: Here = read(found, "here", Here)
            check(site)
        except (FedquiltError, ValueError) as error:
            self._complain(node, f"did not introduce itself: {told(error)}")
            return
        self._held[node] = site

    def _admit(self, node: int, site: Here) -> None:
        problem = self._objection(node, site)
        if problem:
            self._complain(node, f"cannot join: {problem}", f"{called(site)}, ")
            return
        del self._held[node]
        self.trouble.pop(node, None)
        for client in _people(site):
            self.sites.pop(self._where.get(client, node), None)  # the same site under a new number
            self._where[client] = node
        self.sites[node] = site
        self._names[node] = called(site)
        many = f"{len(site.clients)} client{'s' * (len(site.clients) != 1)}"
        self.note(f"{called(site)} is there, with {many} (node {node})")
        self._back(node)

    def _objection(self, node: int, site: Here) -> str:
        online = self.post.online()
        for client in _people(site):
            holder = self._where.get(client)
            if holder not in (None, node) and holder in online:
                return (
                    f"node {holder}, which is there, also says that it is client {client!r}. Give each site a name of "
                    "its own: fedquilt join --name ..."
                )
        return self._change(site) if self._terms else ""

    def _change(self, site: Here) -> str:
        """How a site differs from what it was when the federation was closed; empty if it does not."""
        before = next((self._terms[c] for c in _people(site) if c in self._terms), None)
        if before is None:
            return "its clients are not part of this run"
        for what in _SAME:
            if getattr(before, what) != getattr(site, what):
                return f"its {what} was {getattr(before, what)} and is now {getattr(site, what)}"
        same = (before.clients, set(before.evaluated), before.fingerprint)
        return "" if same == (site.clients, set(site.evaluated), site.fingerprint) else "its data are not those it had"

    def _complain(self, node: int, text: str, name: str = "") -> None:
        if self.trouble.get(node) != text:
            self.trouble[node] = text
            self.note(f"{name}node {node} {text}")


def _people(site: Here) -> set[ClientId]:
    return {*site.clients, *site.evaluated}


def called(site: Here, most: int = 3) -> str:
    """The name of a site: its own, which is that of its only client, or those of its first clients."""
    names = sorted((told(repr(c), 60) for c in _people(site)), key=lambda name: (len(name), name))
    if len(names) == 1:
        return f"site {names[0]}"
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return f"the site of {', '.join(names[:most])}{rest}"


def check(site: Here) -> None:
    """Raise unless an introduction is well formed and of this version of the protocol."""
    if type(site.protocol) is not int or site.protocol != PROTOCOL:
        raise InputError(f"it speaks version {told(repr(site.protocol), 40)} of the protocol, this server {PROTOCOL}")
    if not (_names_clients(site) and _describes_rows(site) and _tells_texts(site)):
        raise InputError("malformed introduction")
    if not site.clients and not site.evaluated:
        raise InputError("it has no clients")


def _names_clients(site: Here) -> bool:
    """Whether clients are named by ids, with sizes that they can have."""
    if not isinstance(site.clients, dict) or not isinstance(site.evaluated, list):
        return False
    sizes = all(_whole(size, 0, 10**12) for size in site.clients.values())
    return sizes and all_plain([*site.clients, *site.evaluated])


def _describes_rows(site: Here) -> bool:
    """Whether shape, classes and columns of its rows are such as rows can have."""
    if not isinstance(site.shape, tuple) or not all(_whole(side, 1) for side in site.shape):
        return False
    return (site.classes is None or _whole(site.classes, 1, 10**7)) and _is_blank(site.table, site.shape)


def _tells_texts(site: Here) -> bool:
    """Whether words are where words belong."""
    if not isinstance(site.versions, dict):
        return False
    versions = (part for pair in site.versions.items() for part in pair)
    return all(isinstance(text, str) for text in (site.dtype, site.prepare, site.fingerprint, *versions))


def _whole(value: object, low: int, high: float = math.inf) -> bool:
    return type(value) is int and low <= value <= high


def _is_blank(table: object, shape: tuple[int, ...]) -> bool:
    """Whether this names the columns of such rows, or says that they are no table."""
    if not isinstance(table, PerColumn) or not isinstance(table.columns, tuple) or (len(table.columns),) != shape:
        return table is None
    named = (isinstance(c, Column) and isinstance(c.name, str) and isinstance(c.category, bool) for c in table.columns)
    return all(named) and table == table.blank()
