"""HCFL: discovered clusters whose embeddings go on sharing, less and less; their heads never do."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, get_args

from fedquilt.core.exchange import Context, Reply
from fedquilt.core.holders import HasDelta, HasPrivate, HasShared
from fedquilt.core.objective import Term
from fedquilt.core.params import Names, Params, everything, everything_but, lerp, norm, pick, sub, weighted_mean
from fedquilt.core.seed import Seed
from fedquilt.core.table import Site
from fedquilt.core.train import Job
from fedquilt.errors import InputError
from fedquilt.methods.clustered.discovery import Criterion, DiscoveryOptions
from fedquilt.methods.clustered.flhc import ByUpdates
from fedquilt.methods.clustered.grouped import Discovery, Grouped, Groups, Welcome, inside, split
from fedquilt.methods.clustered.starts import StartAt, check_start
from fedquilt.methods.fedavg import Download
from fedquilt.pieces.aggregators import mean
from fedquilt.pieces.clustering.result import ClusterResult, unknown
from fedquilt.pieces.objectives import prox
from fedquilt.records.record import record

Sharing = Literal["same", "size", "divergence", "shrinkage"]
Changes = Sequence[tuple[int, Params]]  # of the participants of a cluster: examples, and how their part changed


@dataclass(frozen=True)
class fading:
    """lambda(t) = lambda_0 / (1 + alpha t)^p, t from 0; 0 in the last ``last`` of ``rounds`` rounds.

    It never reaches 0 by itself: with (1, 0.1, 1) it is 0.17 at t = 49 and 0.09 at t = 99.
    """

    lambda_0: float = 1.0
    alpha: float = 0.1
    p: float = 1.0
    last: int = 0
    rounds: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.lambda_0 <= 1:
            raise InputError(f"lambda_0 must be in [0, 1] (more would extrapolate), got {self.lambda_0}.")
        if self.alpha < 0 or self.p < 0:
            raise InputError(f"lambda_alpha and lambda_p must be >= 0, got {self.alpha} and {self.p}.")
        if self.last < 0 or (self.last and self.rounds is None):
            raise InputError(
                f"anneal_last = {self.last} needs cluster_rounds, the number of rounds after the discovery, to know "
                "which are the last."
            )

    def __call__(self, t: int) -> float:
        if self.last and self.rounds is not None and t >= self.rounds - self.last:
            return 0.0
        return float(self.lambda_0 / (1 + self.alpha * t) ** self.p)


def shares(by: Sharing, own: Sequence[Params], common: Params, heard: Sequence[Changes]) -> list[float]:
    """What share of the common weight each cluster is drawn with.

    Args:
        by: 'same': 1 for all. 'size': 1 - share of the cluster in all examples, so that small clusters borrow more.
            'divergence': min_j d_j / d_k with d_k = |own_k - common|, so that far clusters borrow less. 'shrinkage':
            min(1, V_k / d_k^2) with V_k the variance of own_k, estimated from the scatter of the cluster's
            participants: a cluster borrows as much as its own average is uncertain beside its distance from the common
            one (the positive part of James and Stein's estimator), and nothing once clusters really differ.
        own: The average of each cluster.
        common: The average of all.
        heard: The changes of each cluster's participants.
    """
    sizes = [sum(n for n, _ in part) for part in heard]
    if by == "same":
        return [1.0] * len(own)
    if by == "size":
        return [1 - n / max(sum(sizes), 1) for n in sizes]
    far = [norm(sub(e, common)) if n else math.inf for e, n in zip(own, sizes, strict=True)]
    return _by_distance(far) if by == "divergence" else _by_variance(far, variances(heard))


def _by_distance(far: Sequence[float]) -> list[float]:
    return [min(far) / d if d > 0 else 1.0 for d in far]


def _by_variance(far: Sequence[float], spread: Sequence[float]) -> list[float]:
    return [min(1.0, v / d**2) if d > 0 else 1.0 for v, d in zip(spread, far, strict=True)]


def variances(heard: Sequence[Changes]) -> list[float]:
    """Of each cluster's mean: s^2 sum p_i^2, with s^2 the unbiased scatter of one participant.

    A lone participant shows no scatter; it is taken to be that of the others, 0 where all are alone.
    """
    found = [_scatter(part) for part in heard]
    known = [(scatter, size) for scatter, _, size in found if scatter is not None]
    usual = sum(s * n for s, n in known) / max(sum(n for _, n in known), 1)
    return [(usual if scatter is None else scatter) * square for scatter, square, _ in found]


def _scatter(part: Changes) -> tuple[float | None, float, int]:
    """Of a cluster's participants: the unbiased scatter of one (None of a lone one), sum p_i^2, and all examples."""
    some = [(n, change) for n, change in part if n > 0]
    size = sum(n for n, _ in some)
    parts = [(n / size, change) for n, change in some]
    centre = weighted_mean(parts)
    apart = sum(p * norm(sub(change, centre)) ** 2 for p, change in parts)
    square = sum(p * p for p, _ in parts)
    return apart / (1 - square) if len(some) > 1 else None, square, size


SharingBy = Literal["same", "size", "divergence", "shrinkage", "stability"]
ClusterBy = Literal["auto", "embedding", "head", "bias", "all"]
STABLE = 0.8  # agreement below which clusters are taken to be chance


def is_bias(name: str) -> bool:
    """Whether a weight is a layer's bias."""
    return name.rpartition(".")[2] == "bias"


@record(name="fedquilt.methods.hcfl:Blended")
class Blended(Groups):
    """The server's state: as for any clusters, and the common embedding, whether it is still shared, and how strongly
    each cluster was last drawn to it (0 if it was not heard)."""

    common: Params = field(default_factory=dict)
    sharing: bool = True
    best: float | None = None
    waited: int = 0
    lambdas: tuple[float, ...] = ()


@record(name="fedquilt.methods.hcfl:Member")
class Member:
    """What a member is sent: its cluster's model, and where to begin if not there ({}: there)."""

    shared: Params
    begin: Params


@dataclass(frozen=True, init=False)
class HCFL(DiscoveryOptions, Grouped[Blended]):
    """FL+HC by updates of the embedding, with a pull to the cluster's model and a fading common embedding.

    A round t = 0, 1, ... after the discovery: client i of cluster k minimises L_i(w) + mu/2 |w - W_k|^2 from W_k. With
    A_k the average of cluster k's participants and P the average of all participants' embeddings, weighted by samples,

        W_k.embedding = A_k.embedding + lambda_k(t) (P - A_k.embedding),    W_k.head = A_k.head.

    If the network trains nothing but its head (a frozen encoder, logistic regression), that is the embedding. Where
    criterion 'auto' finds one cluster, there is no pull: the method is FedAvg.

    Args:
        base, budget: See :class:`Grouped`; those of :class:`DiscoveryOptions` are options too.
        head: The parts of the network that are never shared across clusters; all others are the embedding, by which
            clients are clustered unless ``cluster_by`` says otherwise, and which is blended.
        cluster_by: The part by whose update clusters are found: 'embedding' (all but the head, as published), 'head',
            'bias' (of all layers) or 'all'. 'auto': with criterion 'auto' that of these which tells clusters best, by
            the gap; otherwise the embedding.
        whole_update: As ``cluster_by = "all"``.
        mu: Strength of the proximal term, >= 0.
        lambda_0, lambda_alpha, lambda_p: lambda(t) = lambda_0 / (1 + lambda_alpha t)^lambda_p.
        anneal_last, cluster_rounds: lambda is 0 in so many last of so many rounds after the discovery.
        sharing_by: 'same', 'size', 'divergence' or 'shrinkage': how lambda_k follows from lambda, see
            :func:`fedquilt.pieces.clustering.sharing.shares`. 'stability': as 'same' if the clusters do not come back
            when they are sought among fewer clients (measure ``stable_ari`` below 0.8), which means that they are
            chance; otherwise as 'shrinkage'.
        stop_sharing: If set, sharing ends for good once the held-out loss of the clients' models has not improved in
            so many evaluations after the discovery.
        start_at: 'cluster' begins local training at W_k; 'global' at P with the head of the warm-up, a stale start
            that only serves to reproduce published runs.

    Reference: HCFL of the project CFLA 1.0.0; not arXiv 2310.05397, which uses the same name.

    Example:
        >>> from fedquilt import Net, models
        >>> method = HCFL(Net.of(models.MLP, features=64, classes=10), initial_rounds=2, mu=0.5)
    """

    criterion: Criterion = "auto"
    head: tuple[str, ...] = ("head",)
    cluster_by: ClusterBy = "auto"
    whole_update: bool = False
    mu: float = 1.0
    lambda_0: float = 1.0
    lambda_alpha: float = 0.1
    lambda_p: float = 1.0
    anneal_last: int = 0
    cluster_rounds: int | None = None
    sharing_by: SharingBy = "stability"
    stop_sharing: int | None = None
    start_at: StartAt = "cluster"

    def __post_init__(self) -> None:
        if self.cluster_by not in get_args(ClusterBy):
            raise InputError(f"cluster_by must be one of {', '.join(get_args(ClusterBy))}, got {self.cluster_by!r}.")
        super().__post_init__()
        _ = self.weight, self.embedded  # checks them
        check_start(self.start_at)
        if self.sharing_by not in get_args(SharingBy):
            raise InputError(f"sharing_by must be one of {', '.join(get_args(SharingBy))}, got {self.sharing_by!r}.")
        if self.stop_sharing is not None and self.stop_sharing < 1:
            raise InputError(f"stop_sharing must be at least 1, got {self.stop_sharing}.")

    @cached_property
    def weight(self) -> fading:
        """lambda(t)."""
        return fading(self.lambda_0, self.lambda_alpha, self.lambda_p, self.anneal_last, self.cluster_rounds)

    @cached_property
    def embedded(self) -> Names:
        """The names of the embedding: all but the head."""
        return everything_but(self.net.under(*self.head))

    @cached_property
    def discovery(self) -> Discovery:
        """By updates of the embedding, if there is one, or of what ``cluster_by`` says."""
        head = self.net.under(*self.head)
        parts: dict[str, Names] = {"embedding": self.embedded, "head": head, "bias": is_bias, "all": everything}
        parts = {part: names for part, names in parts.items() if any(map(names, self.net.trainable))}
        choice = "all" if self.whole_update else self.cluster_by
        if choice == "auto" and self.cut.auto:
            return ByUpdates(self, self.base, self.opened, everything, parts).discovery()
        if choice in ("auto", "embedding"):
            return ByUpdates(self, self.base, self.opened, parts.get("embedding", everything)).discovery()
        if choice not in parts:
            raise InputError(
                f"cluster_by = {choice!r}, but the network trains no such part; it trains {', '.join(parts)}."
            )
        return ByUpdates(self, self.base, self.opened, parts[choice]).discovery()

    @cached_property
    def pulls(self) -> tuple[Term, ...]:
        """To the cluster's model."""
        return (prox(self.mu, "centre"),) if self.mu else ()

    def init_server(self, seed: Seed) -> Blended:
        """One model, nobody placed."""
        return Blended((self.base.init_server(seed).shared,), unknown())

    def member(self, state: Blended, cluster: int) -> Download | Member:
        """The cluster's model; with a global start also the common embedding and the head of the warm-up."""
        shared = state.models[cluster]
        if not state.clusters.labels or self._lone(state.clusters.k):
            return Download(shared)
        return Member(shared, {**state.anchor, **state.common} if self.start_at == "global" else {})

    def _lone(self, clusters: int) -> bool:
        """Whether the data say that there are no groups, so that nothing is left to pull towards."""
        return clusters == 1 and self.cut.auto

    def welcome(self, state: Blended) -> Welcome:
        """With the common embedding, in case of a new cluster."""
        return replace(super().welcome(state), common=state.common)

    def opened(self, state: Blended, nearest: int) -> Params:
        """The nearest one's head on the common embedding."""
        return {**state.models[nearest], **state.common}

    def start(self, download: HasShared, client: HasPrivate, site: Site, context: Context) -> Job:
        """Begin where ``start_at`` says; the pull is towards the cluster's model, once there are clusters."""
        job = super().start(download, client, site, context)
        begin = download.begin if isinstance(download, Member) else {}
        free = isinstance(download, Download) or (isinstance(download, Welcome) and self._lone(len(download.models)))
        centre = {} if free else job.fixed["start"]
        return replace(job, params={**job.params, **begin}, fixed={**job.fixed, "centre": centre})

    def merged(self, state: Blended, heard: Sequence[Reply[HasDelta]], context: Context) -> Blended:
        """Average inside clusters, then blend the embeddings of those that were heard."""
        after = super().merged(state, heard, context)
        if not state.clusters.labels:
            return after
        parts = split(state.clusters, heard)
        common = self._common(state, parts, context)
        if not common:
            return after
        own = [pick(self.embedded, m) for m in after.models]
        top = self.weight(max(0, context.round - self.initial_rounds)) if after.sharing else 0.0
        factors = [top * share for share in self._shares(state.clusters, own, common, parts)]
        models = (
            {**m, **lerp(e, common, f)} if part else m
            for m, e, f, part in zip(after.models, own, factors, parts, strict=True)
        )
        used = tuple(f if part else 0.0 for f, part in zip(factors, parts, strict=True))
        return replace(after, models=tuple(models), common=common, lambdas=used)

    def _common(self, state: Blended, parts: Sequence[Sequence[Reply[HasDelta]]], context: Context) -> Params:
        """sum n_i embedding_i / sum n_i over all participants: the mean of the clusters' means, weighted by samples.

        In this order of sums a lone cluster's mean is the common one to the bit, and blending changes nothing.
        """
        sizes = [sum(r.samples for r in part) for part in parts]
        return weighted_mean(
            (n, pick(self.embedded, mean(m, part, inside(context, k))))
            for k, (m, part, n) in enumerate(zip(state.models, parts, sizes, strict=True))
            if n > 0
        )

    def _shares(
        self, clusters: ClusterResult, own: list[Params], common: Params, parts: Sequence[Sequence[Reply[HasDelta]]]
    ) -> list[float]:
        changes = [[(r.samples, pick(self.embedded, r.upload.delta)) for r in part] for part in parts]
        return shares(self._rule(clusters), own, common, changes)

    def _rule(self, clusters: ClusterResult) -> Sharing:
        if self.sharing_by == "stability":
            return "same" if clusters.measures.get("stable_ari", 1.0) < STABLE else "shrinkage"
        return self.sharing_by

    def observe(self, state: Blended, metrics: Mapping[str, float]) -> Blended:
        """Hear the held-out loss, and perhaps end the sharing."""
        loss = metrics.get("valid_loss")
        if self.stop_sharing is None or loss is None or not state.sharing or not state.clusters.labels:
            return state
        if state.best is None or loss < state.best:
            return replace(state, best=float(loss), waited=0)
        waited = state.waited + 1
        return replace(state, waited=waited, sharing=waited < self.stop_sharing)
