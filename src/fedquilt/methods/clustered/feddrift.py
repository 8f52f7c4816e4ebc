"""After FedDrift: clients whose data change open clusters of their own, and clusters found to be alike merge."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedquilt.core.exchange import Context, Exchange, Reply
from fedquilt.core.params import Params, same_names, weighted_mean
from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId, Site
from fedquilt.core.train import Job, Trained
from fedquilt.errors import InputError
from fedquilt.methods.clustered.regrouping import Regrouping
from fedquilt.methods.clustered.starts import Centres, Offer, Starts, labelled, local
from fedquilt.records.record import record

APART = 1e9  # the distance of clusters that cannot be compared


@record(name="fedquilt.methods.feddrift:Watch")
class DriftWatch:
    """A client's private part, its best model's loss when it was last well (None: not yet), and client updates since
    then."""

    private: Params
    lowest: float | None
    strikes: int


@record(name="fedquilt.methods.feddrift:Report")
class DriftVote:
    """A vote, with the losses of all models on the client's samples (under 'loss'), and whether its data drifted."""

    delta: Params
    cluster: int
    losses: Params
    drifted: bool


@dataclass(frozen=True, init=False)
class FedDrift(Regrouping[Centres, DriftWatch]):
    """As IFCA, but the number of clusters follows the data.

    A client drifts when even its best model's loss has risen by more than ``delta`` since it last was well, at
    ``patience`` client updates in a row. The model that it then trains, from its best one, becomes a cluster of its
    own. Clusters i and j merge when d(i, j) = max(L_ij - L_jj, L_ji - L_ii) is at most ``delta``, by complete linkage;
    L_ij is the mean loss of model i on the rows of those heard from cluster j. A cluster takes part in this from the
    round after it was opened, and is closed when all clients have left it. Numbers of clusters close up.

    Args:
        base: How one model is trained and averaged. There is one at first.
        most: How many at most; beyond, drifted clients stay with their best model.
        delta: How much a loss may rise, >= 0.
        patience: Client updates, >= 1.

    Reference: after Jothimurugesan et al., Federated Learning under Distributed Concept Drift, 2023.

    Example:
        >>> from fedquilt import Net, models
        >>> method = FedDrift(Net.of(models.MLP, features=64, classes=10), delta=0.3)
    """

    n_clusters: int = field(default=1, init=False)  # at first
    starts: Starts = field(default="updates", init=False)  # one model needs none
    most: int = 10
    delta: float = 0.5
    patience: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.delta >= 0 and self.patience >= 1 and self.most >= 1):
            raise InputError(
                "FedDrift needs delta >= 0, patience >= 1 and most >= 1, "
                f"got {self.delta}, {self.patience} and {self.most}."
            )

    def init_client(self, seed: Seed) -> DriftWatch:
        """Nothing watched yet."""
        return DriftWatch(self.base.init_client(seed).private, None, 0)

    def exchanges(self) -> tuple[Exchange, ...]:
        """One model needs no starts."""
        return super().exchanges()[:1]

    def start(self, download: Offer, client: DriftWatch, site: Site, context: Context) -> Job:
        """As the base, from the best model; remember all losses."""
        losses = self.losses(download, client, site)
        best = min(losses, key=lambda k: (losses[k], k))
        offer = replace(download, models={best: download.models[best]})
        return replace(super().start(offer, client, site, context), memo=(best, losses))

    def finish(
        self, job: Job, trained: Trained, client: DriftWatch, site: Site, context: Context
    ) -> tuple[DriftWatch, DriftVote]:
        """Also report the losses, and drift."""
        best, losses = job.memo
        client, upload = self.base.finish(job, trained, client, site, context)
        risen = client.lowest is not None and losses[best] > client.lowest + self.delta
        strikes = client.strikes + 1 if risen else 0
        drifted = strikes >= self.patience
        lowest = None if drifted else client.lowest if risen else losses[best]
        told = {"loss": torch.tensor([losses[k] for k in sorted(losses)], dtype=torch.float64)}
        return replace(client, lowest=lowest, strikes=0 if drifted else strikes), DriftVote(
            upload.delta, best, told, drifted
        )

    def check(self, state: Centres, upload: Any) -> None:
        """A vote, and a loss for every model."""
        super().check(state, upload)
        same_names({"loss": torch.zeros(len(state.models), dtype=torch.float64)}, upload.losses, "losses")

    def up(self, state: Centres, replies: Iterable[Reply[DriftVote]], context: Context) -> Centres:
        """Average, merge what is alike, open clusters for those who drifted, close those that are empty."""
        heard = list(replies)
        if not heard:
            return state
        drifted = [r for r in heard if r.upload.drifted][: max(0, self.most - len(state.models))]
        opened = [local(state, r) for r in drifted]
        stayed = [r for r in heard if r.client not in {d.client for d in drifted}]
        after = self.merged(super().up(state, stayed, context), stayed)
        labels = {r.client: len(after.models) + i for i, r in enumerate(drifted)}
        models = (*after.models, *opened)
        clusters = labelled(after, labels, len(models), self.rule.criterion)
        used = sorted(set(clusters.labels.values()))
        return self.renumbered(replace(after, models=models, clusters=clusters), models, [[k] for k in used])

    def merged(self, state: Centres, heard: Sequence[Reply[DriftVote]]) -> Centres:
        """One model, the mean, weighted by samples, of those received, for every group of clusters that are alike."""
        groups = self._alike(len(state.models), heard)
        if len(groups) == len(state.models):
            return state
        weights = [sum(r.samples for r in heard if r.upload.cluster == k) for k in range(len(state.models))]
        models = [
            state.models[g[0]] if len(g) == 1 else weighted_mean((weights[k], state.models[k]) for k in g)
            for g in groups
        ]
        firsts = {g[0]: model for g, model in zip(groups, models, strict=True)}
        return self.renumbered(state, [firsts.get(k, m) for k, m in enumerate(state.models)], groups)

    def renumbered(self, state: Centres, models: Sequence[Params], groups: Sequence[Sequence[int]]) -> Centres:
        """One cluster for each group, with the model of its first."""
        number = {k: i for i, g in enumerate(groups) for k in g}
        labels: dict[ClientId, int] = {c: number[k] for c, k in state.clusters.labels.items()}
        clusters = labelled(state, labels, len(groups), self.rule.criterion)
        return replace(state, models=tuple(models[g[0]] for g in groups), clusters=clusters)

    def _alike(self, k: int, heard: Sequence[Reply[DriftVote]]) -> list[list[int]]:
        """Groups of clusters, each in order, by smallest number."""
        loss = np.full((k, k), np.nan)  # [i, j]: model i on the rows of cluster j
        for j in range(k):
            members = [(r.samples, r.upload.losses["loss"].numpy()) for r in heard if r.upload.cluster == j]
            if members:
                loss[:, j] = np.average([m[1] for m in members], axis=0, weights=[m[0] for m in members])
        return alike(loss, self.delta)


def alike(loss: NDArray[np.float64], limit: float) -> list[list[int]]:
    """Groups of clusters by complete linkage on d(i, j) = max(L_ij - L_jj, L_ji - L_ii, 0), cut at ``limit``, which may
    be reached. Each group is in order, and groups are in the order of their smallest number.

    Args:
        loss: [k, k]: L_ij of model i on the rows of cluster j; NaN where nobody of cluster j was heard.
        limit: How much a loss may rise, >= 0.
    """
    from scipy.cluster.hierarchy import fcluster, linkage  # takes a while to import
    from scipy.spatial.distance import squareform

    if len(loss) == 1:
        return [[0]]
    rise = loss - np.diag(loss)  # [i, j]: L_ij - L_jj
    apart = np.nan_to_num(np.maximum(np.maximum(rise, rise.T), 0), nan=APART)
    np.fill_diagonal(apart, 0)
    names = fcluster(linkage(squareform(apart), "complete"), limit, "distance")
    groups = {name: [k for k, n in enumerate(names) if n == name] for name in names}
    return sorted(groups.values())
