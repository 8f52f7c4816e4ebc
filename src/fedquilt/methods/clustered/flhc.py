"""FL+HC: a few rounds of FedAvg, one hierarchical clustering of the clients' updates, then FedAvg in each cluster."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic, get_args

from torch import Tensor

from fedquilt.core.exchange import Context, Reply, everyone, fraction, plain
from fedquilt.core.params import Names, Params, check_reach, everything, flatten, pick, sub, weighted_mean
from fedquilt.core.table import ClientId, Site, in_order
from fedquilt.core.train import Job, Trained
from fedquilt.errors import InputError
from fedquilt.methods.clustered.discovery import Criterion, DiscoveryOptions, Evidence
from fedquilt.methods.clustered.grouped import Discovery, G, Grouped, Groups, down_anchor
from fedquilt.methods.clustered.halves import Parts, SensedHalves, believed, on_halves, part_of, several, whole
from fedquilt.methods.fedavg import C, FedAvg
from fedquilt.pieces.clustering.agglomerative import agglomerate, check_settings
from fedquilt.pieces.clustering.result import ClusterResult, merge_small
from fedquilt.records.declared import shown as described
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
        parts: For 'auto': the parts of the network by any of which clusters may be found, if not by all ``names``.
    """

    options: DiscoveryOptions
    base: FedAvg
    opened: Callable[[G, int], Params]
    names: Names = everything
    parts: Mapping[str, Names] | None = None

    def __post_init__(self) -> None:
        at_least = {"initial_rounds": 0, "sketch_size": 1, "min_size": 1, "max_exact": 2, "recluster_every": 1}
        for name, least in at_least.items():
            if (value := getattr(self.options, name)) is not None and value < least:
                raise InputError(f"{name} must be at least {least}, got {value}.")
        if self.options.evidence not in get_args(Evidence):
            raise InputError(f"evidence must be 'update' or 'weights', got {self.options.evidence!r}.")
        if self.options.criterion not in get_args(Criterion):
            given = f"got {self.options.criterion!r}"
            raise InputError(f"criterion must be one of {', '.join(get_args(Criterion))}, {given}.")
        if self.options.discover_early and not self.options.cut.auto:
            raise InputError(
                "discover_early asks whether clusters are more than chance, which only criterion = 'auto' tells, "
                f"without n_clusters; got {self.options.cut}."
            )
        check_settings(self.options.linkage, self.options.clustering_metric, self.options.cut)
        _ = self.options.blur  # checks it

    def discovery(self) -> Discovery:
        """The exchange, and if wished those on which clusters are found again or tested."""
        (train,) = self.base.exchanges()
        work = on_halves(train, self.seen) if self.options.cut.auto else train.training(finish=self.sense)
        asked = fraction(self.options.discover_fraction)
        cohort = everyone if asked.share == 1 else asked
        exchange = replace(
            work, name="discover", down=down_anchor, up=self.form, check=self.check, cohort=cohort, codec=plain
        )
        every, retest = self.options.recluster_every, self.options.retest
        anew = () if every is None else ((every, replace(exchange, name="rediscover", up=self.form_anew)),)
        test = () if retest is None else ((retest.every, replace(exchange, name="retest", up=self.tested)),)
        early = self.options.discover_early
        return Discovery(exchange, self.shown, self.options.initial_rounds, early, (*anew, *test))

    def sense(self, job: Job, trained: Trained, client: C, site: Site, context: Context) -> tuple[C, Sensed]:
        """The update, or its sketch; nothing else is kept."""
        return client, Sensed(self.seen(job, trained, context))

    def seen(self, job: Job, trained: Trained, context: Context) -> Tensor:
        """What a training shows of itself."""
        after, before = self.described(trained.params), self.described(job.fixed["start"])
        vector = self.layout.vector(sub(after, before) if self.options.evidence == "update" else after)
        return vector if self.options.blur is None else self.options.blur(vector, context.seed)

    @cached_property
    def layout(self) -> Parts:
        """Where the parts of the network are in what clients show; one part if there is no choice."""
        shown = [n for n in self.base.net.trainable if self.names(n) and self.base.parts.shared(n)]
        by = several(self.parts or {}, shown)
        return Parts(by or {"": self.names}, self.options.sketch_size, self.options.sketch_seed)

    def shown(self, upload: Sensed | SensedHalves, clusters: ClusterResult, anchor: Params) -> Tensor:
        """The vector that these clusters have directions of."""
        if isinstance(upload, SensedHalves):
            return self.layout.part(part_of(clusters), whole(upload), self.described(anchor))
        return upload.vector

    def described(self, params: Mapping[str, Tensor]) -> Params:
        """The part of a model that is compared."""
        return pick(self.names, self.base.trained(dict(params)))

    def check(self, state: G, upload: Sensed | SensedHalves) -> None:
        """A vector has one number for each weight that is compared, or for each of a sketch."""
        model = self.described(state.models[0])
        length, kind = sum(self.layout.sizes(model).values()), flatten(model).dtype
        for vector in vars(upload).values():
            if vector.shape != (length,) or vector.dtype != kind:
                raise InputError(f"A client's update is {described(vector)}, expected ({length},) {kind}.")
            check_reach({"vector": vector}, state.models[0], "A client's update")

    def clustered(self, heard: Sequence[Reply[Any]], anchor: Params, context: Context) -> ClusterResult:
        """The clusters of those who showed these updates from the anchor."""
        o = self.options
        settings: dict[str, Any] = {
            "linkage": o.linkage,
            "metric": o.clustering_metric,
            "min_size": o.least_size,
            "max_exact": o.max_exact,
            "seed": context.seed,
            **vars(o.cut),
        }
        shown = {r.client: r.upload for r in heard}
        if o.cut.auto:
            found = self._judged(shown, self.described(anchor), settings)
        else:
            found = agglomerate({c: u.vector for c, u in shown.items()}, **settings)
        if o.blur is not None and o.blur.noise > 0:
            vectors = 2 if o.cut.auto else 1
            epsilon = replace(o.blur, noise=o.blur.noise / math.sqrt(vectors)).epsilon(1e-5)
            found = replace(found, measures={**found.measures, "epsilon_at_1e-5": epsilon})
        return merge_small(found, o.least_size, {c: self.shown(u, found, anchor) for c, u in shown.items()})

    def _judged(
        self, shown: Mapping[ClientId, SensedHalves], model: Params, settings: Mapping[str, Any]
    ) -> ClusterResult:
        """By the part of the network that tells clusters best."""
        found = {}
        for part in self.layout.names:
            first, second = (
                {c: self.layout.part(part, v, model) for c, v in half.items()}
                for half in ({c: u.first for c, u in shown.items()}, {c: u.second for c, u in shown.items()})
            )
            found[part] = agglomerate(first, again=second, **settings)
        return believed(found)

    def form(self, state: G, replies: Iterable[Reply[Any]], context: Context) -> G:
        """Cluster; every cluster starts from w0. An early search that finds one cluster leaves all as it is."""
        heard = list(replies)
        if not heard:
            return state
        found = self.clustered(heard, state.models[0], context)
        if found.k == 1 and context.round < self.options.initial_rounds:
            return state
        return replace(state, models=(state.models[0],) * found.k, clusters=found, anchor=state.models[0])

    def form_anew(self, state: G, replies: Iterable[Reply[Any]], context: Context) -> G:
        """Cluster again; a cluster starts from the mean of its members' models, weighted by samples."""
        heard = list(replies)
        if not heard:
            return state
        found = self.clustered(heard, state.anchor, context)
        before = state.clusters.labels
        models = [
            weighted_mean(
                (max(r.samples, 1), state.models[before.get(r.client, 0)]) for r in heard if found.labels[r.client] == k
            )
            for k in range(found.k)
        ]
        return replace(state, models=tuple(models), clusters=found, strikes={}, moved=())

    def tested(self, state: G, replies: Iterable[Reply[Any]], context: Context) -> G:
        """Move those astray; cluster anew when too many moved. A new cluster begins with the nearest one's model."""
        heard, retest = list(replies), self.options.retest
        if not heard or retest is None:
            return state
        vectors = {r.client: self.shown(r.upload, state.clusters, state.anchor) for r in heard}
        strikes = retest.strikes(state.clusters, vectors, state.strikes)
        found, nearest = retest.moved(state.clusters, vectors, strikes, self.options.least_size, context.seed)
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
