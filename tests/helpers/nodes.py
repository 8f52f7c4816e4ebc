"""A Flower federation in this process: the clients of a federation dealt to a few nodes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedquilt.core.table import ClientId, Site, Table
from fedquilt.engines.flower.apps import FlowerClient, keeper, versions
from fedquilt.engines.flower.engine import Flower, Patience
from fedquilt.engines.flower.inprocess import InProcess
from fedquilt.engines.flower.keep import InMemory, Keep
from fedquilt.engines.flower.node import Node


@dataclass(frozen=True)
class Part:
    """Some clients of a federation, as one site would have them."""

    whole: Any
    ids: tuple[ClientId, ...]
    evaluated: tuple[ClientId, ...]

    @property
    def classes(self) -> int | None:
        """As the whole."""
        return self.whole.classes

    def site(self, client: ClientId, round: int) -> Site:
        """The client's data; other sites' clients are not to be had."""
        assert client in self.ids
        return self.whole.site(client, round)

    def evaluation(self, client: ClientId, split: str, round: int = 0) -> Table | None:
        """The client's held-out samples."""
        assert client in self.evaluated
        return self.whole.evaluation(client, split, round)

    def size(self, client: ClientId) -> int:
        """The client's number of rows."""
        return self.whole.size(client)

    def fingerprint(self) -> str:
        """Of the whole: good enough here."""
        return self.whole.fingerprint()


def parts(federation: Any, nodes: int) -> list[Part]:
    """The clients, dealt in turn."""
    evaluated = tuple(federation.evaluated)
    return [Part(federation, tuple(federation.ids)[n::nodes], evaluated[n::nodes]) for n in range(nodes)]


Seen = list[tuple[Part, str, dict[str, bytes]]]  # the messages that nodes got: whose, of which kind, what was in it


def grid(
    federation: Any,
    nodes: int = 2,
    folder: Path | None = None,
    trusted: tuple[str, ...] = ("helpers",),
    seen: Seen | None = None,
    trusted_code: tuple[str, ...] = (),
) -> InProcess:
    """A grid of so many nodes; ``seen`` gets all that they get."""
    apps = {}
    for number, part in enumerate(parts(federation, nodes), start=11):
        apps[number] = FlowerClient(
            _Serving(part, None if folder is None else folder / f"node-{number}", trusted, seen, trusted_code)
        )
    return InProcess(apps)


class _Serving:
    """Answers messages in this process, with states in Flower's context or in a folder."""

    def __init__(
        self,
        part: Part,
        folder: Path | None,
        trusted: tuple[str, ...],
        seen: Seen | None = None,
        trusted_code: tuple[str, ...] = (),
    ) -> None:
        refused = None if folder is None else folder / "refused"
        self.node = Node(part, lambda run: Keep(InMemory({})), trusted, trusted_code=trusted_code, refused=refused)
        self.part, self.folder, self.seen = part, folder, seen

    def __call__(self, kind: str, frames: dict[str, bytes], context: Any) -> dict[str, bytes]:
        if self.seen is not None:
            self.seen.append((self.part, kind, dict(frames)))
        self.node.keep = keeper(context, self.folder)
        return self.node.answer(kind, frames, versions())


def site(source: Any, folder: Path | None = None, trusted: tuple[str, ...] = ("helpers",)) -> FlowerClient:
    """The client app of one site."""
    return FlowerClient(_Serving(source, folder, trusted))


def flower(over: InProcess, deadline: float = 20, **settings: Any) -> Flower:
    """An engine that does not wait long."""
    return Flower(over, patience=Patience(deadline=deadline, ask=5, pause=0.002), **settings)
