"""FedSoft: a client belongs to each cluster by the share of its rows that the cluster's model fits best."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from fedquilt.core.exchange import Context, Exchange, Reply, everyone, plain
from fedquilt.core.objective import Objective
from fedquilt.core.params import Params, add, check_change, same_names, weighted_mean
from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId, Site
from fedquilt.core.train import Job, Trained
from fedquilt.errors import InputError
from fedquilt.methods.clustered.regrouping import LowestLoss, Regrouping
from fedquilt.methods.clustered.row_losses import best_shares
from fedquilt.methods.clustered.starts import Centres, Offer, labelled
from fedquilt.methods.fedavg import Download, Owner, Upload
from fedquilt.pieces.objectives import prox
from fedquilt.records.record import record


@record(name="fedquilt.methods.fedsoft:Shares")
class Shares:
    """Under the name 'share', the client's share in each cluster [k]."""

    values: Params


@record(name="fedquilt.methods.fedsoft:Soft")
class Soft(Centres):
    """Also each client's shares and examples, and whom each cluster asks next (() for everybody)."""

    shares: dict[ClientId, Tensor]
    sizes: dict[ClientId, int]
    asked: tuple[tuple[ClientId, ...], ...]


@dataclass(frozen=True, init=False)
class FedSoft(Regrouping[Soft, Owner]):
    """u_ik = share of client i's rows on which model k has the lowest loss. Client i trains f_i(w) + lam/2 sum_k u_ik
    |w - W_k|^2, going on from its own model, and W_k averages w_i over clients drawn with probability ~ u_ik n_i.

    Up to a constant, the pull is lam/2 |w - c_i|^2 with c_i = sum_k u_ik W_k; so c_i is all that is sent for training.
    The cohort's rule says how many clients each cluster draws, without replacement; they count the same. If it asks
    everybody, W_k is the mean of all w_i weighed by u_ik n_i. ``clusters`` holds the cluster of each client's largest
    share.

    Args:
        base, n_clusters, starts: See :class:`Regrouping`.
        lam: Strength of the proximal term, >= 0.
        every: Rounds from one estimate of the shares, for which all clients get all models, to the next.
        smoother: What a share of 0 is replaced by, > 0; shares are then scaled to sum to 1.

    Reference: Ruan and Joe-Wong, FedSoft: Soft Clustered Federated Learning with Proximal Local Updating, 2022.

    Example:
        >>> from fedquilt import Net, models
        >>> method = FedSoft(Net.of(models.MLP, features=64, classes=10), n_clusters=2)
    """

    lam: float = 0.1
    every: int = 2
    smoother: float = 1e-4

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.every < 1 or not self.smoother > 0:
            raise InputError(f"FedSoft needs every >= 1 and smoother > 0, got {self.every} and {self.smoother}.")

    @cached_property
    def objective(self) -> Objective:
        """With the pull."""
        return self.base.loss.plus(prox(self.lam))

    @cached_property
    def rule(self) -> LowestLoss:
        """Shares are in the server's state."""
        return LowestLoss("largest share of rows with the lowest loss")

    def init_server(self, seed: Seed) -> Soft:
        """No shares yet."""
        return Soft(**vars(super().init_server(seed)), shares={}, sizes={}, asked=())

    def init_client(self, seed: Seed) -> Owner:
        """No model of its own yet."""
        return Owner(self.base.init_client(seed).private, {})

    def exchanges(self) -> tuple[Exchange, ...]:
        """Train towards a mixture; once, the starts; now and then, the shares."""
        train, starts = super().exchanges()
        train = train.training(start=self.go_on, finish=self.keep)
        train = replace(train, down=self.mixture, up=self.soften, check=self.same, cohort=self.whom)
        estimate = Exchange("estimate", self.down, self.estimate, self.weigh, plain, everyone, self.counted)
        return train, starts, estimate

    def plan(self, state: Soft, round: int) -> tuple[str, ...]:
        """Shares are estimated in every so many rounds."""
        first = () if len(state.models) >= self.n_clusters else ("starts",)
        return (*first, "estimate", "train") if round % self.every == 0 else (*first, "train")

    # Shares

    def estimate(self, download: Offer, client: Owner, site: Site, context: Context) -> tuple[Owner, Shares]:
        """On which share of the rows each model has the lowest cross-entropy; the lowest number on a tie."""
        models = [{**self.whole(download, k), **client.private} for k in sorted(download.models)]
        return client, Shares({"share": best_shares(self.net, self.predict, models, site.train)})

    def counted(self, state: Soft, upload: Shares) -> None:
        """A share for each cluster, none negative."""
        same_names({"share": torch.zeros(len(state.models), dtype=torch.float64)}, upload.values, "upload")
        share = upload.values["share"]
        if float(share.min()) < 0 or abs(float(share.sum()) - 1) > 1e-6:
            raise InputError("upload: shares must not be negative and must sum to 1.")

    def weigh(self, state: Soft, replies: Iterable[Reply[Shares]], context: Context) -> Soft:
        """Keep the shares; draw whom the clusters ask."""
        heard = list(replies)
        if not heard:
            return state
        new = {r.client: self._smoothed(r.upload.values["share"]) for r in heard}
        labels = {c: int(u.argmax()) for c, u in new.items()}
        sizes = {**state.sizes, **{r.client: r.samples for r in heard}}
        clusters = labelled(state, labels, len(state.models), self.rule.criterion)
        return self._drawn(replace(state, shares={**state.shares, **new}, sizes=sizes, clusters=clusters), context)

    def _smoothed(self, share: Tensor) -> Tensor:
        positive = torch.where(share > 0, share, self.smoother)
        return positive / positive.sum()

    def share(self, state: Soft, client: ClientId) -> Tensor:
        """A client's shares; even ones for a client that was never heard."""
        k = len(state.models)
        return state.shares.get(client, torch.full((k,), 1 / k, dtype=torch.float64))

    # Training

    def _drawn(self, state: Soft, context: Context) -> Soft:
        ids = list(state.shares)
        count = len(self.base.cohort(state, ids, context.seed))
        if count >= len(ids):
            return replace(state, asked=())
        asked = []
        for k in range(len(state.models)):
            weights = torch.stack([state.shares[c][k] * state.sizes[c] for c in ids]).numpy()
            draw = context.seed.fold("asked", k).numpy()
            drawn = draw.choice(len(ids), size=count, replace=False, p=weights / weights.sum())
            asked.append(tuple(ids[i] for i in sorted(drawn)))
        return replace(state, asked=tuple(asked))

    def whom(self, state: Soft, ids: Sequence[ClientId], seed: Seed) -> Sequence[ClientId]:
        """Everybody whom some cluster asks."""
        wanted = {c for group in state.asked for c in group}
        return [c for c in ids if c in wanted] if state.asked else self.base.cohort(state, ids, seed)

    def mixture(self, state: Soft, client_id: ClientId) -> Download:
        """c_i = sum_k u_ik W_k."""
        return Download(weighted_mean(zip(self.share(state, client_id).tolist(), state.models, strict=True)))

    def go_on(self, download: Download, client: Owner, site: Site, context: Context) -> Job:
        """From one's own model; the pull is towards the mixture."""
        return Job(params=self.personal_model(download, client), fixed={"start": download.shared})

    def keep(self, job: Job, trained: Trained, client: Owner, site: Site, context: Context) -> tuple[Owner, Upload]:
        """Send the way from the mixture to one's own model."""
        client, upload = self.base.finish(job, trained, client, site, context)
        return replace(client, own=trained.params), upload

    def same(self, state: Soft, upload: Upload) -> None:
        """A change has the names and shapes of what it changes."""
        check_change(state.models[0], upload.delta, "upload")

    def soften(self, state: Soft, replies: Iterable[Reply[Upload]], context: Context) -> Soft:
        """Each cluster's model anew from those it asked; it stays if none of them answered."""
        heard = {r.client: r for r in replies}
        if not heard:
            return state
        local = {c: add(self.mixture(state, c).shared, r.upload.delta) for c, r in heard.items()}
        models = tuple(
            weighted_mean((w, local[c]) for c, w in weights.items()) if weights else state.models[k]
            for k, weights in enumerate(self._weights(state, heard))
        )
        return self._drawn(replace(state, models=models), context)

    def _weights(self, state: Soft, heard: Mapping[ClientId, Reply[Upload]]) -> list[dict[ClientId, float]]:
        if state.asked:
            return [{c: 1.0 for c in heard if c in group} for group in state.asked]
        shares = {c: self.share(state, c) * r.samples for c, r in heard.items()}
        return [{c: float(u[k]) for c, u in shares.items()} for k in range(len(state.models))]

    def personal_model(self, download: Offer | Download, client: Owner) -> Params:
        """One's own, once there is one; until then what the download gives."""
        if isinstance(download, Offer):
            return client.own or super().personal_model(download, client)
        return client.own or {**download.shared, **client.private}

    def select_model(self, download: Offer | Download, client: Owner, site: Site) -> Params | None:
        """Without a model of one's own, and if all are at hand, the one of lowest loss; else nothing to select."""
        return None if client.own or not isinstance(download, Offer) else super().select_model(download, client, site)

    def newcomer_model(self, download: Offer | Download, client: Owner, site: Site, context: Context) -> Params:
        """The model of lowest loss if all are at hand, else the even mixture."""
        if isinstance(download, Offer):
            return super().newcomer_model(download, client, site, context)
        return self.personal_model(download, client)
