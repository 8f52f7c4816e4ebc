"""What methods with one model per cluster share: who gets which model, averaging inside clusters, late clients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy as cross_entropy_of

from fedquilt.core.declared import shown
from fedquilt.core.errors import InputError
from fedquilt.core.exchange import Cohort, Exchange, Reply, Turn
from fedquilt.core.params import Params, check_reach
from fedquilt.core.record import record
from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId, Site, in_order
from fedquilt.core.train import Job, Trained
from fedquilt.methods.fedavg import Download, FedAvg, Server
from fedquilt.methods.on_base import OnBase
from fedquilt.pieces.clustering.result import Assigned, ClusterResult, assign, largest, unknown


@record
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


@record
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


@record
class Joined:
    """The upload of a client that found its cluster; None asks for a new one, made from the nearest."""

    delta: Params
    cluster: int | None
    nearest: int
    vector: Tensor | None


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


@dataclass(frozen=True, kw_only=True)
class Grouped(OnBase):
    """FedAvg inside clusters. Subclasses say how clusters are found.

    Before there are clusters everybody is in the first. A client that was not there when clusters were found finds its
    own at its first visit: by its update from the anchor where clusters have directions, otherwise by its loss.

    Args:
        base: How a cluster's model is trained.
        budget: 'cluster' draws the cohort in each cluster, 'global' once among all clients.
    """

    base: FedAvg
    budget: Literal["cluster", "global"] = "cluster"

    def __post_init__(self) -> None:
        if self.budget not in ("cluster", "global"):
            raise InputError(f"budget must be 'cluster' or 'global', got {self.budget!r}.")

    def init_server(self, seed: Seed) -> Groups:
        """One model, nobody placed."""
        return Groups((self.base.init_server(seed).shared,), unknown())

    def exchanges(self) -> tuple[Exchange, ...]:
        """The base's trip, to each client with its cluster's model."""
        (train,) = self.base.exchanges()
        cohort = Pools(train.cohort) if self.budget == "cluster" else train.cohort
        train = train.training(start=self.start, finish=self.finish)
        return (replace(train, down=self.down, up=self.up, check=self.check, cohort=cohort),)

    # Down

    def down(self, state: Groups, client_id: ClientId) -> Any:
        """The model of the client's cluster; what it takes to find one, if it has none."""
        label = state.clusters.labels.get(client_id)
        if label is None and state.clusters.labels:
            return self.welcome(state)
        return self.member(state, label or 0)

    def member(self, state: Groups, cluster: int) -> Any:
        """What a member is sent."""
        return Download(shared=state.models[cluster])

    def welcome(self, state: Groups) -> Welcome:
        """What a client without a cluster is sent."""
        found = state.clusters
        limit = {n: v for n, v in found.measures.items() if n == "threshold"}
        slim = ClusterResult({}, found.k, found.criterion, directions=found.directions, measures=limit)
        return Welcome(state.models, largest(state.clusters), state.anchor, slim, {})

    # Work

    def start(self, download: Any, client: Any, site: Site, turn: Turn) -> Job:
        """Begin from the cluster's model, which a client without one chooses first."""
        if not isinstance(download, Welcome):
            return self.base.start(download, client, site, turn)
        placed, vector = self.place(download, client, site, turn)
        job = self.base.start(Download(chosen(download, placed)), client, site, turn)
        return replace(job, memo=(placed, vector))

    def finish(self, job: Job, trained: Trained, client: Any, site: Site, turn: Turn) -> tuple[Any, Any]:
        """The change, and for a client that was placed: where."""
        client, upload = self.base.finish(job, trained, client, site, turn)
        if job.memo is None:
            return client, upload
        placed, vector = job.memo
        return client, Joined(upload.delta, placed.cluster, placed.nearest, vector)

    def place(self, download: Welcome, client: Any, site: Site, turn: Turn) -> tuple[Assigned, Tensor | None]:
        """Where this client belongs, and the vector that says so."""
        vector = None if download.clusters.directions is None else self.vector(download, client, site, turn)
        if vector is not None:
            return assign(download.clusters, vector), vector
        best, loss = self.best(download, client, site)
        return Assigned(best, best, loss, 0.0, False), None

    def best(self, download: Welcome, client: Any, site: Site) -> tuple[int, float]:
        """The cluster whose model has the lowest loss on the client's training rows, and that loss."""
        losses = [self.loss_of({**model, **client.private}, site) for model in download.models]
        return losses.index(min(losses)), min(losses)

    def vector(self, download: Welcome, client: Any, site: Site, turn: Turn) -> Tensor | None:
        """What the clusters' directions are compared with; None where there is no such thing."""
        return None

    def loss_of(self, model: Params, site: Site) -> float:
        """Cross-entropy of a model on the client's training rows, a mean over rows."""
        total = torch.zeros((), dtype=torch.float64)
        with torch.no_grad():
            for batch in site.train.blocks(512):
                total += cross_entropy_of(self.predict(model, batch), batch.y, reduction="sum").double()
        return float(total) / max(len(site.train), 1)

    # Up

    def check(self, state: Groups, upload: Any) -> None:
        """A change fits a model; a client that was placed names a cluster that is there."""
        self.base.check(Server(state.models[0]), upload)
        if isinstance(upload, Joined):
            known, aims = range(len(state.models)), state.clusters.directions
            if upload.nearest not in known or (upload.cluster is not None and upload.cluster not in known):
                raise InputError(f"There are {len(known)} clusters, but the client joined {upload.cluster}.")
            vector, dtypes = upload.vector, {t.dtype for t in state.models[0].values()}
            if vector is not None and (aims is None or vector.shape != aims.shape[1:] or vector.dtype not in dtypes):
                raise InputError(f"The client's vector is {shown(vector)}, unlike the clusters'.")
            if vector is not None:
                check_reach({"vector": vector}, state.models[0], "The client's vector")
            if vector is None and upload.cluster is None and aims is not None:
                raise InputError("A client that opens a cluster must show its vector.")

    def up(self, state: Groups, replies: Iterable[Reply[Any]], turn: Turn) -> Any:
        """Average inside clusters."""
        heard = list(replies)
        for reply in heard:
            if isinstance(reply.upload, Joined) and reply.client not in state.clusters.labels:
                state = self.admit(state, reply)
        return self.merged(state, heard, turn) if heard else state

    def admit(self, state: Groups, reply: Reply[Joined]) -> Groups:
        """Enter a late client; it may open a cluster. Numbers of clusters stay as they are."""
        found, upload = state.clusters, reply.upload
        if upload.cluster is not None:
            return replace(state, clusters=replace(found, labels={**found.labels, reply.client: upload.cluster}))
        aims = found.directions
        if aims is not None and upload.vector is not None:
            one = upload.vector.double() / upload.vector.double().square().sum().sqrt()
            aims = torch.cat([aims, one.float()[None]])
        clusters = replace(found, labels={**found.labels, reply.client: found.k}, k=found.k + 1, directions=aims)
        return replace(state, clusters=clusters, models=(*state.models, self.opened(state, upload.nearest)))

    def opened(self, state: Groups, nearest: int) -> Params:
        """The first model of a new cluster."""
        return state.models[nearest]

    def merged(self, state: Groups, heard: Sequence[Reply[Any]], turn: Turn) -> Groups:
        """Each cluster's model after hearing its members; without members heard it stays."""
        parts = split(state.clusters, heard)
        models = (
            self.base.aggregate(m, p, inside(turn, k)) for k, (m, p) in enumerate(zip(state.models, parts, strict=True))
        )
        return replace(state, models=tuple(models))

    # Questions

    def global_model(self, state: Groups) -> Params | None:
        """The only model, as long as there is only one."""
        return self.base.global_model(Server(state.models[0])) if len(state.models) == 1 else None

    def select_model(self, download: Any, client: Any, site: Site) -> Params | None:
        """For a client without a cluster: the model with the lowest loss on its training rows."""
        if not isinstance(download, Welcome):
            return None
        return {**download.models[self.best(download, client, site)[0]], **client.private}

    def newcomer_model(self, download: Any, client: Any, site: Site, turn: Turn) -> Params:
        """The model of the cluster that a newcomer with these rows belongs to."""
        if not isinstance(download, Welcome):
            return self.personal_model(download, client)
        placed, _ = self.place(download, client, site, turn)
        return {**chosen(download, placed), **client.private}


def chosen(download: Welcome, placed: Assigned) -> Params:
    """The model that a client begins with: its cluster's, or the nearest one's with the common part."""
    nearest = download.models[placed.nearest]
    return nearest if placed.cluster is not None else {**nearest, **download.common}


def split(clusters: ClusterResult, heard: Sequence[Reply[Any]]) -> list[list[Reply[Any]]]:
    """The replies of each cluster; those of clients without one go to the largest."""
    parts: list[list[Reply[Any]]] = [[] for _ in range(clusters.k)]
    home = largest(clusters)
    for reply in heard:
        parts[clusters.labels.get(reply.client, home)].append(reply)
    return parts


def inside(turn: Turn, cluster: int) -> Turn:
    """The turn of one cluster; the first has the round's own."""
    return replace(turn, seed=turn.seed.fold("cluster", cluster)) if cluster else turn
