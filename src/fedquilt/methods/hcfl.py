"""HCFL: discovered clusters whose embeddings go on sharing, less and less; their heads never do."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from torch import Tensor

from fedquilt.core.errors import InputError
from fedquilt.core.exchange import Exchange, Reply, Turn
from fedquilt.core.net import Net, logits_of
from fedquilt.core.objective import Objective
from fedquilt.core.params import Names, Params, everything, everything_but, learns, lerp, norm, pick, sub, weighted_mean
from fedquilt.core.record import record
from fedquilt.core.seed import Seed
from fedquilt.core.table import Batch, Site
from fedquilt.core.train import Job
from fedquilt.methods.fedavg import Download, FedAvg, net_of
from fedquilt.methods.flhc import FLHC, Criterion, Linkage, Metric, blur_of, retest_of
from fedquilt.methods.grouped import Groups, Welcome, inside, split
from fedquilt.pieces.aggregators import mean
from fedquilt.pieces.clustering.result import ClusterResult, unknown

Sharing = Literal["same", "size", "divergence", "shrinkage", "stability"]
STABLE = 0.8  # agreement below which clusters are taken to be chance


@record
class Blended(Groups):
    """The server's state: as for any clusters, and the common embedding, whether it is still shared, and how strongly
    each cluster was last drawn to it (0 if it was not heard)."""

    common: Params = field(default_factory=dict)
    sharing: bool = True
    best: float | None = None
    waited: int = 0
    lambdas: tuple[float, ...] = ()


@record
class Member:
    """What a member is sent: its cluster's model, and where to begin if not there ({}: there)."""

    shared: Params
    begin: Params


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


@dataclass(frozen=True)
class pull:
    """mu/2 |w - centre|^2 over what is trained; ``fixed["centre"]`` is the cluster's model, {} in the warm-up."""

    mu: float

    def __post_init__(self) -> None:
        if self.mu < 0:
            raise InputError(f"mu must be >= 0, got {self.mu}.")

    def __call__(self, out: Any, params: Params, fixed: Mapping[str, Any], batch: Batch) -> Tensor:
        total = logits_of(out).new_zeros(())
        for name, w in fixed["centre"].items():
            if learns(params[name]):
                total = total + (params[name] - w).square().sum()
        return self.mu / 2 * total


@dataclass(frozen=True, kw_only=True)
class HCFL(FLHC):
    """FL+HC by updates of the embedding, with a pull to the cluster's model and a fading common embedding.

    A round t = 0, 1, ... after the discovery: client i of cluster k minimises L_i(w) + mu/2 |w - W_k|^2 from W_k. With
    A_k the average of cluster k's participants and P the average of all participants' embeddings, by examples,

        W_k.embedding = A_k.embedding + lambda_k(t) (P - A_k.embedding),    W_k.head = A_k.head.

    Args:
        head: The names that are never shared across clusters; all others are the embedding, by which clients are
            clustered (``names``) and which is blended.
        mu: Strength of the pull, >= 0.
        sharing: lambda(t).
        sharing_by: 'same' lambda for all; 'size': lambda_k = lambda (1 - share of cluster k in the participants'
            examples), so that small clusters borrow more; 'divergence': lambda_k = lambda min_j d_j / d_k with
            d_k = |A_k.embedding - P|, so that far clusters borrow less; 'shrinkage': lambda_k = lambda
            min(1, V_k / d_k^2) with V_k the variance of the average A_k.embedding, estimated from the scatter of the
            cluster's participants: a cluster borrows as much as its own average is uncertain beside its distance from
            the common one (the positive part of James and Stein's estimator), and nothing once clusters really differ;
            'stability': as 'same' if the clusters do not come back when they are sought among fewer clients (measure
            ``stable_ari`` below 0.8), which means that they are chance; otherwise as 'shrinkage'.
        stop_sharing: If set, sharing ends for good once the held-out loss of the clients' models has not improved in
            so many evaluations after the discovery.
        start_at: 'cluster' begins local training at W_k; 'global' at P with the head of the warm-up, a stale start
            that only serves to reproduce published runs.

    Reference: HCFL of the project CFLA 1.0.0; not arXiv 2310.05397, which uses the same name.
    """

    head: Names
    criterion: Criterion = "auto"
    mu: float = 1.0
    sharing: fading = fading()
    sharing_by: Sharing = "stability"
    stop_sharing: int | None = None
    start_at: Literal["cluster", "global"] = "cluster"

    def __post_init__(self) -> None:
        super().__post_init__()
        pull(self.mu)  # checks it
        if self.sharing_by not in get_args(Sharing):
            raise InputError(f"sharing_by must be one of {', '.join(get_args(Sharing))}, got {self.sharing_by!r}.")
        if self.start_at not in ("cluster", "global"):
            raise InputError(f"start_at must be 'cluster' or 'global', got {self.start_at!r}.")
        if self.stop_sharing is not None and self.stop_sharing < 1:
            raise InputError(f"stop_sharing must be at least 1, got {self.stop_sharing}.")

    def init_server(self, seed: Seed) -> Blended:
        """One model, nobody placed."""
        return Blended((self.base.init_server(seed).shared,), unknown())

    def exchanges(self) -> tuple[Exchange, ...]:
        """As FL+HC; training is pulled towards the cluster's model."""
        train, *rest = super().exchanges()
        return (train.training(objective=self.base.loss.plus(pull(self.mu))) if self.mu else train, *rest)

    def embedding(self, params: Params) -> Params:
        """All but the head."""
        return pick(everything_but(self.head), params)

    def member(self, state: Groups, cluster: int) -> Any:
        """The cluster's model; with a global start also the common embedding and the head of the warm-up."""
        shared = state.models[cluster]
        if not state.clusters.labels:
            return Download(shared)
        assert isinstance(state, Blended)
        return Member(shared, {**state.anchor, **state.common} if self.start_at == "global" else {})

    def welcome(self, state: Groups) -> Welcome:
        """With the common embedding, in case of a new cluster."""
        assert isinstance(state, Blended)
        return replace(super().welcome(state), common=state.common)

    def opened(self, state: Groups, nearest: int) -> Params:
        """The nearest one's head on the common embedding."""
        assert isinstance(state, Blended)
        return {**state.models[nearest], **state.common}

    def start(self, download: Any, client: Any, site: Site, turn: Turn) -> Job:
        """Begin where ``start_at`` says; the pull is towards the cluster's model, once there are clusters."""
        job = super().start(download, client, site, turn)
        begin = download.begin if isinstance(download, Member) else {}
        centre = {} if isinstance(download, Download) else job.fixed["start"]
        return replace(job, params={**job.params, **begin}, fixed={**job.fixed, "centre": centre})

    def merged(self, state: Groups, heard: Sequence[Reply[Any]], turn: Turn) -> Groups:
        """Average inside clusters, then blend the embeddings of those that were heard."""
        after = super().merged(state, heard, turn)
        if not state.clusters.labels:
            return after
        assert isinstance(after, Blended)
        parts = split(state.clusters, heard)
        weights = [sum(r.examples for r in part) for part in parts]
        common = self._common(state, parts, weights, turn)
        if not common:
            return after
        own = [self.embedding(m) for m in after.models]
        top = self.sharing(turn.round - self.initial_rounds) if after.sharing else 0.0
        factors = [top * share for share in self._shares(state.clusters, own, common, weights, parts)]
        models = (
            {**m, **lerp(e, common, f)} if part else m
            for m, e, f, part in zip(after.models, own, factors, parts, strict=True)
        )
        used = tuple(f if part else 0.0 for f, part in zip(factors, parts, strict=True))
        return replace(after, models=tuple(models), common=common, lambdas=used)

    def _common(self, state: Groups, parts: Sequence[Any], weights: Sequence[int], turn: Turn) -> Params:
        """sum n_i embedding_i / sum n_i over all participants: the mean of the clusters' means by examples.

        In this order of sums a lone cluster's mean is the common one to the bit, and blending changes nothing.
        """
        means = (
            (n, self.embedding(mean(m, part, inside(turn, k))))
            for k, (m, part, n) in enumerate(zip(state.models, parts, weights, strict=True))
            if n > 0
        )
        return weighted_mean(means)

    def _shares(
        self, clusters: ClusterResult, own: Sequence[Params], common: Params, weights: Sequence[int],
        parts: Sequence[Any],
    ) -> list[float]:  # fmt: skip
        chance = self.sharing_by == "stability" and clusters.measures.get("stable_ari", 1.0) < STABLE
        if self.sharing_by == "same" or chance:
            return [1.0] * len(own)
        if self.sharing_by == "size":
            return [1 - n / max(sum(weights), 1) for n in weights]
        far = [norm(sub(e, common)) if n else math.inf for e, n in zip(own, weights, strict=True)]
        if self.sharing_by == "divergence":
            return [min(far) / d if d > 0 else 1.0 for d in far]
        return [min(1.0, v / d**2) if d > 0 else 1.0 for v, d in zip(self._variances(parts, weights), far, strict=True)]

    def _variances(self, parts: Sequence[Sequence[Reply[Any]]], weights: Sequence[int]) -> list[float]:
        """Of each cluster's mean embedding: s^2 sum p_i^2, with s^2 the unbiased scatter of one participant.

        A lone participant shows no scatter; it is taken to be that of the others, 0 where all are alone.
        """
        heard = [[r for r in part if r.examples > 0] for part in parts]
        scatter: list[float | None] = []
        for part, n in zip(heard, weights, strict=True):
            shares = [r.examples / n for r in part]
            deltas = [self.embedding(r.upload.delta) for r in part]
            centre = weighted_mean(zip(shares, deltas, strict=True))
            apart = sum(p * norm(sub(d, centre)) ** 2 for p, d in zip(shares, deltas, strict=True))
            scatter.append(apart / (1 - _squares(shares)) if len(part) > 1 else None)
        known = [(s, n) for s, n in zip(scatter, weights, strict=True) if s is not None]
        usual = sum(s * n for s, n in known) / max(sum(n for _, n in known), 1)
        return [
            (usual if s is None else s) * _squares([r.examples / n for r in part])
            for s, part, n in zip(scatter, heard, weights, strict=True)
        ]

    def observe(self, state: Any, metrics: Mapping[str, float]) -> Any:
        """Hear the held-out loss, and perhaps end the sharing."""
        loss = metrics.get("valid_loss")
        if self.stop_sharing is None or loss is None or not state.sharing or not state.clusters.labels:
            return state
        if state.best is None or loss < state.best:
            return replace(state, best=float(loss), waited=0)
        waited = state.waited + 1
        return replace(state, waited=waited, sharing=waited < self.stop_sharing)


def _squares(shares: Sequence[float]) -> float:
    return sum(p * p for p in shares)


def hcfl(
    objective: Objective | Net, head: tuple[str, ...] = ("head",), initial_rounds: int = 3,
    criterion: Criterion = "auto", distance_threshold: float = 0.5, n_clusters: int | None = None,
    clustering_metric: Metric = "cosine", linkage: Linkage | None = None, whole_update: bool = False, mu: float = 1.0,
    lambda_0: float = 1.0, lambda_alpha: float = 0.1, lambda_p: float = 1.0, anneal_last: int = 0,
    cluster_rounds: int | None = None, sharing_by: Sharing = "stability",
    stop_sharing: int | None = None, start_at: Literal["cluster", "global"] = "cluster",
    sketch_size: int | None = None, min_size: int = 1, max_exact: int = 5000, recluster_every: int | None = None,
    retest_every: int | None = None, retest_margin: float = 0.1, retest_patience: int = 2,
    recluster_above: float = 0.3, sketch_clip: float | None = None, sketch_noise: float = 0.0,
    secret_noise: bool = False, budget: Literal["cluster", "global"] = "cluster", **rest: Any,
) -> HCFL:  # fmt: skip
    """HCFL on FedAvg; with ``whole_update``, or if the network trains nothing but its head (a frozen encoder, logistic
    regression), clients are clustered by the update of the whole model."""
    net = net_of(objective)
    names = net.under(*head)
    whole_update = whole_update or all(map(names, net.trainable))
    return HCFL(
        base=FedAvg(objective=objective, **rest), head=names, initial_rounds=initial_rounds, criterion=criterion,
        distance_threshold=distance_threshold, n_clusters=n_clusters, clustering_metric=clustering_metric,
        linkage=linkage, names=everything if whole_update else everything_but(names), mu=mu,
        sharing=fading(lambda_0, lambda_alpha, lambda_p, anneal_last, cluster_rounds), sharing_by=sharing_by,
        stop_sharing=stop_sharing, start_at=start_at, sketch_size=sketch_size, min_size=min_size, max_exact=max_exact,
        recluster_every=recluster_every, budget=budget,
        retest=retest_of(retest_every, retest_margin, retest_patience, recluster_above),
        blur=blur_of(sketch_clip, sketch_noise, secret_noise),
    )  # fmt: skip
