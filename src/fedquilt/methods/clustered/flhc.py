"""FL+HC: a few rounds of FedAvg, one hierarchical clustering of the clients' updates, then FedAvg in each cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Generic, Literal, get_args

from torch import Tensor

from fedquilt.core.exchange import Context, Reply, everyone, plain
from fedquilt.core.params import Names, Params, check_reach, everything, flatten, pick, sub, weighted_mean
from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId, Site, in_order
from fedquilt.core.train import Job, Trained
from fedquilt.errors import InputError
from fedquilt.methods.clustered.grouped import Discovery, G, Grouped, Groups, down_anchor
from fedquilt.methods.clustered.retest import Retest
from fedquilt.methods.fedavg import C, FedAvg
from fedquilt.pieces.clustering.agglomerative import agglomerate, check_settings
from fedquilt.pieces.clustering.private import Blur, sketch
from fedquilt.pieces.clustering.result import ClusterResult, merge_small
from fedquilt.pieces.clustering.tree import Cut
from fedquilt.records.declared import shown
from fedquilt.records.record import record

Criterion = Literal["threshold", "auto"]
Metric = Literal["cosine", "euclidean", "manhattan"]
Linkage = Literal["average", "complete", "single", "ward"]
Evidence = Literal["update", "weights"]


@record(name="fedquilt.methods.flhc:Sensed")
class Sensed:
    """What a client shows of itself to be clustered."""

    vector: Tensor


@dataclass(frozen=True, init=False)
class DiscoveryOptions:
    """How clusters are found by the clients' updates; the options of every method that does it.

    Args:
        initial_rounds: Rounds before the discovery.
        criterion: 'threshold' merges while the linkage distance is < ``distance_threshold``; 'auto' takes the cut with
            the best silhouette, or one cluster (:class:`fedquilt.pieces.clustering.tree.Cut`).
        distance_threshold: For 'threshold'.
        n_clusters: If set, so many clusters instead (Ward's linkage on updates of unit length).
        clustering_metric, linkage: Of the clustering; linkage None is average, or ward with ``n_clusters``.
        evidence: 'update' clusters delta_i = w_i - w0, 'weights' w_i itself.
        sketch_size: If set, clients send so many numbers of a random projection instead of delta.
        sketch_seed: Of the projection, the same for all.
        min_size: Smaller clusters are merged into the nearest.
        max_exact: Above so many clients a sample is clustered and the others join.
        recluster_every: If set, every so many rounds all clients are clustered anew, from updates of the same w0; a
            new cluster begins with the mean of its members' former models.
        retest_every: If set, every so many rounds all clients show their update from w0 again, and those that no longer
            belong to their cluster move.
        retest_margin, retest_patience, recluster_above: When they move, see :class:`Retest`.
        sketch_clip: If set, what clients show is clipped to this length, see :class:`Blur`.
        sketch_noise: And noised, by this multiple of ``sketch_clip``.
        secret_noise: With noise that nobody can subtract.
    """

    initial_rounds: int = 3
    criterion: Criterion = "threshold"
    distance_threshold: float = 0.5
    n_clusters: int | None = None
    clustering_metric: Metric = "cosine"
    linkage: Linkage | None = None
    evidence: Evidence = "update"
    sketch_size: int | None = None
    sketch_seed: int = 0
    min_size: int = 1
    max_exact: int = 5000
    recluster_every: int | None = None
    retest_every: int | None = None
    retest_margin: float = 0.1
    retest_patience: int = 2
    recluster_above: float = 0.3
    sketch_clip: float | None = None
    sketch_noise: float = 0.0
    secret_noise: bool = False

    @cached_property
    def cut(self) -> Cut:
        """Where merging stops."""
        if self.n_clusters is not None:
            return Cut(k=self.n_clusters)
        return Cut(auto=True) if self.criterion == "auto" else Cut(self.distance_threshold)

    @cached_property
    def retest(self) -> Retest | None:
        """When a client leaves its cluster, if that is tested."""
        if self.retest_every is None:
            return None
        return Retest(self.retest_every, self.retest_margin, self.retest_patience, self.recluster_above)

    @cached_property
    def blur(self) -> Blur | None:
        """What is done to what clients show. Noise needs a clip, which says how much it hides."""
        if self.sketch_clip is not None:
            return Blur(self.sketch_clip, self.sketch_noise, self.secret_noise)
        if self.sketch_noise or self.secret_noise:
            hides = f"sketch_noise = {self.sketch_noise} hides nothing"
            raise InputError(f"{hides} without sketch_clip, the greatest length of a vector.")
        return None


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
        trip = replace(
            work, name="discover", down=down_anchor, up=self.form, check=self.check, cohort=everyone, codec=plain
        )
        every, retest = self.options.recluster_every, self.options.retest
        anew = () if every is None else ((every, replace(trip, name="rediscover", up=self.form_anew)),)
        test = () if retest is None else ((retest.every, replace(trip, name="retest", up=self.tested)),)
        return Discovery(trip, lambda sensed: sensed.vector, self.options.initial_rounds, (*anew, *test))

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
        """Cluster again; a cluster starts from the mean of its members' models, weighted by examples."""
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
    """

    names: Names = everything

    @cached_property
    def discovery(self) -> Discovery:
        """By updates."""
        return ByUpdates(self, self.base, self.opened, self.names).discovery()
