"""FedAvg, and the records most methods share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, TypeVar

from torch import Tensor, nn

from fedquilt.core.exchange import Codec, Cohort, Context, Exchange, Reply, everyone, plain
from fedquilt.core.holders import HasDelta, HasPrivate, HasShared
from fedquilt.core.net import Net, logits_of
from fedquilt.core.objective import Objective
from fedquilt.core.own_loop import Loop, check_loop
from fedquilt.core.params import Names, Params, Parts, check_change, everything, pick, sub
from fedquilt.core.seed import Seed
from fedquilt.core.table import Batch, ClientId, Site
from fedquilt.core.train import Job, Optimizer, Schedule, Train, Trained, constant
from fedquilt.errors import InputError
from fedquilt.pieces.aggregators import Aggregator, mean
from fedquilt.pieces.objectives import cross_entropy
from fedquilt.pieces.optimizers import SGD, check_optimizer
from fedquilt.records.record import record

S = TypeVar("S", bound=HasShared)
C = TypeVar("C", bound=HasPrivate)


@record
class Server:
    """The server's state: the shared part of the model."""

    shared: Params


@record
class Client:
    """A client's state: the private part of the model."""

    private: Params


@record
class Owner:
    """The state of a client that also keeps a whole model of its own ({} before it has one)."""

    private: Params
    own: Params


@record
class Download:
    """What a client is sent: the shared part of the model."""

    shared: Params


@record
class Upload:
    """What a client answers: how the shared part changed, after minus before."""

    delta: Params


def net_of(objective: Objective | Net) -> Net:
    """The network, also when only a net was given."""
    return objective if isinstance(objective, Net) else objective.net


def refuse_loop(base: FedAvg, why: str) -> None:
    """For methods that need to know how a client made its steps."""
    if base.client_update is not None:
        raise InputError(
            f"This method {why}, so it cannot use a custom training loop (client_update). Leave client_update "
            "out, or use another method, such as FedAvg or FedProx."
        )


@dataclass(frozen=True, kw_only=True)
class FedAvg:
    """Average what is shared; what is private stays home.

    w <- w + sum_i n_i (w_i - w) / sum_i n_i, where w_i is client i's model after local training from w.
    With ``parts``, the private names are kept by each client and never sent.

    Args:
        objective: The network and the terms of the local loss; a bare ``Net`` means cross-entropy, or the loss of its
            task.
        optimizer: For local work, with its learning rate: ``SGD(0.1)``, ``Adam(0.001)``.
        parts: Which names are shared and which private.
        aggregate: How the changes are merged; ``mean`` weights clients by samples.
        codec: How uploads travel.
        cohort: Who is asked each round.
        epochs, epochs_first, steps, batch_size, schedule, clip, only: See :class:`fedquilt.core.train.Train`.
        shared_start: Whether the private parts of all clients start with the same values, those of the server's first
            model, instead of each with its own; see :func:`fedquilt.core.deployed.first_state`.
        client_update: A training loop of your own for the local work, ``(model, data_loader, context) -> metrics``; see
            :func:`fedquilt.client_update`. Its optimiser, schedule and loss replace those given here.

    Reference: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, 2017.

    Example:
        >>> from fedquilt import Net, models
        >>> method = FedAvg(Net.of(models.MLP, features=64, classes=10), batch_size=10, epochs=2)
    """

    needs_classes: ClassVar[str] = ""  # why a method cannot learn anything but one class label for each row

    objective: Objective | Net = field(kw_only=False)
    optimizer: Optimizer = SGD(0.05)  # noqa: RUF009 - frozen, so it can be shared
    parts: Parts = Parts()  # noqa: RUF009
    aggregate: Aggregator = mean
    codec: Codec = plain
    cohort: Cohort = everyone
    epochs: int = 1
    steps: int | None = None
    batch_size: int = 32
    schedule: Schedule = constant
    clip: float | None = None
    only: Names = everything
    epochs_first: int | None = None
    shared_start: bool = False
    client_update: Loop | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.objective, Objective | Net):
            given: object = self.objective
            named = given.__name__ if isinstance(given, type) else type(given).__name__
            kind = "class " if isinstance(given, type) else "module " if isinstance(given, nn.Module) else ""
            raise InputError(
                f"objective must be a fedquilt.Net or an Objective, got {f'the {kind}' if kind else ''}{named}. "
                "Wrap a module's class: objective=fedquilt.Net(MyModule)."
            )
        check_optimizer(self.optimizer)
        if self.client_update is not None:
            check_loop(self.client_update)
        for name, what in (("aggregate", "mean"), ("cohort", "fraction(0.3)"), ("schedule", "cosine(rounds=20)")):
            if not callable(getattr(self, name)):
                raise InputError(f"{name} must be a function such as {what}, got {getattr(self, name)!r}.")

    @property
    def loss(self) -> Objective:
        """The objective, also when only a net was given."""
        net = self.objective
        return Objective(net, (net.task or cross_entropy,)) if isinstance(net, Net) else net

    @property
    def net(self) -> Net:
        """The network."""
        return self.loss.net

    def init_server(self, seed: Seed) -> Server:
        """The shared part of a fresh model."""
        self.parts.check(self.net.names)
        return Server(shared=pick(self.parts.shared, self.net.init(seed)))

    def init_client(self, seed: Seed) -> Client:
        """The private part of a fresh model; every client starts with its own, unless with ``shared_start``."""
        if not any(self.parts.private(n) for n in self.net.names):
            return Client(private={})
        return Client(private=pick(self.parts.private, self.net.init(seed)))

    def trained(self, params: Params) -> Params:
        """The shared weights among ``params``: what a gradient moves, so neither buffers nor private names."""
        return {n: params[n] for n in self.net.trainable if n in params and self.parts.shared(n)}

    def exchanges(self) -> tuple[Exchange, ...]:
        """One exchange a round: train."""
        work = Train(
            start=self.start,
            objective=self.loss,
            finish=self.finish,
            optimizer=self.optimizer,
            epochs=self.epochs,
            steps=self.steps,
            batch_size=self.batch_size,
            schedule=self.schedule,
            clip=self.clip,
            only=self.only,
            epochs_first=self.epochs_first,
            loop=self.client_update,
        )
        return (Exchange("train", self.down, work, self.up, self.codec, self.cohort, self.check),)

    def plan(self, state: HasShared, round: int) -> tuple[str, ...]:
        """The same every round."""
        return ("train",)

    def down(self, state: HasShared, client_id: ClientId) -> Download:
        """The shared part, the same for everyone."""
        return Download(shared=state.shared)

    def start(self, download: HasShared, client: HasPrivate, site: Site, context: Context) -> Job:
        """Begin from the shared part and one's own private part."""
        return Job(params={**download.shared, **client.private}, fixed={"start": download.shared})

    def finish(self, job: Job, trained: Trained, client: C, site: Site, context: Context) -> tuple[C, Upload]:
        """Keep the private part, send the change of the shared one."""
        delta = sub(pick(self.parts.shared, trained.params), job.fixed["start"])
        return replace(client, private=pick(self.parts.private, trained.params)), Upload(delta=delta)

    def check(self, state: HasShared, upload: HasDelta) -> None:
        """A change has the names and shapes of what it changes."""
        check_change(state.shared, upload.delta, "upload")

    def up(self, state: S, replies: Iterable[Reply[HasDelta]], context: Context) -> S:
        """Merge the changes."""
        return replace(state, shared=self.aggregate(state.shared, replies, context))

    def observe(self, state: S, metrics: Mapping[str, float]) -> S:
        """Metrics change nothing."""
        return state

    def global_model(self, state: HasShared) -> Params | None:
        """The shared part, if it is a whole model."""
        return state.shared if state.shared.keys() >= set(self.net.names) else None

    def personal_model(self, download: HasShared, client: HasPrivate) -> Params:
        """The shared part with the client's own private part."""
        return {**download.shared, **client.private}

    def predict(self, params: Params, batch: Batch) -> Tensor:
        """The network's class scores."""
        return logits_of(self.net(params, batch))
