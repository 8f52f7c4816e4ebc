"""Exchanges: the shapes every method is made of.

In one exchange the server sends each client of the cohort a download (``down``), the clients work (``work``), and the
server aggregates their uploads (``up``). No function sees both the server's state and a client's data; the signatures
forbid it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, Protocol

from torch import Tensor

from fedquilt.core.params import Params
from fedquilt.core.seed import Seed
from fedquilt.core.table import Batch, ClientId, Site, in_order
from fedquilt.errors import InputError
from fedquilt.moved import moved, renamed

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    S = TypeVar("S", default=Any)  # the server's state
    D = TypeVar("D", default=Any)  # a download, as the client sees it
    C = TypeVar("C", default=Any)  # a client's state
    U = TypeVar("U", default=Any)  # an upload, as the server sees it
    R = TypeVar("R", covariant=True, default=Any)  # in a reply, one of a narrower type will do
else:
    from typing import TypeVar

    S, D, C, U = TypeVar("S"), TypeVar("D"), TypeVar("C"), TypeVar("U")
    R = TypeVar("R", covariant=True)


@dataclass(frozen=True)
class Context:
    """Where in a run a piece of work happens.

    Args:
        round: Counted from 0. (What people read, metrics and messages, counts from 1.)
        client: None on the server.
        seed: For all randomness of this piece of work.
        clients: On the server, how many clients the federation has; 0 at a client, which need not know.

    Example:
        >>> Context(round=0, client=3, seed=Seed(0)).client
        3
    """

    round: int
    client: ClientId | None
    seed: Seed
    clients: int = 0


@dataclass(frozen=True)
class Reply(Generic[R]):
    """What one client answered. ``samples`` is the number of training samples behind it.

    Example:
        >>> Reply(client="oslo", samples=42, upload=None).samples
        42
    """

    client: ClientId
    samples: int
    upload: R
    examples = renamed("examples", "samples")


@dataclass(frozen=True)
class Sifted:
    """What checks of a cohort leave of its replies: those that count; who is left out, and why; whose replies count for
    less, and how; and what to know in later rounds, as JSON has it."""

    kept: list[Reply[Any]]
    odd: dict[ClientId, str]
    bounded: dict[ClientId, str]
    past: dict[str, Any]


class Codec(Protocol):
    """How an upload or a download travels. ``sent`` is what both sides hold: of an upload, the download before it.

    ``memory`` is the codec's own record at the client (a residual, say), kept with the client's state; a codec
    without memory returns what it was given. Of a download, ``sent`` and ``memory`` are None: a server keeps nothing
    for each client.
    """

    def encode(self, upload: Any, sent: Any, memory: Any, seed: Seed) -> tuple[Any, Any]:
        """(upload, ...) -> (what travels, new memory)."""
        ...

    def decode(self, wire: Any, sent: Any) -> Any:
        """What the server sees."""
        ...


@dataclass(frozen=True)
class Plain:
    """The codec that changes nothing."""

    def encode(self, upload: Any, sent: Any, memory: Any, seed: Seed) -> tuple[Any, Any]:
        """The upload as it is."""
        return upload, memory

    def decode(self, wire: Any, sent: Any) -> Any:
        """The upload as it is."""
        return wire


plain = Plain()


Cohort = Callable[[Any, Sequence[ClientId], Seed], Sequence[ClientId]]


def everyone(state: object, ids: Sequence[ClientId], seed: Seed) -> Sequence[ClientId]:
    """Ask every client."""
    return ids


@dataclass(frozen=True)
class fraction:
    """Ask ``max(1, int(share * N))`` clients, drawn without replacement, anew each round.

    Example:
        >>> len(fraction(0.3)(None, range(10), Seed(0)))
        3
    """

    share: float

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise InputError(f"fraction needs a share in (0, 1], got {self.share}.")

    def __call__(self, state: object, ids: Sequence[ClientId], seed: Seed) -> Sequence[ClientId]:
        return at_random(max(1, int(self.share * len(ids))))(state, ids, seed)


@dataclass(frozen=True)
class at_random:
    """Ask ``count`` clients (or all, if there are fewer), drawn without replacement, anew each round.

    Example:
        >>> len(at_random(2)(None, range(10), Seed(0)))
        2
    """

    count: int

    def __post_init__(self) -> None:
        if self.count < 1:
            raise InputError(f"at_random needs a count of at least 1, got {self.count}.")

    def __call__(self, state: object, ids: Sequence[ClientId], seed: Seed) -> Sequence[ClientId]:
        if self.count >= len(ids):
            return ids
        chosen = seed.numpy().choice(len(ids), size=self.count, replace=False)
        return in_order([ids[i] for i in chosen])


def anything(state: object, upload: object) -> None:
    """Accept every upload; see ``Exchange.check``."""


def unmoved(state: S, replies: Iterable[Reply[U]], context: Context) -> S:
    """The ``up`` of an exchange that only brings clients something: the server stays as it is."""
    return state


def as_it_is(message: U) -> U:
    """The message; see ``Exchange.uncoded``."""
    return message


@dataclass(frozen=True)
class Exchange(Generic[S, D, C, U]):
    """One exchange.

    Args:
        name: A Python identifier; on a Flower federation it is also the message action.
        down: ``(server_state, client_id) -> download``. Server side.
        work: ``(download, client_state, site, context) -> (client_state, upload)``. Client side; usually a ``Train``.
        up: ``(server_state, replies, context) -> server_state``. Server side; replies stream in ascending client id.
        codec: How the upload travels.
        cohort: ``(server_state, ids, seed) -> ids`` who is asked. Two exchanges of one round with the same rule
            ask the same clients.
        check: ``(server_state, upload) -> None``, raises when an upload cannot belong here (wrong names or
            shapes). The reply is then dropped, with the reason in ``dropped.jsonl``.
        download: How the download travels. What ``work`` gets, and an upload's codec takes for ``sent``, is what came
            out of it.
        upload: The type of an upload, if ``check`` does not look at it: a record, a union of records, or None for
            exchanges whose clients have nothing to say. Whatever it is, the fields of records hold what their
            annotations declare (see :mod:`fedquilt.records.declared`), or the reply is left out.
        most_bytes: The longest frame that an upload may have; by default 64 MiB and 16 times its download, or the
            server's state, if that is larger.
        for_scores: The exchange only makes clients' models ready for use, and training never sees what it leaves. It is
            made in rounds after which models are scored, and in the last one.
        uncoded: ``message -> message``: an upload or a download as large as it would be, had the method itself coded
            nothing in it. For the account of bytes only, so tensors may be on the device 'meta'.

    Example:
        >>> from fedquilt.testing import fedavg
        >>> (train,) = fedavg().exchanges()
        >>> train.name
        'train'
    """

    name: str
    down: Callable[[S, ClientId], D]
    work: Callable[[D, C, Site, Context], tuple[C, U]]
    up: Callable[[S, Iterable[Reply[U]], Context], S]
    codec: Codec = plain
    cohort: Cohort = everyone
    check: Callable[[S, U], None] = anything
    download: Codec = plain
    upload: Any = Any
    most_bytes: int | None = None
    for_scores: bool = False
    uncoded: Callable[[Any], Any] = as_it_is

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise InputError(f"An exchange's name must be a Python identifier, got {self.name!r}.")
        if getattr(self.download, "needs_memory", False):
            raise InputError(
                f"The codec {self.download!r} remembers what it lost, but a server keeps no memory for each client. "
                "Use it for uploads, and a codec without memory for downloads."
            )

    def carried(self, download: D, seed: Seed) -> tuple[D, object]:
        """(what a client sees of a download, what travels)."""
        if self.download == plain:
            return download, download
        wire, _ = self.download.encode(download, None, None, seed)
        return self.download.decode(wire, None), wire

    def downloaded(self, state: S, client: ClientId, round: int, seed: Seed) -> D:
        """The download as a client would see it after so many rounds of the run with this seed."""
        return self.carried(self.down(state, client), self.download_seed(round, seed))[0]

    def download_seed(self, round: int, seed: Seed) -> Seed:
        """For the randomness of the download's codec: equal downloads of one round are coded alike."""
        return seed.fold("download", self.name, round)

    def training(self, **changes: object) -> Exchange[S, D, C, U]:
        """The same exchange with changes of its local training: ``start``, ``objective``, ``finish``, ``only``, ..."""
        work: Any = self.work
        return replace(self, work=replace(work, **changes))


class Method(Protocol[S, C]):
    """What an engine asks of a method. All answers are pure functions of the arguments.

    Example:
        >>> from fedquilt.testing import fedavg
        >>> fedavg().plan(state=None, round=0)
        ('train',)
    """

    def init_server(self, seed: Seed) -> S:
        """The server's state before the first round: a record."""
        ...

    def init_client(self, seed: Seed) -> C:
        """A client's state before its first client update: a record."""
        ...

    def exchanges(self) -> tuple[Exchange, ...]:
        """Every exchange this method ever makes."""
        ...

    def plan(self, state: S, round: int) -> tuple[str, ...]:
        """The names of the exchanges of this round (from 0), in order.

        It is also asked about the round after the last one: a client's model is scored with the download that the
        first of those exchanges would bring it.
        """
        ...

    def observe(self, state: S, metrics: Mapping[str, float]) -> S:
        """Hear the last evaluation; returns the server's state."""
        ...

    def global_model(self, state: S) -> Params | None:
        """What a new client would be given, or None when there is no such model."""
        ...

    def personal_model(self, download: Any, client: C) -> Params:
        """What this client would use now."""
        ...

    def predict(self, params: Params, batch: Batch) -> Tensor:
        """Class scores [rows, classes] of a model that ``global_model`` or ``personal_model`` gave."""
        ...


def __getattr__(name: str) -> Any:
    return moved(f"{__name__}:{name}")
