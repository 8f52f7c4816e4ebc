"""Methods with one model per cluster whose clusters are discovered, and then stay, until they are tested or parted.

Before there are clusters everybody trains the one model there is. What differs between methods is said by pieces:

- ``discovery``: the exchange on which clients show what they are clustered by (:class:`Discovery`), in which round it
  is made, and whether it is made again; None where clusters part in another way;
- ``pulls``: terms of the local loss, towards the cluster's model or the round's start;
- ``member``: what a member is sent; ``welcome``: what a client without a cluster is sent, which finds its own by its
  update where clusters have directions, otherwise by its loss;
- ``merged``: what clusters share after each has averaged its members, nothing by default;
- ``opened``: the first model of a cluster that a late client opens.

A method is :class:`Grouped` with these; every cluster is trained as the base trains its one model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Generic, Literal, TypeVar, get_args

import torch
from torch import Tensor

from fedquilt.core.exchange import Cohort, Context, Exchange, Reply
from fedquilt.core.holders import HasDelta, HasPrivate, HasShared
from fedquilt.core.objective import Term
from fedquilt.core.params import Params, check_reach
from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId, Site, in_order
from fedquilt.core.train import Job, Trained
from fedquilt.errors import InputError
from fedquilt.methods.clustered.row_losses import total_loss
from fedquilt.methods.fedavg import C, Download, FedAvg, Server
from fedquilt.methods.on_base import OnBase
from fedquilt.pieces.clustering.result import Assigned, ClusterResult, assign, largest, unknown
from fedquilt.records.declared import shown
from fedquilt.records.record import record

Budget = Literal["cluster", "global"]


@record(name="fedquilt.methods.grouped:Groups")
class Groups:
    """The server's state.

    Args:
        models: The model of each cluster.
        clusters: Who is in which.
        anchor: The model that clients were compared from, {} if they were not compared by models.
        strikes: How often in a row a client was found astray, where that is tested; 0 is left out.
        moved: Who changed clusters since they were found.
    """

    models: tuple[Params, ...]
    clusters: ClusterResult
    anchor: Params = field(default_factory=dict)
    strikes: dict[ClientId, int] = field(default_factory=dict)
    moved: tuple[ClientId, ...] = ()


@record(name="fedquilt.methods.grouped:Welcome")
class Welcome:
    """What a client without a cluster is sent once there are clusters: all that it needs to find its own.

    ``clusters`` holds directions and threshold, no labels; ``common`` replaces a part of the model in a new cluster.
    """

    models: tuple[Params, ...]
    home: int
    anchor: Params
    clusters: ClusterResult
    common: Params

    @property
    def shared(self) -> Params:
        """The model of the largest cluster, to be used until it has found its own."""
        return self.models[self.home]


@record(name="fedquilt.methods.grouped:Joined")
class Joined:
    """The upload of a client that found its cluster; None asks for a new one, made from the nearest."""

    delta: Params
    cluster: int | None
    nearest: int
    vector: Tensor | None


G = TypeVar("G", bound=Groups)
U = TypeVar("U")


@dataclass(frozen=True)
class Pools:
    """A cohort in each cluster by another rule; the first cluster draws as the whole federation would."""

    rule: Cohort

    def __call__(self, state: Groups, ids: Sequence[ClientId], seed: Seed) -> Sequence[ClientId]:
        if not state.clusters.labels:
            return self.rule(state, ids, seed)
        pools: dict[int, list[ClientId]] = {}
        for client in ids:
            pools.setdefault(state.clusters.labels.get(client, state.clusters.k), []).append(client)
        drawn = [self.rule(state, pool, seed.fold("cluster", k) if k else seed) for k, pool in pools.items()]
        return in_order([client for part in drawn for client in part])


def down_anchor(state: Groups, client_id: ClientId) -> Download:
    """The model that clients are compared from."""
    return Download(shared=state.anchor or state.models[0])


@dataclass(frozen=True)
class Discovery:
    """How clusters are found: on an exchange of its own, which is no round of its own.

    Args:
        exchange: Named 'discover'; its ``up`` says who is in which cluster.
        shown: ``(upload, clusters, anchor) -> vector``, of which clusters have directions; None if they have none. A
            client that missed the exchange makes it alone, to compare its own.
        after: Rounds of training before it.
        early: Make it before each of these rounds, too, until there are clusters.
        again: Exchanges after later rounds, each with the number of rounds from one to the next. Of those that are due
            in the same round the first is made.
    """

    exchange: Exchange
    shown: Callable[[Any, ClusterResult, Params], Tensor] | None = None
    after: int = 0
    early: bool = False
    again: tuple[tuple[int, Exchange], ...] = ()

    def exchanges(self) -> tuple[Exchange, ...]:
        """All exchanges."""
        return (self.exchange, *(exchange for _, exchange in self.again))

    def plan(self, state: Groups, round: int) -> tuple[str, ...]:
        """Train; before that, once, discover; after that, now and then, look again."""
        if not state.clusters.labels:
            return ("discover", "train") if self.early or round >= self.after else ("train",)
        since = round - self.after + 1
        due = [exchange.name for every, exchange in self.again if since > 0 and since % every == 0]
        return ("train", *due[:1])

    def vector(self, download: Welcome, client: HasPrivate, site: Site, context: Context) -> Tensor | None:
        """What a client shows that comes late."""
        if self.shown is None:
            return None
        work: Any = self.exchange.work
        aside = replace(context, seed=context.seed.fold("join"))
        upload = work.run(Download(download.anchor), client, site, aside)[1]
        return self.shown(upload, download.clusters, download.anchor)


@dataclass(frozen=True, init=False)
class Grouped(OnBase, Generic[G]):
    """FedAvg inside clusters.

    Args:
        base: How a cluster's model is trained.
        budget: 'cluster' draws the cohort in each cluster, 'global' once among all clients.
    """

    base: FedAvg
    budget: Budget = "cluster"

    def __post_init__(self) -> None:
        if self.budget not in get_args(Budget):
            raise InputError(f"budget must be 'cluster' or 'global', got {self.budget!r}.")
        _ = self.discovery, self.pulls  # pieces check their settings when they are made

    @cached_property
    def discovery(self) -> Discovery | None:
        """How clusters are found."""
        return None

    @cached_property
    def pulls(self) -> tuple[Term, ...]:
        """What the local loss gains."""
        return ()

    def init_server(self, seed: Seed) -> Groups:
        """One model, nobody placed."""
        return Groups((self.base.init_server(seed).shared,), unknown())

    def exchanges(self) -> tuple[Exchange, ...]:
        """The base's exchange, to each client with its cluster's model; and those of the discovery."""
        (train,) = self.base.exchanges()
        cohort = Pools(train.cohort) if self.budget == "cluster" else train.cohort
        train = train.training(start=self.start, finish=self.finish)
        if self.pulls:
            train = train.training(objective=self.base.loss.plus(*self.pulls))
        train = replace(train, down=self.down, up=self.up, check=self.check, cohort=cohort)
        return (train, *(self.discovery.exchanges() if self.discovery else ()))

    def plan(self, state: G, round: int) -> tuple[str, ...]:
        """As the discovery has it."""
        return self.discovery.plan(state, round) if self.discovery else ("train",)

    # Down

    def down(self, state: G, client_id: ClientId) -> HasShared:
        """The model of the client's cluster; what it takes to find one, if it has none."""
        label = state.clusters.labels.get(client_id)
        if label is None and state.clusters.labels:
            return self.welcome(state)
        return self.member(state, label or 0)

    def member(self, state: G, cluster: int) -> HasShared:
        """What a member is sent."""
        return Download(shared=state.models[cluster])

    def welcome(self, state: G) -> Welcome:
        """What a client without a cluster is sent."""
        found = state.clusters
        limit = {n: v for n, v in found.measures.items() if n == "threshold"}
        slim = ClusterResult({}, found.k, found.criterion, directions=found.directions, measures=limit)
        return Welcome(state.models, largest(state.clusters), state.anchor, slim, {})

    # Work

    def start(self, download: HasShared, client: HasPrivate, site: Site, context: Context) -> Job:
        """Begin from the cluster's model, which a client without one chooses first."""
        if not isinstance(download, Welcome):
            return self.base.start(download, client, site, context)
        placed, vector = self.place(download, client, site, context)
        job = self.base.start(Download(chosen(download, placed)), client, site, context)
        return replace(job, memo=(placed, vector))

    def finish(self, job: Job, trained: Trained, client: C, site: Site, context: Context) -> tuple[C, HasDelta]:
        """The change, and for a client that was placed: where."""
        client, upload = self.base.finish(job, trained, client, site, context)
        if job.memo is None:
            return client, upload
        placed, vector = job.memo
        return client, Joined(upload.delta, placed.cluster, placed.nearest, vector)

    def place(
        self, download: Welcome, client: HasPrivate, site: Site, context: Context
    ) -> tuple[Assigned, Tensor | None]:
        """Where this client belongs, and the vector that says so."""
        vector = None if download.clusters.directions is None else self.vector(download, client, site, context)
        if vector is not None:
            return assign(download.clusters, vector), vector
        best, loss = self.best(download, client, site)
        return Assigned(best, best, loss, 0.0, False), None

    def best(self, download: Welcome, client: HasPrivate, site: Site) -> tuple[int, float]:
        """The cluster whose model has the lowest loss on the client's training samples, and that loss."""
        losses = [self.loss_of({**model, **client.private}, site) for model in download.models]
        return losses.index(min(losses)), min(losses)

    def vector(self, download: Welcome, client: HasPrivate, site: Site, context: Context) -> Tensor | None:
        """What the clusters' directions are compared with; None where there is no such thing."""
        return self.discovery.vector(download, client, site, context) if self.discovery else None

    def loss_of(self, model: Params, site: Site) -> float:
        """The loss of a model on the client's training samples, a mean over rows."""
        total = torch.zeros((), dtype=torch.float64)
        with torch.no_grad():
            for batch in site.train.blocks(512):
                total += total_loss(self.net, self.predict(model, batch), batch.y).double()
        return float(total) / max(len(site.train), 1)

    # Up

    def check(self, state: G, upload: HasDelta) -> None:
        """A change fits a model; a client that was placed names a cluster that is there."""
        self.base.check(Server(state.models[0]), upload)
        if isinstance(upload, Joined):
            known = range(len(state.models))
            if upload.nearest not in known or (upload.cluster is not None and upload.cluster not in known):
                raise InputError(f"There are {len(known)} clusters, but the client joined {upload.cluster}.")
            self._check_vector(state, upload)

    def _check_vector(self, state: G, upload: Joined) -> None:
        vector, aims, model = upload.vector, state.clusters.directions, state.models[0]
        if vector is None:
            if upload.cluster is None and aims is not None:
                raise InputError("A client that opens a cluster must show its vector.")
            return
        if aims is None or vector.shape != aims.shape[1:] or vector.dtype not in {t.dtype for t in model.values()}:
            raise InputError(f"The client's vector is {shown(vector)}, unlike the clusters'.")
        check_reach({"vector": vector}, model, "The client's vector")

    def up(self, state: G, replies: Iterable[Reply[HasDelta]], context: Context) -> G:
        """Average inside clusters."""
        heard = list(replies)
        for reply in heard:
            if isinstance(reply.upload, Joined) and reply.client not in state.clusters.labels:
                state = self.admit(state, reply.client, reply.upload)
        return self.merged(state, heard, context) if heard else state

    def admit(self, state: G, client: ClientId, upload: Joined) -> G:
        """Enter a late client; it may open a cluster. Numbers of clusters stay as they are."""
        found = state.clusters
        if upload.cluster is not None:
            return replace(state, clusters=replace(found, labels={**found.labels, client: upload.cluster}))
        aims = found.directions
        if aims is not None and upload.vector is not None:
            one = upload.vector.double() / upload.vector.double().square().sum().sqrt()
            aims = torch.cat([aims, one.float()[None]])
        clusters = replace(found, labels={**found.labels, client: found.k}, k=found.k + 1, directions=aims)
        return replace(state, clusters=clusters, models=(*state.models, self.opened(state, upload.nearest)))

    def opened(self, state: G, nearest: int) -> Params:
        """The first model of a new cluster."""
        return state.models[nearest]

    def merged(self, state: G, heard: Sequence[Reply[HasDelta]], context: Context) -> G:
        """Each cluster's model after hearing its members; without members heard it stays."""
        parts = split(state.clusters, heard)
        models = (
            self.base.aggregate(m, p, inside(context, k))
            for k, (m, p) in enumerate(zip(state.models, parts, strict=True))
        )
        return replace(state, models=tuple(models))

    # Questions

    def global_model(self, state: Groups) -> Params | None:
        """The only model, as long as there is only one."""
        return self.base.global_model(Server(state.models[0])) if len(state.models) == 1 else None

    def select_model(self, download: HasShared, client: HasPrivate, site: Site) -> Params | None:
        """For a client without a cluster: the model with the lowest loss on its training samples."""
        if not isinstance(download, Welcome):
            return None
        return {**download.models[self.best(download, client, site)[0]], **client.private}

    def newcomer_model(self, download: HasShared, client: HasPrivate, site: Site, context: Context) -> Params:
        """The model of the cluster that a newcomer with these rows belongs to."""
        if not isinstance(download, Welcome):
            return self.personal_model(download, client)
        placed, _ = self.place(download, client, site, context)
        return {**chosen(download, placed), **client.private}


def chosen(download: Welcome, placed: Assigned) -> Params:
    """The model that a client begins with: its cluster's, or the nearest one's with the common part."""
    nearest = download.models[placed.nearest]
    return nearest if placed.cluster is not None else {**nearest, **download.common}


def split(clusters: ClusterResult, heard: Sequence[Reply[U]]) -> list[list[Reply[U]]]:
    """The replies of each cluster; those of clients without one go to the largest."""
    parts: list[list[Reply[U]]] = [[] for _ in range(clusters.k)]
    home = largest(clusters)
    for reply in heard:
        parts[clusters.labels.get(reply.client, home)].append(reply)
    return parts


def inside(context: Context, cluster: int) -> Context:
    """The turn of one cluster; the first has the round's own."""
    return replace(context, seed=context.seed.fold("cluster", cluster)) if cluster else context
