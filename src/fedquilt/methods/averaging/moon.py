"""MOON: local features are drawn towards the global model's and away from the client's previous model's."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedquilt.core.exchange import Context, Exchange
from fedquilt.core.holders import HasShared
from fedquilt.core.objective import scores_and_features
from fedquilt.core.params import Params
from fedquilt.core.seed import Seed
from fedquilt.core.table import Site
from fedquilt.core.train import Job, Trained
from fedquilt.methods.fedavg import FedAvg, Upload
from fedquilt.methods.on_base import OnBase
from fedquilt.pieces.objectives import contrast
from fedquilt.records.record import record


@record(name="fedquilt.methods.moon:MoonClient")
class MoonClient:
    """The private part, and the whole model after the last client update ({} before the first)."""

    private: Params
    previous: Params


@dataclass(frozen=True, init=False)
class Moon(OnBase):
    """The base's loss + mu * contrast(features; global, previous); see :class:`fedquilt.pieces.objectives.contrast`.

    On a client's first client update its previous model is the global one, and the term is the constant mu log 2.

    Args:
        base: FedAvg with a network in two parts, features and head.
        mu: Weight of the contrast, >= 0; 0 is FedAvg.
        tau: Temperature, > 0.

    Reference: Li et al., Model-Contrastive Federated Learning, 2021.
    """

    base: FedAvg
    mu: float = 1.0
    tau: float = 0.5

    def __post_init__(self) -> None:
        contrast(self.base.net, self.mu, self.tau)  # checks both

    def init_client(self, seed: Seed) -> MoonClient:
        """No previous model."""
        return MoonClient(self.base.init_client(seed).private, {})

    def exchanges(self) -> tuple[Exchange, ...]:
        """The base's exchange with one more term in the loss."""
        (train,) = self.base.exchanges()
        loss = self.base.loss.plus(contrast(self.base.net, self.mu, self.tau))
        loss = replace(loss, forward=scores_and_features)
        return (train.training(start=self.start, objective=loss, finish=self.finish),)

    def start(self, download: HasShared, client: MoonClient, site: Site, context: Context) -> Job:
        """As the base, with the two models that features are compared with."""
        job = self.base.start(download, client, site, context)
        return replace(job, fixed={**job.fixed, "global": job.params, "previous": client.previous or job.params})

    def finish(
        self, job: Job, trained: Trained, client: MoonClient, site: Site, context: Context
    ) -> tuple[MoonClient, Upload]:
        """As the base, remembering the model."""
        client, upload = self.base.finish(job, trained, client, site, context)
        return replace(client, previous=trained.params), upload
