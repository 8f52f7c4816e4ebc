"""IFCA and HGLS in short: test-only methods that stress several models, private state and two-trip rounds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from fedquilt.core.exchange import Exchange, OnBase, Reply, Turn
from fedquilt.core.params import Params, add, cosine, dot, pick, same_names, sub, zeros_like
from fedquilt.core.record import record
from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId, Site
from fedquilt.core.train import Job, Trained
from fedquilt.methods.fedavg import FedAvg, Server
from fedquilt.metrics.classify import classify


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

    def start(self, download: Clusters, client: Member, site: Site, turn: Turn) -> Job:
        losses = [classify(self.predict, m, site.train).loss for m in download.models]
        k = losses.index(min(losses))
        return Job(params=download.models[k], fixed={"start": download.models[k]}, memo=k)

    def finish(self, job: Job, trained: Trained, client: Member, site: Site, turn: Turn) -> tuple[Member, Vote]:
        return Member(job.memo), Vote(sub(trained.params, job.fixed["start"]), job.memo)

    def check(self, state: Clusters, upload: Vote) -> None:
        self.base.check(Server(state.models[upload.cluster]), upload)

    def up(self, state: Clusters, replies: Iterable[Reply[Vote]], turn: Turn) -> Clusters:
        heard = list(replies)
        parts = [[r for r in heard if r.upload.cluster == k] for k in range(self.clusters)]
        return Clusters(tuple(self.base.aggregate(m, p, turn) for m, p in zip(state.models, parts, strict=True)))

    def global_model(self, state: Clusters) -> None:
        return None

    def personal_model(self, download: Clusters, client: Member) -> Params:
        return download.models[client.cluster]


@record
class HeadServer:
    shared: Params
    slopes: tuple[Params, ...]


@record
class HeadClient:
    private: Params
    slope: Params


@record
class HeadUpload:
    delta: Params
    slope: Params


def unmoved(state: Any, replies: Iterable[Reply[Any]], turn: Turn) -> Any:
    return state


@dataclass(frozen=True, kw_only=True)
class HGLS(OnBase):
    """Private heads that also try the other clients' last head gradients: train, then search."""

    base: FedAvg

    def init_server(self, seed: Seed) -> HeadServer:
        return HeadServer(self.base.init_server(seed).shared, ())

    def init_client(self, seed: Seed) -> HeadClient:
        head = self.base.init_client(seed).private
        return HeadClient(head, zeros_like(head))

    def exchanges(self) -> tuple[Exchange, ...]:
        (train,) = self.base.exchanges()
        first = replace(train, work=replace(train.work, finish=self.finish), up=self.up)
        return first, Exchange("search", self.peers, self.search, unmoved, cohort=train.cohort)

    def finish(
        self, job: Job, trained: Trained, client: HeadClient, site: Site, turn: Turn
    ) -> tuple[HeadClient, HeadUpload]:
        client, upload = self.base.finish(job, trained, client, site, turn)
        slope = pick(self.base.parts.private, trained.gradient)
        same_names(client.private, slope, "slope")
        return replace(client, slope=slope), HeadUpload(upload.delta, slope)

    def up(self, state: HeadServer, replies: Iterable[Reply[HeadUpload]], turn: Turn) -> HeadServer:
        heard = list(replies)
        slopes = tuple(r.upload.slope for r in heard) or state.slopes
        return HeadServer(self.base.aggregate(state.shared, heard, turn), slopes)

    def peers(self, state: HeadServer, client_id: ClientId) -> HeadServer:
        return state

    def search(self, download: HeadServer, client: HeadClient, site: Site, turn: Turn) -> tuple[HeadClient, None]:
        head, best = client.private, self._loss(download, client.private, site)
        for slope in (s for s in download.slopes if dot(s, client.slope) > 0):
            trial = add(head, slope, scale=-cosine(slope, client.slope))
            if (value := self._loss(download, trial, site)) < best:
                head, best = trial, value
        return replace(client, private=head), None

    def _loss(self, download: HeadServer, head: Params, site: Site) -> float:
        return classify(self.predict, {**download.shared, **head}, site.train).loss
