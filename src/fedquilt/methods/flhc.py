"""FL+HC: a few rounds of FedAvg, one hierarchical clustering of the clients' updates, then FedAvg in each cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import Tensor

from fedquilt.core.declared import shown
from fedquilt.core.errors import InputError
from fedquilt.core.exchange import Exchange, Reply, Turn, everyone, plain
from fedquilt.core.net import Net
from fedquilt.core.objective import Objective
from fedquilt.core.params import Names, Params, check_reach, everything, flatten, pick, sub, weighted_mean
from fedquilt.core.record import record
from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId, Site, in_order
from fedquilt.core.train import Job, Trained
from fedquilt.methods.fedavg import Download, FedAvg
from fedquilt.methods.grouped import Grouped, Groups, Welcome
from fedquilt.methods.retest import Retest
from fedquilt.pieces.clustering.agglomerative import agglomerate, check_settings
from fedquilt.pieces.clustering.private import Blur
from fedquilt.pieces.clustering.result import ClusterResult, merge_small
from fedquilt.pieces.clustering.sketch import sketch
from fedquilt.pieces.clustering.tree import Cut

Criterion = Literal["threshold", "auto"]
Metric = Literal["cosine", "euclidean", "manhattan"]
Linkage = Literal["average", "complete", "single", "ward"]


@record
class Sensed:
    """What a client shows of itself to be clustered."""

    vector: Tensor


@dataclass(frozen=True, kw_only=True)
class FLHC(Grouped):
    """Warm up, discover, then train apart.

    Rounds 0..initial_rounds-1 are the base's. The next round begins with a trip to everyone, the discovery, which is no
    round of its own: client i trains from w0, the model so far, and sends delta_i = w_i - w0 or its sketch; w_i is
    thrown away. Clusters of {delta_i} then each start from w0, and never hear of each other again.

    Args:
        base: How models are trained.
        initial_rounds: Rounds before the discovery.
        criterion: 'threshold' merges while the linkage distance is < ``distance_threshold``; 'auto' takes the cut with
            the best silhouette, or one cluster (:class:`fedquilt.pieces.clustering.tree.Cut`).
        distance_threshold: For 'threshold'.
        n_clusters: If set, so many clusters instead (Ward's linkage on updates of unit length).
        clustering_metric, linkage: Of the clustering; linkage None is average, or ward with ``n_clusters``.
        names: Which names delta is taken over; of these, what is trained and shared.
        evidence: 'update' clusters delta_i, 'weights' w_i itself.
        sketch_size: If set, clients send so many numbers of a random projection instead of delta.
        sketch_seed: Of the projection, the same for all.
        min_size: Smaller clusters are merged into the nearest.
        max_exact: Above so many clients a sample is clustered and the others join.
        recluster_every: If set, every so many rounds all clients are clustered anew, from updates of the same w0; a
            new cluster begins with the mean of its members' former models.
        retest: If set, every so many rounds all clients show their update from w0 again, and those that no longer
            belong to their cluster move.
        blur: If set, what clients show is clipped and noised.
        budget: See :class:`Grouped`.

    Reference: Briggs, Fan, Andras, Federated learning with hierarchical clustering of local updates, 2020.
    """

    initial_rounds: int = 3
    criterion: Criterion = "threshold"
    distance_threshold: float = 0.5
    n_clusters: int | None = None
    clustering_metric: Metric = "cosine"
    linkage: Linkage | None = None
    names: Names = everything
    evidence: Literal["update", "weights"] = "update"
    sketch_size: int | None = None
    sketch_seed: int = 0
    min_size: int = 1
    max_exact: int = 5000
    recluster_every: int | None = None
    retest: Retest | None = None
    blur: Blur | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least = {"initial_rounds": 0, "sketch_size": 1, "min_size": 1, "max_exact": 2, "recluster_every": 1}
        for name, least in at_least.items():
            if (value := getattr(self, name)) is not None and value < least:
                raise InputError(f"{name} must be at least {least}, got {value}.")
        if self.evidence not in ("update", "weights"):
            raise InputError(f"evidence must be 'update' or 'weights', got {self.evidence!r}.")
        check_settings(self.linkage, self.clustering_metric, self.cut())

    def cut(self) -> Cut:
        """Where merging stops."""
        if self.n_clusters is not None:
            return Cut(k=self.n_clusters)
        return Cut(auto=True) if self.criterion == "auto" else Cut(self.distance_threshold)

    def exchanges(self) -> tuple[Exchange, ...]:
        """Train; discover; and, if wished, discover again or test who belongs where."""
        (train,) = super().exchanges()
        discover = self.discovery()
        again = replace(discover, name="rediscover", up=self.form_anew)
        test = replace(discover, name="retest", up=self.tested)
        more = ((again,) if self.recluster_every is not None else ()) + ((test,) if self.retest is not None else ())
        return train, discover, *more

    def discovery(self) -> Exchange:
        """The trip on which clients show their updates: the base's training from the anchor."""
        (train,) = self.base.exchanges()
        return replace(
            train.training(finish=self.sense), name="discover", down=self.down_anchor, up=self.form,
            check=self.check_sensed, cohort=everyone, codec=plain,
        )  # fmt: skip

    def plan(self, state: Groups, round: int) -> tuple[str, ...]:
        """Train; before that, once, discover; after that, now and then, discover again."""
        if round < self.initial_rounds:
            return ("train",)
        if not state.clusters.labels:
            return ("discover", "train")
        done = round - self.initial_rounds + 1
        if self.recluster_every is not None and done % self.recluster_every == 0:
            return ("train", "rediscover")
        return ("train", "retest") if self.retest is not None and done % self.retest.every == 0 else ("train",)

    # Discovery

    def down_anchor(self, state: Groups, client_id: ClientId) -> Download:
        """w0."""
        return Download(shared=state.anchor or state.models[0])

    def sense(self, job: Job, trained: Trained, client: Any, site: Site, turn: Turn) -> tuple[Any, Sensed]:
        """The update, or its sketch; nothing else is kept."""
        after, before = self.described(trained.params), self.described(job.fixed["start"])
        vector = flatten(sub(after, before) if self.evidence == "update" else after)
        if self.sketch_size is not None:
            vector = sketch(vector, self.sketch_size, Seed(self.sketch_seed))
        return client, Sensed(vector if self.blur is None else self.blur(vector, turn.seed))

    def described(self, params: Mapping[str, Tensor]) -> Params:
        """The part of a model that is compared."""
        return pick(self.names, self.base.trained(dict(params)))

    def check_sensed(self, state: Groups, upload: Sensed) -> None:
        """A vector has one number for each weight that is compared, or for each of a sketch."""
        whole = flatten(self.described(state.models[0]))
        length = whole.numel() if self.sketch_size is None else min(whole.numel(), self.sketch_size)
        if upload.vector.shape != (length,) or upload.vector.dtype != whole.dtype:
            raise InputError(f"A client's update is {shown(upload.vector)}, expected ({length},) {whole.dtype}.")
        check_reach({"vector": upload.vector}, state.models[0], "A client's update")

    def clustered(self, vectors: Mapping[ClientId, Tensor], turn: Turn) -> ClusterResult:
        """The clusters of these vectors."""
        cut = self.cut()
        found = agglomerate(
            vectors, linkage=self.linkage, metric=self.clustering_metric, threshold=cut.threshold, k=cut.k,
            auto=cut.auto, max_exact=self.max_exact, seed=turn.seed,
        )  # fmt: skip
        if self.blur is not None and self.blur.noise > 0:
            found = replace(found, measures={**found.measures, "epsilon_at_1e-5": self.blur.epsilon(1e-5)})
        return merge_small(found, self.min_size, vectors)

    def form(self, state: Groups, replies: Iterable[Reply[Sensed]], turn: Turn) -> Groups:
        """Cluster; every cluster starts from w0."""
        vectors = {r.client: r.upload.vector for r in replies}
        if not vectors:
            return state
        found = self.clustered(vectors, turn)
        return replace(state, models=(state.models[0],) * found.k, clusters=found, anchor=state.models[0])

    def form_anew(self, state: Groups, replies: Iterable[Reply[Sensed]], turn: Turn) -> Groups:
        """Cluster again; a cluster starts from the mean of its members' models, weighted by examples."""
        heard = list(replies)
        if not heard:
            return state
        found = self.clustered({r.client: r.upload.vector for r in heard}, turn)
        before = state.clusters.labels
        models = [
            weighted_mean(
                (max(r.examples, 1), state.models[before.get(r.client, 0)])
                for r in heard
                if found.labels[r.client] == k
            )
            for k in range(found.k)
        ]
        return replace(state, models=tuple(models), clusters=found, strikes={}, moved=())

    def tested(self, state: Groups, replies: Iterable[Reply[Sensed]], turn: Turn) -> Groups:
        """Move those astray; cluster anew when too many moved. A new cluster begins with the nearest one's model."""
        heard = list(replies)
        if not heard or self.retest is None:
            return state
        vectors = {r.client: r.upload.vector for r in heard}
        strikes = self.retest.strikes(state.clusters, vectors, state.strikes)
        found, nearest = self.retest.moved(state.clusters, vectors, strikes, self.min_size, turn.seed)
        gone = {c for c, k in found.labels.items() if state.clusters.labels[c] != k}
        if len(gone | set(state.moved)) > self.retest.recluster_above * len(found.labels):
            return self.form_anew(state, heard, turn)
        models = (*state.models, *(self.opened(state, k) for k in nearest.values()))
        rest = {c: n for c, n in strikes.items() if c not in gone}
        moved = in_order(list(gone | set(state.moved)))
        return replace(state, models=models, clusters=found, strikes=rest, moved=moved)

    def vector(self, download: Welcome, client: Any, site: Site, turn: Turn) -> Tensor:
        """A late client's update from w0."""
        work: Any = self.discovery().work
        aside = replace(turn, seed=turn.seed.fold("join"))
        sensed: Sensed = work.run(Download(download.anchor), client, site, aside)[1]
        return sensed.vector


def flhc(
    objective: Objective | Net, initial_rounds: int = 3, criterion: Criterion = "threshold",
    distance_threshold: float = 0.5, n_clusters: int | None = None, clustering_metric: Metric = "cosine",
    linkage: Linkage | None = None, sketch_size: int | None = None, min_size: int = 1, max_exact: int = 5000,
    recluster_every: int | None = None, retest_every: int | None = None, retest_margin: float = 0.1,
    retest_patience: int = 2, recluster_above: float = 0.3, sketch_clip: float | None = None, sketch_noise: float = 0.0,
    secret_noise: bool = False, budget: Literal["cluster", "global"] = "cluster", **rest: Any,
) -> FLHC:  # fmt: skip
    """FL+HC on FedAvg; ``retest_*`` and ``recluster_above`` make a :class:`Retest`, ``sketch_clip`` and noises
    a :class:`Blur`."""
    return FLHC(
        base=FedAvg(objective=objective, **rest), initial_rounds=initial_rounds, criterion=criterion,
        distance_threshold=distance_threshold, n_clusters=n_clusters, clustering_metric=clustering_metric,
        linkage=linkage, sketch_size=sketch_size, min_size=min_size, max_exact=max_exact,
        recluster_every=recluster_every, budget=budget,
        retest=retest_of(retest_every, retest_margin, retest_patience, recluster_above),
        blur=blur_of(sketch_clip, sketch_noise, secret_noise),
    )  # fmt: skip


def retest_of(every: int | None, margin: float, patience: int, recluster_above: float) -> Retest | None:
    """From plain options; None without ``every``."""
    return None if every is None else Retest(every, margin, patience, recluster_above)


def blur_of(clip: float | None, noise: float, secret: bool) -> Blur | None:
    """From plain options; None without any. Noise needs a ``clip``, which says how much it hides."""
    if clip is None and (noise or secret):
        raise InputError(f"sketch_noise = {noise} hides nothing without sketch_clip, the greatest length of a vector.")
    return None if clip is None else Blur(clip, noise, secret)
