"""Methods with several models whose clients are regrouped in every round.

A round: the server offers a client some of its models; the client begins with its own one, or with the one that has the
lowest loss on its rows, trains it and sends the change with the model's number; the server says where each client that
was heard belongs now, and averages within clusters. What differs between methods is said by pieces:

- ``starts``: where the first models come from, one pass of all clients ('updates') or fresh seeds;
- ``rule``: what a client is offered, and who decides where it belongs: the client by :class:`LowestLoss`, or the server
  by :class:`fedquilt.methods.clustered.by_distance.Nearest`;
- ``objective``: the local loss, with a pull to the cluster's model or to something else;
- ``heads``: what clusters have apart; the rest is averaged over all clients.

A method is :class:`Regrouping` with these four, and an exchange or a message of its own where it needs one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Generic, Protocol

from torch import Tensor

from fedquilt.core.exchange import Context, Exchange, Reply, everyone
from fedquilt.core.objective import Objective, OnLoss
from fedquilt.core.params import Names, Params, add, check_change, everything, everything_but, flatten, pick, sub
from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId, Site
from fedquilt.core.train import Job, Trained
from fedquilt.errors import InputError
from fedquilt.methods.clustered.by_distance import BegunOffer
from fedquilt.methods.clustered.row_losses import mean_loss
from fedquilt.methods.clustered.starts import (
    Centres,
    ClusterVote,
    HasVote,
    Offer,
    S,
    Starts,
    all_models,
    labelled,
    local,
)
from fedquilt.methods.fedavg import C, Download, FedAvg, Upload
from fedquilt.methods.on_base import OnBase
from fedquilt.pieces.clustering.centres import distinct_starts, nearest
from fedquilt.pieces.clustering.result import ClusterResult


@dataclass(frozen=True)
class LowestLoss:
    """A client is offered all models, and belongs to the one it chose: that of lowest loss on its rows."""

    criterion: str = "lowest loss"

    def first(self, state: Centres) -> Centres:
        """Nothing to remember."""
        return state

    def offer(self, state: Centres, client_id: ClientId) -> Offer:
        """All models."""
        return all_models(state, client_id)

    def regroup(self, state: Centres, heard: Sequence[Reply[HasVote]]) -> dict[ClientId, int]:
        """To the model that was chosen."""
        return {r.client: r.upload.cluster for r in heard}

    def settle(self, before: S, after: S, heard: Sequence[Reply[HasVote]]) -> S:
        """Nothing to do."""
        return after


class GroupingRule(Protocol[S]):
    """What a client is offered, and who decides where it belongs."""

    @property
    def criterion(self) -> str:
        """What decides."""
        ...

    def first(self, state: Centres) -> Centres:
        """What is to be remembered from the start."""
        ...

    def offer(self, state: S, client_id: ClientId) -> Offer:
        """The models that a client is sent."""
        ...

    def regroup(self, state: S, heard: Sequence[Reply[HasVote]]) -> dict[ClientId, int]:
        """Where those who were heard belong."""
        ...

    def settle(self, before: S, after: S, heard: Sequence[Reply[HasVote]]) -> S:
        """The state after averaging."""
        ...


@dataclass(frozen=True, init=False)
class Regrouping(OnBase, Generic[S, C]):
    """K models, and who belongs to which.

    Args:
        base: How one model is trained and averaged.
        n_clusters: How many clusters.
        starts: 'updates': before the first round all clients train the first model for one pass, and k-means++ draws
            as many of these models as there are clusters. 'seeds': fresh models. One cluster needs neither.
        heads: The parts of the network that each cluster has for itself; all others are one part, averaged over
            all clients. If there are none, clusters have everything for themselves.
    """

    base: FedAvg
    n_clusters: int = 3
    starts: Starts = "updates"
    heads: tuple[str, ...] = field(default=(), init=False)  # an option of some methods

    def __post_init__(self) -> None:
        if self.n_clusters < 1:
            raise InputError(f"The number of clusters, n_clusters, must be at least 1, got {self.n_clusters}.")
        if self.starts not in ("updates", "seeds"):
            raise InputError(f"starts must be 'updates' or 'seeds', got {self.starts!r}.")
        _ = self.rule, self.apart, self.objective  # pieces check their settings when they are made

    @cached_property
    def rule(self) -> GroupingRule[S]:
        """Who decides where a client belongs."""
        return LowestLoss()

    @cached_property
    def apart(self) -> Names:
        """The names of which each cluster has its own."""
        return self.net.under(*self.heads) if self.heads else everything

    @cached_property
    def objective(self) -> Objective | OnLoss:
        """The loss of local training."""
        return self.base.loss

    def init_server(self, seed: Seed) -> Centres:
        """One model, or as many fresh ones as clusters; the first is always the base's, with what clusters share."""
        seeds = [seed] + [seed.fold("start", i) for i in range(1, self.n_clusters if self.starts == "seeds" else 1)]
        models = [self.base.init_server(s).shared for s in seeds]
        common = pick(everything_but(self.apart), models[0])
        clusters = ClusterResult({}, len(models), self.rule.criterion)
        return self.rule.first(Centres(tuple(pick(self.apart, m) for m in models), common, clusters))

    def exchanges(self) -> tuple[Exchange, ...]:
        """The base's exchange, and one that shows where a pass from the first model leads."""
        (train,) = self.base.exchanges()
        train = replace(train, down=self.down, up=self.up, check=self.check)
        look = train.training(start=self.start, finish=self.show, epochs=1, steps=None)
        train = train.training(start=self.start, finish=self.finish, objective=self.objective)
        return train, replace(look, name="starts", up=self.place, cohort=everyone)

    def plan(self, state: S, round: int) -> tuple[str, ...]:
        """Train; before that, once, the starts."""
        return ("train",) if len(state.models) >= self.n_clusters else ("starts", "train")

    # Starts

    def show(self, job: Job, trained: Trained, client: C, site: Site, context: Context) -> tuple[C, ClusterVote]:
        """Send where a pass leads, and keep nothing of it."""
        return client, ClusterVote(self.base.finish(job, trained, client, site, context)[1].delta, job.memo)

    def place(self, state: S, replies: Iterable[Reply[ClusterVote]], context: Context) -> S:
        """Distinct starts from these passes; each client belongs to the nearest."""
        deltas = {r.client: pick(self.apart, r.upload.delta) for r in replies}
        if not deltas:
            return state
        first, moves = state.models[0], {c: self.vector(d) for c, d in deltas.items()}
        drawn = distinct_starts(moves, self.n_clusters, context.seed)
        models = [add(first, deltas[c]) for c in drawn] + [first] * (self.n_clusters - len(drawn))
        labels = {c: nearest(v, [moves[d] for d in drawn]) for c, v in moves.items()}
        clusters = labelled(state, labels, self.n_clusters, self.rule.criterion)
        return replace(state, models=tuple(models), clusters=clusters)

    def vector(self, params: Params) -> Tensor:
        """What distances are taken of: all shared weights that are trained, without buffers."""
        return flatten(self.base.trained(params))

    # Work

    def down(self, state: S, client_id: ClientId) -> Offer:
        """What the rule offers."""
        return self.rule.offer(state, client_id)

    def whole(self, download: Offer, number: int) -> Params:
        """The shared part of one of the models."""
        return {**download.common, **download.models[number]}

    def losses(self, download: Offer, client: C, site: Site) -> dict[int, float]:
        """The loss of every model on the client's training samples, with its own private part."""
        return {
            k: mean_loss(self.base.loss, {**self.whole(download, k), **client.private}, site.train)
            for k in download.models
        }

    def best(self, download: Offer, client: C, site: Site) -> int:
        """The model with the lowest loss; the lowest number on a tie."""
        if len(download.models) == 1:
            return int(next(iter(download.models)))
        losses = self.losses(download, client, site)
        return min(losses, key=lambda k: (losses[k], k))

    def start(self, download: Offer, client: C, site: Site, context: Context) -> Job:
        """From the best model, or where the download says; changes and pulls are from the model all the same."""
        k = self.best(download, client, site)
        job = self.base.start(Download(self.whole(download, k)), client, site, context)
        begin = download.begin if isinstance(download, BegunOffer) else {}
        return replace(job, params={**job.params, **begin}, memo=k)

    def finish(self, job: Job, trained: Trained, client: C, site: Site, context: Context) -> tuple[C, HasVote]:
        """As the base; also say which model it was."""
        client, upload = self.base.finish(job, trained, client, site, context)
        return client, ClusterVote(upload.delta, job.memo)

    # Up

    def check(self, state: S, upload: Any) -> None:
        """The number of a model there is, and a change of it."""
        if type(upload.cluster) is not int or not 0 <= upload.cluster < len(state.models):
            raise InputError(f"upload: there is no cluster {upload.cluster!r}, only 0 to {len(state.models) - 1}.")
        check_change({**state.common, **state.models[upload.cluster]}, upload.delta, "upload")

    def up(self, state: S, replies: Iterable[Reply[Any]], context: Context) -> S:
        """Regroup the clients that were heard, then average within clusters; a cluster without reply stays. What is
        common is averaged over all clients."""
        heard = list(replies)
        if not heard:
            return state
        common = state.common
        if common:
            rest = [replace(r, upload=Upload({n: r.upload.delta[n] for n in common})) for r in heard]
            heard = [replace(r, upload=replace(r.upload, delta=pick(self.apart, r.upload.delta))) for r in heard]
            common = self.base.aggregate(common, rest, context)
        labels = self.rule.regroup(state, heard)
        models = tuple(
            self.merge(model, self.group(state, heard, labels, k), len(heard), context)
            for k, model in enumerate(state.models)
        )
        clusters = labelled(state, labels, len(models), self.rule.criterion)
        return self.rule.settle(state, replace(state, models=models, common=common, clusters=clusters), heard)

    def group(
        self, state: S, heard: Sequence[Reply[HasVote]], labels: Mapping[ClientId, int], k: int
    ) -> Sequence[Reply[HasVote]]:
        """The replies of cluster k's members, as changes of its model, also where a client trained another one."""
        return [
            r if r.upload.cluster == k else replace(r, upload=ClusterVote(sub(local(state, r), state.models[k]), k))
            for r in heard
            if labels[r.client] == k
        ]

    def merge(self, model: Params, group: Sequence[Reply[HasVote]], heard: int, context: Context) -> Params:
        """The next model of a cluster from the replies of its members; ``heard`` clients replied in all."""
        return self.base.aggregate(model, group, context)

    # Models in use

    def global_model(self, state: S) -> Params | None:
        """There is none."""
        return None

    def personal_model(self, download: Offer, client: C) -> Params:
        """The model of one's cluster; the first for a client that has none yet."""
        mine = download.yours if download.yours in download.models else min(download.models)
        return {**self.whole(download, mine), **client.private}

    def select_model(self, download: Offer, client: C, site: Site) -> Params | None:
        """For a client that was never heard: the model with the lowest loss on its training samples."""
        if download.yours in download.models or len(download.models) == 1:
            return None
        return {**self.whole(download, self.best(download, client, site)), **client.private}

    def newcomer_model(self, download: Offer, client: C, site: Site, context: Context) -> Params:
        """The model with the lowest loss on the newcomer's training samples."""
        return {**self.whole(download, self.best(download, client, site)), **client.private}
