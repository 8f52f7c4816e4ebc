"""FedGroup: groups found from short pre-trainings before the first round; others join when first asked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import Tensor

from fedquilt.core.errors import InputError
from fedquilt.core.exchange import Exchange, Reply, Turn, at_random, plain
from fedquilt.core.net import Net
from fedquilt.core.objective import Objective
from fedquilt.core.params import Params, flatten, norm, weighted_mean
from fedquilt.core.table import ClientId, Site
from fedquilt.core.train import Job, Trained
from fedquilt.methods.fedavg import Download, FedAvg, Upload
from fedquilt.methods.flhc import FLHC
from fedquilt.methods.grouped import Grouped, Groups, Welcome
from fedquilt.pieces.aggregators import uniform_mean
from fedquilt.pieces.clustering.decomposed import grouped
from fedquilt.pieces.objectives import prox


@dataclass(frozen=True, kw_only=True)
class FedGroup(Grouped):
    """Groups by decomposed cosines of updates, with cold start.

    The first round begins with a trip to min(pretrain_scale n_clusters, N) clients, which is no round of its own: each
    takes ``pretrain_steps`` steps from w0 and sends its update. A group's first model is the plain mean of its members'
    models, its direction the mean of their updates. A client that is asked later for the first time takes the same
    steps from w0, and joins the group with the smallest (1 - cos(update, direction)) / 2 for good.

    Args:
        base: How groups are trained.
        n_clusters: How many groups.
        pretrain_scale, pretrain_steps: How many clients per group are pre-trained, and how far.
        measure: 'edc' or 'madc'; see :mod:`fedquilt.pieces.clustering.decomposed`.
        group_agg_lr: Mixing of groups after each round: group g becomes the weighted mean of all, with weight 1 for
            itself and group_agg_lr / |W_j| for every other; 0 for none.
        mu: Strength of a pull to the round's start (FedGrouProx), >= 0.

    Reference: Duan et al., FedGroup, 2021; Flexible Clustered Federated Learning (FlexCFL), 2021.
    """

    n_clusters: int = 3
    pretrain_scale: int = 20
    pretrain_steps: int = 50
    measure: Literal["edc", "madc"] = "edc"
    group_agg_lr: float = 0.0
    mu: float = 0.0
    budget: Literal["cluster", "global"] = "global"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("n_clusters", "pretrain_scale", "pretrain_steps"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, got {getattr(self, name)}.")
        if self.group_agg_lr < 0:
            raise InputError(f"group_agg_lr must be >= 0, got {self.group_agg_lr}.")
        if self.measure not in ("edc", "madc"):
            raise InputError(f"measure must be 'edc' or 'madc', got {self.measure!r}.")
        prox(self.mu)  # checks it

    def exchanges(self) -> tuple[Exchange, ...]:
        """Train; and once, discover."""
        (train,) = super().exchanges()
        if self.mu:
            train = train.training(objective=self.base.loss.plus(prox(self.mu)))
        return train, self.discovery()

    def discovery(self) -> Exchange:
        """A short training of some clients from w0."""
        (train,) = self.base.exchanges()
        return replace(
            train.training(finish=self.sense, steps=self.pretrain_steps), name="discover", up=self.form,
            down=self.down_anchor, check=self.check, cohort=at_random(self.pretrain_scale * self.n_clusters),
            codec=plain,
        )  # fmt: skip

    def plan(self, state: Groups, round: int) -> tuple[str, ...]:
        """Discover once, then train."""
        return ("train",) if state.clusters.labels else ("discover", "train")

    def down_anchor(self, state: Groups, client_id: ClientId) -> Download:
        """w0."""
        return Download(shared=state.models[0])

    def sense(self, job: Job, trained: Trained, client: Any, site: Site, turn: Turn) -> tuple[Any, Upload]:
        """The update; the client keeps nothing."""
        return client, self.base.finish(job, trained, client, site, turn)[1]

    def form(self, state: Groups, replies: Iterable[Reply[Upload]], turn: Turn) -> Groups:
        """Group the updates; a group's model is the plain mean of its members'."""
        heard = list(replies)
        if not heard:
            return state
        vectors = {r.client: flatten(self.base.trained(r.upload.delta)) for r in heard}
        found, start = grouped(vectors, self.n_clusters, self.measure, turn.seed), state.models[0]
        models = [uniform_mean(start, [r for r in heard if found.labels[r.client] == k], turn) for k in range(found.k)]
        return replace(state, models=tuple(models), clusters=found, anchor=start)

    def vector(self, download: Welcome, client: Any, site: Site, turn: Turn) -> Tensor:
        """The update of a cold start."""
        work: Any = self.discovery().work
        aside = replace(turn, seed=turn.seed.fold("join"))
        upload: Upload = work.run(Download(download.anchor), client, site, aside)[1]
        return flatten(self.base.trained(upload.delta))

    def merged(self, state: Groups, heard: Sequence[Reply[Any]], turn: Turn) -> Groups:
        """Average inside groups, then mix them."""
        after = super().merged(state, heard, turn)
        if not self.group_agg_lr:
            return after
        weights = [self.group_agg_lr / max(norm(self.base.trained(m)), 1e-12) for m in after.models]

        def mixed(g: int) -> Params:
            return weighted_mean((1.0 if j == g else weights[j], m) for j, m in enumerate(after.models))

        return replace(after, models=tuple(mixed(g) for g in range(len(after.models))))


def fedgroup(
    objective: Objective | Net, n_clusters: int = 3, pretrain_scale: int = 20, pretrain_steps: int = 50,
    measure: Literal["edc", "madc"] = "edc", group_agg_lr: float = 0.0, mu: float = 0.0,
    budget: Literal["cluster", "global"] = "global", **rest: Any,
) -> FedGroup:  # fmt: skip
    """FedGroup on FedAvg."""
    return FedGroup(
        base=FedAvg(objective=objective, **rest), n_clusters=n_clusters, pretrain_scale=pretrain_scale,
        pretrain_steps=pretrain_steps, measure=measure, group_agg_lr=group_agg_lr, mu=mu, budget=budget,
    )  # fmt: skip


def fedgroup_params(
    objective: Objective | Net, initial_rounds: int = 3, distance_threshold: float = 0.5,
    n_clusters: int | None = None, **rest: Any,
) -> FLHC:  # fmt: skip
    """What a published comparison called FedGroup: weights, not updates, clustered by cosine after a warm-up.

    Weights trained from one start are almost parallel, so a threshold of 0.5 finds one cluster and this is FedAvg. It
    serves to reproduce that comparison, and for nothing else.
    """
    return FLHC(
        base=FedAvg(objective=objective, **rest), initial_rounds=initial_rounds, n_clusters=n_clusters,
        distance_threshold=distance_threshold, evidence="weights",
    )  # fmt: skip
