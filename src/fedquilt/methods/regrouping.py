"""What methods with several models share whose clients change clusters from round to round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from fedquilt.core.errors import InputError
from fedquilt.core.exchange import Exchange, OnBase, Reply, Turn, everyone
from fedquilt.core.net import Net
from fedquilt.core.params import Params, add, flatten, same_names, sub
from fedquilt.core.record import record
from fedquilt.core.seed import Seed
from fedquilt.core.table import Batch, ClientId, Site, Table, in_order
from fedquilt.core.train import Job, Objective, Trained, scores_and_features
from fedquilt.methods.fedavg import Download, FedAvg
from fedquilt.pieces.clustering.centres import distinct_starts, nearest
from fedquilt.pieces.clustering.result import ClusterResult

Starts = Literal["updates", "seeds"]
ROWS_PER_BLOCK = 256


@record
class Centres:
    """The server's state.

    Args:
        models: The model of each cluster (a single one until the starts are placed).
        common: The part of the model that all clusters share, {} if none.
        clusters: Who is where. Labels are the numbers of the models, which do not change from round to round; clients
            that were never heard have none.
    """

    models: tuple[Params, ...]
    common: Params
    clusters: ClusterResult


@record
class Offer:
    """What a client is sent: models by number, the part they share, and the number of the client's own (-1: none)."""

    models: dict[int, Params]
    common: Params
    yours: int


@record
class Vote:
    """What a client answers: how the model it trained changed, and the model's number."""

    delta: Params
    cluster: int


def mean_loss(loss: Objective, params: Params, table: Table) -> float:
    """The mean loss per row in evaluation mode. Every row counts the same, also one in a small last block."""
    still, total = replace(loss, forward=_still_split if loss.forward is scores_and_features else _still), 0.0
    with torch.no_grad():
        for block in table.blocks(ROWS_PER_BLOCK):
            total += float(still(params, {"start": params}, block)) * len(block)
    return total / max(len(table), 1)


def _still(net: Net, params: Params, batch: Batch) -> Any:
    return net(params, batch)


def _still_split(net: Net, params: Params, batch: Batch) -> Any:
    return net.split(params, batch)


@dataclass(frozen=True, kw_only=True)
class Regrouping(OnBase):
    """K models; a client is offered them all and trains the one with the lowest loss on its rows.

    Args:
        base: How one model is trained and averaged.
        n_clusters: How many clusters.
        starts: 'updates': before the first round all clients train the first model for one pass, and k-means++ draws
            as many of these models as there are clusters. 'seeds': fresh models. One cluster needs neither.
    """

    base: FedAvg
    n_clusters: int = 3
    starts: Starts = "updates"

    def __post_init__(self) -> None:
        if self.n_clusters < 1:
            raise InputError(f"The number of clusters, n_clusters, must be at least 1, got {self.n_clusters}.")
        if self.starts not in ("updates", "seeds"):
            raise InputError(f"starts must be 'updates' or 'seeds', got {self.starts!r}.")

    # The server before the first round

    def init_server(self, seed: Seed) -> Any:
        """One model, or as many fresh ones as clusters; the first is always the base's."""
        seeds = [seed] + [seed.fold("start", i) for i in range(1, self.n_clusters if self.starts == "seeds" else 1)]
        models = tuple(self.base.init_server(s).shared for s in seeds)
        return Centres(models, {}, ClusterResult({}, len(models), self.criterion))

    @property
    def criterion(self) -> str:
        """What decides where a client belongs."""
        return "lowest loss"

    def exchanges(self) -> tuple[Exchange, ...]:
        """The base's trip, and one that shows where a pass from the first model leads."""
        (train,) = self.base.exchanges()
        train = replace(train, down=self.down, up=self.up, check=self.check)
        look = train.training(start=self.start, finish=self.show, epochs=1, steps=None)
        train = train.training(start=self.start, finish=self.finish, objective=self.objective)
        return train, replace(look, name="starts", up=self.place, cohort=everyone)

    @property
    def objective(self) -> Objective:
        """The loss of local training."""
        return self.base.loss

    def plan(self, state: Any, round: int) -> tuple[str, ...]:
        """Train; before that, once, the starts."""
        return ("train",) if len(state.models) >= self.n_clusters else ("starts", "train")

    def show(self, job: Job, trained: Trained, client: Any, site: Site, turn: Turn) -> tuple[Any, Vote]:
        """Send where a pass leads, and keep nothing of it."""
        return client, Vote(self.base.finish(job, trained, client, site, turn)[1].delta, job.memo)

    def place(self, state: Any, replies: Iterable[Reply[Vote]], turn: Turn) -> Any:
        """Distinct starts from these passes; each client belongs to the nearest."""
        deltas = {r.client: r.upload.delta for r in replies}
        if not deltas:
            return state
        first, moves = state.models[0], {c: self.vector(d) for c, d in deltas.items()}
        drawn = distinct_starts(moves, self.n_clusters, turn.seed)
        models = [add(first, deltas[c]) for c in drawn] + [first] * (self.n_clusters - len(drawn))
        labels = {c: nearest(v, [moves[d] for d in drawn]) for c, v in moves.items()}
        return replace(state, models=tuple(models), clusters=self.found(state, self.n_clusters, labels))

    def vector(self, params: Params) -> Tensor:
        """What distances are taken of: all shared weights that are trained, without buffers."""
        return flatten(self.base.trained(params))

    def found(self, state: Any, k: int, labels: Mapping[ClientId, int]) -> ClusterResult:
        """The clusters after some clients were heard; the others stay where they were."""
        everybody = {**state.clusters.labels, **labels}
        return ClusterResult({c: everybody[c] for c in in_order(list(everybody))}, k, self.criterion)

    # A round

    def down(self, state: Any, client_id: ClientId) -> Any:
        """All models."""
        return Offer(dict(enumerate(state.models)), state.common, state.clusters.labels.get(client_id, -1))

    def whole(self, download: Any, number: int) -> Params:
        """The shared part of one of the models."""
        return {**download.common, **download.models[number]}

    def losses(self, download: Any, client: Any, site: Site) -> dict[int, float]:
        """The loss of every model on the client's training rows, with its own private part."""
        return {
            k: mean_loss(self.base.loss, {**self.whole(download, k), **client.private}, site.train)
            for k in download.models
        }

    def best(self, download: Any, client: Any, site: Site) -> int:
        """The model with the lowest loss; the lowest number on a tie."""
        if len(download.models) == 1:
            return int(next(iter(download.models)))
        losses = self.losses(download, client, site)
        return min(losses, key=lambda k: (losses[k], k))

    def start(self, download: Any, client: Any, site: Site, turn: Turn) -> Job:
        """Begin from the best model."""
        k = self.best(download, client, site)
        return replace(self.base.start(Download(self.whole(download, k)), client, site, turn), memo=k)

    def finish(self, job: Job, trained: Trained, client: Any, site: Site, turn: Turn) -> tuple[Any, Any]:
        """As the base; also say which model it was."""
        client, upload = self.base.finish(job, trained, client, site, turn)
        return client, Vote(upload.delta, job.memo)

    def check(self, state: Any, upload: Any) -> None:
        """The number of a model there is, and a change of it."""
        if type(upload.cluster) is not int or not 0 <= upload.cluster < len(state.models):
            raise InputError(f"upload: there is no cluster {upload.cluster!r}, only 0 to {len(state.models) - 1}.")
        same_names({**state.common, **state.models[upload.cluster]}, upload.delta, "upload")

    def up(self, state: Any, replies: Iterable[Reply[Any]], turn: Turn) -> Any:
        """Regroup the clients that were heard, then average within clusters; a cluster without reply stays."""
        heard = list(replies)
        if not heard:
            return state
        labels = self.regroup(state, heard)
        models = tuple(
            self.merge(model, self.group(state, heard, labels, k), len(heard), turn)
            for k, model in enumerate(state.models)
        )
        return replace(state, models=models, clusters=self.found(state, len(models), labels))

    def regroup(self, state: Any, heard: Sequence[Reply[Any]]) -> dict[ClientId, int]:
        """Where each of these clients belongs now: to the model it chose."""
        return {r.client: r.upload.cluster for r in heard}

    def group(
        self, state: Any, heard: Sequence[Reply[Any]], labels: Mapping[ClientId, int], k: int
    ) -> Sequence[Reply[Any]]:
        """The replies of cluster k's members, as changes of its model, also where a client trained another one."""
        return [
            r if r.upload.cluster == k else replace(r, upload=Vote(sub(self.local(state, r), state.models[k]), k))
            for r in heard
            if labels[r.client] == k
        ]

    def local(self, state: Any, reply: Reply[Any]) -> Params:
        """The client's model after training."""
        return add(state.models[reply.upload.cluster], reply.upload.delta)

    def merge(self, model: Params, group: Sequence[Reply[Any]], heard: int, turn: Turn) -> Params:
        """The next model of a cluster from the replies of its members; ``heard`` clients replied in all."""
        return self.base.aggregate(model, group, turn)

    # Models in use

    def global_model(self, state: Any) -> Params | None:
        """There is none."""
        return None

    def personal_model(self, download: Any, client: Any) -> Params:
        """The model of one's cluster; the first for a client that has none yet."""
        mine = download.yours if download.yours in download.models else min(download.models)
        return {**self.whole(download, mine), **client.private}

    def newcomer_model(self, download: Any, client: Any, site: Site, turn: Turn) -> Params:
        """The model with the lowest loss on the newcomer's training rows."""
        return {**self.whole(download, self.best(download, client, site)), **client.private}
