"""FL+HC: a few rounds of FedAvg, one hierarchical clustering of the clients' updates, then FedAvg in each cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Generic, get_args

from torch import Tensor

from fedquilt.core.exchange import Context, Reply, everyone, plain
from fedquilt.core.params import Names, Params, check_reach, everything, flatten, pick, sub, weighted_mean
from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId, Site, in_order
from fedquilt.core.train import Job, Trained
from fedquilt.errors import InputError
from fedquilt.methods.clustered.discovery import DiscoveryOptions, Evidence
from fedquilt.methods.clustered.grouped import Discovery, G, Grouped, Groups, down_anchor
from fedquilt.methods.fedavg import C, FedAvg
from fedquilt.pieces.clustering.agglomerative import agglomerate, check_settings
from fedquilt.pieces.clustering.private import sketch
from fedquilt.pieces.clustering.result import ClusterResult, merge_small
from fedquilt.records.declared import shown
from fedquilt.records.record import record


@record(name="fedquilt.methods.flhc:Sensed")
class Sensed:
    """What a client shows of itself to be clustered."""

    vector: Tensor


@dataclass(frozen=True)
class ByUpdates(Generic[G]):
    """The discovery of these options: every client trains from w0 and shows where that leads.

    Args:
        options: See there.
        base: How models are trained.
        opened: The first model of a new cluster, from the state and the number of the nearest.
        names: Which names delta is taken over; of these, what is trained and shared.
    """

    options: DiscoveryOptions
    base: FedAvg
    opened: Callable[[G, int], Params]
    names: Names = everything

    def __post_init__(self) -> None:
        at_least = {"initial_rounds": 0, "sketch_size": 1, "min_size": 1, "max_exact": 2, "recluster_every": 1}
        for name, least in at_least.items():
            if (value := getattr(self.options, name)) is not None and value < least:
                raise InputError(f"{name} must be at least {least}, got {value}.")
        if self.options.evidence not in get_args(Evidence):
            raise InputError(f"evidence must be 'update' or 'weights', got {self.options.evidence!r}.")
        check_settings(self.options.linkage, self.options.clustering_metric, self.options.cut)
        _ = self.options.blur  # checks it

    def discovery(self) -> Discovery:
        """The exchange, and if wished those on which clusters are found again or tested."""
        (train,) = self.base.exchanges()
        work = train.training(finish=self.sense)
        exchange = replace(
            work, name="discover", down=down_anchor, up=self.form, check=self.check, cohort=everyone, codec=plain
        )
        every, retest = self.options.recluster_every, self.options.retest
        anew = () if every is None else ((every, replace(exchange, name="rediscover", up=self.form_anew)),)
        test = () if retest is None else ((retest.every, replace(exchange, name="retest", up=self.tested)),)
        return Discovery(exchange, lambda sensed: sensed.vector, self.options.initial_rounds, (*anew, *test))

    def sense(self, job: Job, trained: Trained, client: C, site: Site, context: Context) -> tuple[C, Sensed]:
        """The update, or its sketch; nothing else is kept."""
        after, before = self.described(trained.params), self.described(job.fixed["start"])
        vector = flatten(sub(after, before) if self.options.evidence == "update" else after)
        if self.options.sketch_size is not None:
            vector = sketch(vector, self.options.sketch_size, Seed(self.options.sketch_seed))
        return client, Sensed(vector if self.options.blur is None else self.options.blur(vector, context.seed))

    def described(self, params: Mapping[str, Tensor]) -> Params:
        """The part of a model that is compared."""
        return pick(self.names, self.base.trained(dict(params)))

    def check(self, state: G, upload: Sensed) -> None:
        """A vector has one number for each weight that is compared, or for each of a sketch."""
        whole = flatten(self.described(state.models[0]))
        length = whole.numel() if self.options.sketch_size is None else min(whole.numel(), self.options.sketch_size)
        if upload.vector.shape != (length,) or upload.vector.dtype != whole.dtype:
            raise InputError(f"A client's update is {shown(upload.vector)}, expected ({length},) {whole.dtype}.")
        check_reach({"vector": upload.vector}, state.models[0], "A client's update")

    def clustered(self, vectors: Mapping[ClientId, Tensor], context: Context) -> ClusterResult:
        """The clusters of these vectors."""
        o = self.options
        found = agglomerate(
            vectors,
            linkage=o.linkage,
            metric=o.clustering_metric,
            max_exact=o.max_exact,
            seed=context.seed,
            **vars(o.cut),
        )
        if o.blur is not None and o.blur.noise > 0:
            found = replace(found, measures={**found.measures, "epsilon_at_1e-5": o.blur.epsilon(1e-5)})
        return merge_small(found, o.min_size, vectors)

    def form(self, state: G, replies: Iterable[Reply[Sensed]], context: Context) -> G:
        """Cluster; every cluster starts from w0."""
        vectors = {r.client: r.upload.vector for r in replies}
        if not vectors:
            return state
        found = self.clustered(vectors, context)
        return replace(state, models=(state.models[0],) * found.k, clusters=found, anchor=state.models[0])

    def form_anew(self, state: G, replies: Iterable[Reply[Sensed]], context: Context) -> G:
        """Cluster again; a cluster starts from the mean of its members' models, weighted by samples."""
        heard = list(replies)
        if not heard:
            return state
        found = self.clustered({r.client: r.upload.vector for r in heard}, context)
        before = state.clusters.labels
        models = [
            weighted_mean(
                (max(r.samples, 1), state.models[before.get(r.client, 0)]) for r in heard if found.labels[r.client] == k
            )
            for k in range(found.k)
        ]
        return replace(state, models=tuple(models), clusters=found, strikes={}, moved=())

    def tested(self, state: G, replies: Iterable[Reply[Sensed]], context: Context) -> G:
        """Move those astray; cluster anew when too many moved. A new cluster begins with the nearest one's model."""
        heard, retest = list(replies), self.options.retest
        if not heard or retest is None:
            return state
        vectors = {r.client: r.upload.vector for r in heard}
        strikes = retest.strikes(state.clusters, vectors, state.strikes)
        found, nearest = retest.moved(state.clusters, vectors, strikes, self.options.min_size, context.seed)
        gone = {c for c, k in found.labels.items() if state.clusters.labels[c] != k}
        if len(gone | set(state.moved)) > retest.recluster_above * len(found.labels):
            return self.form_anew(state, heard, context)
        models = (*state.models, *(self.opened(state, k) for k in nearest.values()))
        rest = {c: n for c, n in strikes.items() if c not in gone}
        moved = in_order(list(gone | set(state.moved)))
        return replace(state, models=models, clusters=found, strikes=rest, moved=moved)


@dataclass(frozen=True, init=False)
class FLHC(DiscoveryOptions, Grouped[Groups]):
    """Warm up, discover, then train apart.

    Rounds 0..initial_rounds-1 are the base's. The next round begins with an exchange to everyone, the discovery, which
    is no round of its own: client i trains from w0, the model so far, and sends delta_i = w_i - w0 or its sketch; w_i
    is thrown away. Clusters of {delta_i} then each start from w0, and never hear of each other again.

    Args:
        base, budget: See :class:`Grouped`; the other options are those of :class:`DiscoveryOptions`.
        names: Which names delta is taken over; of these, what is trained and shared.

    Reference: Briggs, Fan, Andras, Federated learning with hierarchical clustering of local updates, 2020.

    Example:
        >>> from fedquilt import Net, models
        >>> method = FLHC(Net.of(models.MLP, features=64, classes=10), initial_rounds=2, distance_threshold=0.8)
    """

    names: Names = everything

    @cached_property
    def discovery(self) -> Discovery:
        """By updates."""
        return ByUpdates(self, self.base, self.opened, self.names).discovery()
