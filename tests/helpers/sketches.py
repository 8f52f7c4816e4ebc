"""IFCA in short: a test-only method that stresses several models."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from fedquilt.core.exchange import Context, Exchange, Reply
from fedquilt.core.params import Params, sub
from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId, Site
from fedquilt.core.train import Job, Trained
from fedquilt.methods.fedavg import FedAvg, Server
from fedquilt.methods.on_base import OnBase
from fedquilt.metrics.classify import classify
from fedquilt.records.record import record


@record
class Clusters:
    models: tuple[Params, ...]


@record
class Member:
    cluster: int


@record
class Vote:
    delta: Params
    cluster: int


@dataclass(frozen=True, kw_only=True)
class IFCA(OnBase):
    """K models; each client trains the one with the lowest loss on its rows (Ghosh et al., 2020)."""

    base: FedAvg
    clusters: int

    def init_server(self, seed: Seed) -> Clusters:
        return Clusters(tuple(self.base.net.init(seed.fold(k)) for k in range(self.clusters)))

    def init_client(self, seed: Seed) -> Member:
        return Member(0)

    def exchanges(self) -> tuple[Exchange, ...]:
        (train,) = self.base.exchanges()
        work = replace(train.work, start=self.start, finish=self.finish)
        return (replace(train, down=self.down, work=work, up=self.up, check=self.check),)

    def down(self, state: Clusters, client_id: ClientId) -> Clusters:
        return state

    def start(self, download: Clusters, client: Member, site: Site, context: Context) -> Job:
        losses = [classify(self.predict, m, site.train).loss for m in download.models]
        k = losses.index(min(losses))
        return Job(params=download.models[k], fixed={"start": download.models[k]}, memo=k)

    def finish(self, job: Job, trained: Trained, client: Member, site: Site, context: Context) -> tuple[Member, Vote]:
        return Member(job.memo), Vote(sub(trained.params, job.fixed["start"]), job.memo)

    def check(self, state: Clusters, upload: Vote) -> None:
        self.base.check(Server(state.models[upload.cluster]), upload)

    def up(self, state: Clusters, replies: Iterable[Reply[Vote]], context: Context) -> Clusters:
        heard = list(replies)
        parts = [[r for r in heard if r.upload.cluster == k] for k in range(self.clusters)]
        return Clusters(tuple(self.base.aggregate(m, p, context) for m, p in zip(state.models, parts, strict=True)))

    def global_model(self, state: Clusters) -> None:
        return None

    def personal_model(self, download: Clusters, client: Member) -> Params:
        return download.models[client.cluster]
