"""PODFCSSV: adapters of a frozen masked autoencoder, learned together; a bank of prototypes against forgetting."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import normalize

from fedquilt.core.exchange import Context, Exchange, Reply
from fedquilt.core.net import Net
from fedquilt.core.objective import Objective
from fedquilt.core.params import Params, Parts, check_change, everything, lerp, nothing, pick, sub
from fedquilt.core.seed import Seed
from fedquilt.core.table import Batch, ClientId, Site
from fedquilt.core.train import Job, Trained
from fedquilt.errors import InputError
from fedquilt.methods.fedavg import FedAvg, net_of
from fedquilt.methods.on_base import OnBase
from fedquilt.methods.self_supervised.masked import all_rows, features, reconstruction, width_of
from fedquilt.methods.self_supervised.podfcssv_records import (
    NOVEL,
    OWN,
    TOLD,
    AdapterUpload,
    Anchored,
    Anchoring,
    Anchors,
    Keeper,
    PrototypeUpload,
)
from fedquilt.pieces.aggregators import Aggregator, mean, uniform_mean
from fedquilt.pieces.clustering.private import Blur
from fedquilt.pieces.optimizers import AdamW
from fedquilt.pieces.prototypes.bank import Arrivals, MergeOrAdd, collapsed, no_prototypes
from fedquilt.pieces.prototypes.centre import moved, no_rows
from fedquilt.pieces.prototypes.gpad import GPAD
from fedquilt.pieces.prototypes.memory import FollowingPrototypes, Novelty
from fedquilt.pieces.prototypes.spherical import Reseed, spherical_kmeans

Begin = Literal["warm", "random", "++"]
Weighting = Literal["uniform", "samples"]


@dataclass(frozen=True)
class Clustering:
    """How a client makes prototypes of its features.

    Args:
        k: How many (at most as many as rows); 0 for none.
        begin: 'warm' goes on from the prototypes that followed the training ('random' at first), 'random' and '++'
            begin anew.
        iterations, tolerance, reseed: See :func:`fedquilt.pieces.prototypes.spherical.spherical_kmeans`.
        masked: Whether features are taken under masks as in training, or with every patch visible.
        least: Prototypes of fewer rows are not sent: one of a single row is that image's features.
        live: From the second client update on, send the prototypes that followed the training instead of clustering
        anew.
        blur: Clipping and noise on what is sent, or None.
    """

    k: int = 5
    begin: Begin = "warm"
    iterations: int = 100
    tolerance: float = 1e-4
    reseed: Reseed = "random"
    masked: bool = True
    least: int = 1
    live: bool = False
    blur: Blur | None = None

    def __post_init__(self) -> None:
        if self.k < 0 or self.least < 1:
            raise InputError(f"k_init_prototypes must be >= 0 and min_cluster >= 1, got {self.k} and {self.least}.")
        if self.begin not in get_args(Begin) or self.reseed not in get_args(Reseed):
            given = f"{self.begin!r} and {self.reseed!r}"
            raise InputError(
                f"kmeans_init must be one of {', '.join(get_args(Begin))}, reseed random or farthest: {given}."
            )

    def found(self, z: Tensor, own: Tensor, seed: Seed) -> tuple[Tensor, Tensor]:
        """Directions [K, D] of these features, and which of them each row is nearest to."""
        if self.live and len(own):
            return own, (normalize(z, dim=1) @ own.T).argmax(1)
        warm = self.begin == "warm" and len(own) > 0
        init: Any = own if warm else "random" if self.begin == "warm" else self.begin
        clusters = spherical_kmeans(
            z, self.k, seed, init=init, iterations=self.iterations, tolerance=self.tolerance, reseed=self.reseed
        )
        return clusters.centroids, clusters.labels

    def shown(self, prototypes: Tensor, counts: Tensor, seed: Seed) -> tuple[Tensor, Tensor]:
        """What leaves the client: large enough clusters, perhaps blurred."""
        enough = counts >= self.least  # and so never of no rows
        rows, counts = prototypes[enough], counts[enough]
        if self.blur is not None and len(rows):
            rows = torch.stack([self.blur(row, seed.fold(i)) for i, row in enumerate(rows)])
        return rows, counts


OPTIMIZER = AdamW(1e-4, weight_decay=0.05)  # as published


def _check_prototypes(rows: Tensor, counts: Tensor, bank: Tensor) -> None:
    width = bank.shape[1]
    if rows.dim() != 2 or rows.shape[1] != width or rows.dtype != bank.dtype or counts.shape != rows.shape[:1]:
        raise InputError(f"upload: prototypes {tuple(rows.shape)} with {tuple(counts.shape)} counts, width {width}.")
    if len(rows) and (float(rows.norm(dim=1).min()) < 1e-6 or int(counts.min()) < 1):
        raise InputError("upload: a prototype of length zero, or of no rows.")


def over_adapters(objective: Objective | Net, settings: Mapping[str, Any]) -> FedAvg:
    """FedAvg over the names that the network does not freeze."""
    net = net_of(objective)
    for name in ("patches", "width"):
        net.trait(name)  # says what is missing from a network that is no masked autoencoder
    return FedAvg(net, **settings)


@dataclass(frozen=True)
class Adapters(OnBase):
    """Adapters of a frozen masked autoencoder, which guess hidden patches.

    Args:
        base: FedAvg over the adapters.
        loss: The local loss.
        clustering: How prototypes are made.
        merge: How the bank takes them in.
        center, center_keep, server_ema, bootstrap_every: See :class:`PODFCSSV`.
    """

    base: FedAvg
    loss: Anchoring
    clustering: Clustering = Clustering(k=0)
    merge: MergeOrAdd = MergeOrAdd()  # noqa: RUF009
    center: bool = False
    center_keep: float = 0.5
    server_ema: float | None = None
    bootstrap_every: int | None = None

    def __post_init__(self) -> None:
        if self.loss.lambda_proto < 0:
            raise InputError(f"lambda_proto must be >= 0, got {self.loss.lambda_proto}.")
        if self.server_ema is not None and not 0 < self.server_ema <= 1:
            raise InputError(f"server_ema must be in (0, 1], got {self.server_ema}.")
        if not 0 <= self.center_keep <= 1:
            raise InputError(f"center_keep must be in [0, 1], got {self.center_keep}.")
        if self.bootstrap_every is not None and self.bootstrap_every < 1:
            raise InputError(f"bootstrap_every must be at least 1, got {self.bootstrap_every}.")

    reconstructs = True  # models are scored by what they make of hidden patches, not by class

    # The server

    def init_server(self, seed: Seed) -> Anchors:
        """Fresh adapters, no prototype."""
        width = width_of(self.net)
        return Anchors(self.base.init_server(seed).shared, no_prototypes(width), no_rows(width), Arrivals())

    def init_client(self, seed: Seed) -> Keeper:
        """No prototype, no memory."""
        none = torch.zeros(0, width_of(self.net))
        return Keeper(self.base.init_client(seed).private, none, none)

    def exchanges(self) -> tuple[Exchange, ...]:
        """``look``, if wanted, and ``train``."""
        (train,) = self.base.exchanges()
        train = replace(train, down=self.down, up=self.up, check=self.check)
        train = train.training(start=self.start, objective=self.loss, finish=self.finish, rows=all_rows)
        if self.bootstrap_every is None:
            return (train,)
        return Exchange("look", self.down, self.look, self.up, cohort=train.cohort, check=self.check), train

    def plan(self, state: Anchors, round: int) -> tuple[str, ...]:
        """New data are looked at when they come."""
        new = self.bootstrap_every is not None and round % self.bootstrap_every == 0
        return ("look", "train") if new else ("train",)

    def down(self, state: Anchors, client_id: ClientId) -> Anchored:
        """The same for everyone."""
        return Anchored(state.shared, state.bank.rows, state.centre.mean)

    def check(self, state: Anchors, upload: Any) -> None:
        """Adapters as they are here; prototypes of the right width, none of them zero, with a count each."""
        if isinstance(upload, AdapterUpload):
            check_change(state.shared, upload.delta, "upload")
        _check_prototypes(upload.prototypes, upload.counts, state.bank.rows)
        if isinstance(upload, AdapterUpload) and not 0 < upload.rows <= 10**9:
            raise InputError(f"upload: trained on {upload.rows!r} rows.")

    def up(self, state: Anchors, replies: Iterable[Reply[Any]], context: Context) -> Anchors:
        """Average adapters, merge prototypes in ascending client id, move the mean."""
        heard: list[Any] = []

        def passing() -> Iterator[Reply[Any]]:
            for reply in replies:
                heard.append(
                    replace(reply.upload, **({"delta": {}} if isinstance(reply.upload, AdapterUpload) else {}))
                )
                if isinstance(reply.upload, AdapterUpload):
                    yield replace(reply, samples=reply.upload.rows)

        shared = self.base.aggregate(state.shared, passing(), context)
        if not heard:
            return state
        if self.server_ema is not None and context.round > 0:
            shared = lerp(state.shared, shared, self.server_ema)
        arriving = [(upload.prototypes, upload.counts) for upload in heard]
        centre = moved(state.centre, arriving, self.center_keep) if self.center else state.centre
        bank, arrivals = self.merge(
            state.bank, [(p - centre.mean, n) for p, n in arriving], context.round, context.seed
        )
        return Anchors(shared, bank, centre, arrivals, state.arrived + arrivals.arrived)

    # The clients

    def start(self, download: Anchored, client: Keeper, site: Site, context: Context) -> Job:
        """Begin from the shared adapters, with one's own prototypes and optimiser's memory."""
        own = {OWN: self._seen_from(download.centre, client.prototypes), NOVEL: client.novel, TOLD: torch.zeros(4)}
        fixed = {"start": download.shared, "bank": download.bank, "centre": download.centre, "seed": context.seed.value}
        return Job(params={**download.shared, **client.private, **own}, fixed=fixed, memory=client.memory)

    def finish(
        self, job: Job, trained: Trained, client: Keeper, site: Site, context: Context
    ) -> tuple[Keeper, AdapterUpload]:
        """Cluster the features of all rows, keep what is one's own, send the rest."""
        model = {n: trained.params[n] for n in self.net.names}
        own, seen = self._seen(model, trained.params[OWN], job.fixed["centre"], site, context)
        mae, pull, steps, followed = trained.params[TOLD].tolist()
        kept = Keeper(
            pick(self.base.parts.private, model),
            own,
            trained.params[NOVEL],
            trained.memory,
            (mae / max(steps, 1), pull / max(steps, 1)),
            int(followed),
        )
        delta = sub(pick(self.base.parts.shared, model), job.fixed["start"])
        return kept, AdapterUpload(delta, seen.prototypes, seen.counts, len(all_rows(site)))

    def look(self, download: Anchored, client: Keeper, site: Site, context: Context) -> tuple[Keeper, PrototypeUpload]:
        """Cluster the features of all rows before training on them."""
        model, before = self.personal_model(download, client), self._seen_from(download.centre, client.prototypes)
        own, seen = self._seen(model, before, download.centre, site, context)
        return replace(client, prototypes=own), seen

    def _seen_from(self, centre: Tensor, prototypes: Tensor) -> Tensor:
        """Directions of prototypes as they are kept, seen from where features are compared."""
        return normalize(prototypes - centre, dim=1) if self.center else prototypes

    def _seen(
        self, model: Params, own: Tensor, centre: Tensor, site: Site, context: Context
    ) -> tuple[Tensor, PrototypeUpload]:
        """(the client's prototypes from now on, what it shows of its rows); ``own`` are the directions up to now."""
        rule = self.clustering
        if not rule.k:
            return own, PrototypeUpload(own[:0], torch.zeros(0, dtype=torch.int64))
        masks = context.seed.fold("masks") if rule.masked else None
        raw = features(self.net, model, all_rows(site), masks)
        live = rule.live and len(own) > 0
        own, labels = rule.found(raw - centre, own, context.seed.fold("prototypes"))
        counts = torch.bincount(labels, minlength=len(own))
        if self.center:  # as they are: means of rows, or, where there are none or they followed, a typical length
            means = torch.zeros_like(own).index_add_(0, labels, raw) / counts.clamp(min=1)[:, None]
            far = centre + (raw - centre).norm(dim=1).mean() * own
            own = far if live else torch.where(counts[:, None] > 0, means, far)
        shown, counts = rule.shown(own, counts, context.seed.fold("shown"))
        return own, PrototypeUpload(shown, counts)

    # What is asked of the result

    def predict(self, params: Params, batch: Batch) -> Tensor:
        """Of each image the loss of guessing its hidden patches, under masks that are the same every time."""
        return reconstruction(self.net, params, batch, Seed(0).fold("exam"))

    def reported(self, state: Anchors) -> Mapping[str, float]:
        """Numbers of the last round."""
        found = {
            f"prototypes_{n}": getattr(state.arrivals, n) for n in ("arrived", "merged", "added", "dropped", "evicted")
        }
        spread = {f"prototypes_{n}": getattr(state.arrivals, n) for n in ("cos_mean", "cos_min", "cos_max")}
        return {"bank": len(state.bank), **found, **spread}

    def warning(self, state: Anchors) -> str | None:
        """What should be said about the state, if anything."""
        return collapsed(state.bank, state.arrived)


@dataclass(frozen=True, init=False)
class PODFCSSV(OnBase):
    """Federated continual self-supervised vision.

    A round: (A) every client gets the adapters and the bank; (B) it trains the adapters to guess hidden patches,
    anchored to the bank (:class:`Anchoring`), its own prototypes following; (C) it clusters the features of its rows;
    (D) the server averages the adapters and merges the prototypes into the bank; (E) both are the next round's. The
    backbone is frozen: neither trained nor sent.

    Args:
        base: FedAvg over the adapters: who is asked, local work, how changes are averaged.
        lambda_proto: Weight of the anchoring in the loss, >= 0.
        k_init_prototypes: How many prototypes a client makes (at most as many as rows); 0 for none.
        merge_threshold: The least cosine at which the bank merges a prototype into a row, in [-1, 1].
        server_ema_alpha: How far that row moves, in (0, 1].
        gpad_base_tau: The similarity at which the gate of the anchoring is half open, in [0, 1].
        gpad_temp_gate: How soft the gate is, in (0, 1].
        gpad_lambda_entropy: How much higher the threshold is for rows that no prototype claims clearly, in [0, 0.5].
        soft_assign_temp: Temperature of the assignment whose entropy counts, > 0.
        hard_gate: Also shut the gate where the similarity is not above the threshold.
        gate_grad: Whether gradient flows through the gate.
        distance: Of a row to its prototype: 'l2', or 'sq', the square of it.
        anchored_only: Average the anchoring over the rows that are anchored instead of all.
        client_local_update_threshold: The least cosine at which a row moves an own prototype.
        client_local_ema_alpha: How far it moves.
        kmeans_init: Clustering continues from the prototypes that followed the training ('warm'; 'random' at first), or
            starts fresh: 'random' rows, or '++'.
        kmeans_max_iters: Iterations of the clustering, at most.
        kmeans_tol: Clustering stops when centroids move less.
        reseed: Where an empty cluster restarts: at a 'random' row, or at the row 'farthest' from its centroid.
        prototype_mask: Whether features are taken under masks as in training, or with every patch visible.
        center: Subtract a running mean of all clients' features before they are compared. Clients then send means of
            features as they are, from which the server has the mean at no further cost, and centres what it keeps.
        center_keep: How much earlier rounds count in that mean, for every round gone by; 1 for as much as the last.
        weighting: Clients count the same when adapters are averaged ('uniform'), or by their rows ('samples'); if a
            network is given and not a base.
        merge_by_counts: Rows of the bank are means of all that was merged into them, instead of moving by
            ``server_ema_alpha``.
        max_prototypes: The most rows of the bank; a full one still merges.
        evict: Whether a full bank gives a prototype that is like no row the place of the row that was merged into least
            (then the one longest unused), instead of dropping it.
        concatenate_first: What comes to an empty bank in one round is added without merging.
        shuffle: The bank takes a round's prototypes in an order drawn from the seed, instead of by client.
        novelty_size: If set, so many rows that are near no prototype are collected, and become prototypes of their own.
        novelty_k: How many prototypes are made of them.
        live_prototypes: From the second client update on, send the prototypes that followed the training instead of
            reclustering.
        bootstrap_every: If set, every so many rounds (those of a task) one more exchange brings prototypes of the new
            data into the bank before anybody trains on them.
        server_ema: If set, from the second round on w <- (1 - e) w + e mean instead of the mean.
        min_cluster: Prototypes of fewer rows are not sent: one of a single row is that image's features.
        prototype_clip: The greatest length of a prototype that is sent with noise, > 0.
        prototype_noise: Standard deviation of that noise as a multiple of ``prototype_clip``, >= 0; 0 sends prototypes
            as they are.
        secret_noise: Draw the noise from system randomness, so that it cannot be reproduced; neither can the run.

    Reference: the project PODFCSSV 0.1.0; see the method's card for where this departs from its code.

    Example:
        >>> from fedquilt import models
        >>> net = models.net("mae", (1, 8, 8), 10, width=16, depth=1, heads=2, patch=2)
        >>> method = PODFCSSV(net, center=True, lambda_proto=0.1)
    """

    base: FedAvg
    lambda_proto: float = 1.0
    k_init_prototypes: int = 5
    merge_threshold: float = 0.85
    server_ema_alpha: float = 0.1
    gpad_base_tau: float = 0.5
    gpad_temp_gate: float = 0.1
    gpad_lambda_entropy: float = 0.1
    soft_assign_temp: float = 0.1
    hard_gate: bool = False
    gate_grad: bool = False
    distance: Literal["l2", "sq"] = "l2"
    anchored_only: bool = False
    client_local_update_threshold: float = 0.7
    client_local_ema_alpha: float = 0.1
    kmeans_init: Begin = "warm"
    kmeans_max_iters: int = 100
    kmeans_tol: float = 1e-4
    reseed: Reseed = "random"
    prototype_mask: bool = True
    center: bool = False
    center_keep: float = 0.5
    weighting: Weighting = "uniform"
    merge_by_counts: bool = False
    max_prototypes: int | None = None
    evict: bool = False
    concatenate_first: bool = False
    shuffle: bool = False
    novelty_size: int | None = None
    novelty_k: int = 10
    live_prototypes: bool = False
    bootstrap_every: int | None = None
    server_ema: float | None = None
    min_cluster: int = 1
    prototype_clip: float = 1.0
    prototype_noise: float = 0.0
    secret_noise: bool = False
    defaults: ClassVar = {"optimizer": OPTIMIZER}

    def around(self, objective: Objective | Net, **settings: Any) -> FedAvg:
        """FedAvg over the adapters, in which clients count as ``weighting`` says."""
        return over_adapters(objective, {**self.defaults, "aggregate": weighed(self.weighting), **settings})

    @cached_property
    def delegate(self) -> Adapters:
        """Adapters with prototypes as the options say."""
        return Adapters(
            self.base,
            self.loss,
            self.clustering,
            self.merge,
            self.center,
            self.center_keep,
            self.server_ema,
            self.bootstrap_every,
        )

    @cached_property
    def loss(self) -> Anchoring:
        """The local loss."""
        gpad = GPAD(
            self.gpad_base_tau,
            self.gpad_temp_gate,
            self.gpad_lambda_entropy,
            self.soft_assign_temp,
            self.hard_gate,
            self.distance,
            self.gate_grad,
            self.anchored_only or self.novelty_size is not None,
        )
        novelty = None if self.novelty_size is None else Novelty(self.novelty_size, self.novelty_k)
        follow = FollowingPrototypes(self.client_local_update_threshold, self.client_local_ema_alpha)
        return Anchoring(self.base.net, gpad, self.lambda_proto, follow, novelty)

    @cached_property
    def clustering(self) -> Clustering:
        """How prototypes are made."""
        blur = Blur(self.prototype_clip, self.prototype_noise, self.secret_noise) if self.prototype_noise else None
        return Clustering(
            self.k_init_prototypes,
            self.kmeans_init,
            self.kmeans_max_iters,
            self.kmeans_tol,
            self.reseed,
            self.prototype_mask,
            self.min_cluster,
            self.live_prototypes,
            blur,
        )

    @cached_property
    def merge(self) -> MergeOrAdd:
        """How the bank takes them in."""
        return MergeOrAdd(
            self.merge_threshold,
            self.server_ema_alpha,
            self.merge_by_counts,
            self.max_prototypes,
            self.evict,
            self.concatenate_first,
            self.shuffle,
        )


def without_prototypes(base: FedAvg) -> Adapters:
    """Adapters that nothing is anchored to."""
    return Adapters(base, Anchoring(base.net, lambda_proto=0.0))


@dataclass(frozen=True, init=False)
class FedMAE(OnBase):
    """Adapters averaged, no prototypes: what PODFCSSV must beat.

    Args:
        base: FedAvg over the adapters.
        weighting: Clients count the same when adapters are averaged ('uniform'), or by their rows ('samples'); if a
            network is given and not a base.

    Reference: none; PODFCSSV without what is new in it.

    Example:
        >>> from fedquilt import models
        >>> net = models.net("mae", (1, 8, 8), 10, width=16, depth=1, heads=2, patch=2)
        >>> method = FedMAE(net, batch_size=64)
    """

    base: FedAvg
    weighting: Weighting = "uniform"
    defaults: ClassVar = {"optimizer": OPTIMIZER}

    def around(self, objective: Objective | Net, **settings: Any) -> FedAvg:
        """FedAvg over the adapters, in which clients count as ``weighting`` says."""
        return over_adapters(objective, {**self.defaults, "aggregate": weighed(self.weighting), **settings})

    @cached_property
    def delegate(self) -> Adapters:
        """Without prototypes."""
        return without_prototypes(self.base)


@dataclass(frozen=True, init=False)
class MAEAlone(OnBase):
    """Every client trains its own adapters on its own stream; nothing is averaged.

    Reference: none; the lower baseline of PODFCSSV.

    Example:
        >>> from fedquilt import models
        >>> net = models.net("mae", (1, 8, 8), 10, width=16, depth=1, heads=2, patch=2)
        >>> method = MAEAlone(net, batch_size=64)
    """

    base: FedAvg
    defaults: ClassVar = {"optimizer": OPTIMIZER, "parts": Parts(shared=nothing, private=everything)}

    def around(self, objective: Objective | Net, **settings: Any) -> FedAvg:
        """Adapters that nobody shares."""
        return over_adapters(objective, {**self.defaults, **settings})

    @cached_property
    def delegate(self) -> Adapters:
        """Without prototypes."""
        return without_prototypes(self.base)


@dataclass(frozen=True, init=False)
class MAEPooled(OnBase):
    """One set of adapters on the pooled rows of all clients; not federated.

    Reference: none; the upper frame of PODFCSSV.

    Example:
        >>> from fedquilt import models
        >>> net = models.net("mae", (1, 8, 8), 10, width=16, depth=1, heads=2, patch=2)
        >>> method = MAEPooled(net, batch_size=64)
    """

    base: FedAvg
    defaults: ClassVar = {"optimizer": OPTIMIZER}

    def around(self, objective: Objective | Net, **settings: Any) -> FedAvg:
        """FedAvg over the adapters."""
        return over_adapters(objective, {**self.defaults, **settings})

    @cached_property
    def delegate(self) -> Adapters:
        """Without prototypes."""
        return without_prototypes(self.base)

    @property
    def pools_data(self) -> bool:
        """It trains on pooled data."""
        return True


def weighed(weighting: Weighting) -> Aggregator:
    """The mean that counts clients so."""
    if weighting not in get_args(Weighting):
        raise InputError(f"weighting must be 'uniform' or 'samples', got {weighting!r}.")
    return uniform_mean if weighting == "uniform" else mean
