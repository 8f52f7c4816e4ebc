"""CGPFL, a reading: clients are pulled to the model of their context and regrouped by how near theirs came."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from fedquilt.core.exchange import Context
from fedquilt.core.objective import Objective
from fedquilt.core.params import Params
from fedquilt.core.seed import Seed
from fedquilt.core.table import Site
from fedquilt.core.train import Job, Trained
from fedquilt.methods.clustered.by_distance import Metric, Nearest, PlacedCentres
from fedquilt.methods.clustered.regrouping import Regrouping
from fedquilt.methods.clustered.starts import HasVote, Offer, StartAt
from fedquilt.methods.fedavg import Client, Owner
from fedquilt.methods.personalised.pfedme import Moreau
from fedquilt.pieces.objectives import prox


@dataclass(frozen=True, init=False)
class CGPFL(Regrouping[PlacedCentres, Client]):
    """Client i trains f_i(w) + mu/2 |w - W_k|^2 from the model W_k of its context, then goes to the nearest context.

    Args:
        base, n_clusters, starts: See :class:`Regrouping`.
        mu: Strength of the proximal term, >= 0.
        metric, reseed_after, start_at: See :class:`fedquilt.methods.clustered.by_distance.Nearest`.

    Reference: Tang, Guo, Guo, Personalized Federated Learning With Contextualized Generalization, 2022.

    Example:
        >>> from fedquilt import Net, models
        >>> method = CGPFL(Net.of(models.MLP, features=64, classes=10), n_clusters=2)
    """

    mu: float = 1.0
    metric: Metric = "squared"
    reseed_after: int = 0
    start_at: StartAt = "cluster"

    @cached_property
    def rule(self) -> Nearest:
        """To the nearest context."""
        return Nearest(self.vector, self.metric, self.reseed_after, self.start_at)

    @cached_property
    def objective(self) -> Objective:
        """With the pull."""
        return self.base.loss.plus(prox(self.mu))


@dataclass(frozen=True, init=False)
class CGPFLMoreau(Regrouping[PlacedCentres, Owner]):
    """The same with pFedMe's two loops: theta_i(w) = argmin f_i(theta) + mu/2 |theta - w|^2 is the client's own model,
    found by a few steps; the copy w of W_k, which is what is compared and averaged, moves by lr mu (w - theta_i(w)).

    Args:
        base, n_clusters, starts: See :class:`Regrouping`.
        mu: Strength of the proximal term, > 0.
        inner_lr, inner_steps: How theta is found; see :class:`Moreau`.
        metric, reseed_after: See :class:`fedquilt.methods.clustered.by_distance.Nearest`.

    Reference: Tang, Guo, Guo, Personalized Federated Learning With Contextualized Generalization, 2022.

    Example:
        >>> from fedquilt import Net, models
        >>> method = CGPFLMoreau(Net.of(models.MLP, features=64, classes=10), n_clusters=2, inner_steps=3)
    """

    mu: float = 15.0
    inner_lr: float = 0.05
    inner_steps: int = 5
    metric: Metric = "squared"
    reseed_after: int = 0

    @cached_property
    def rule(self) -> Nearest:
        """To the nearest context."""
        return Nearest(self.vector, self.metric, self.reseed_after)

    @cached_property
    def objective(self) -> Moreau:
        """The Moreau envelope of the loss."""
        return Moreau(self.base.loss, self.mu, self.inner_lr, self.inner_steps)

    def init_client(self, seed: Seed) -> Owner:
        """No model of its own yet."""
        return Owner(self.base.init_client(seed).private, {})

    def finish(self, job: Job, trained: Trained, client: Owner, site: Site, context: Context) -> tuple[Owner, HasVote]:
        """Send what w learned, keep theta(w)."""
        client, upload = super().finish(job, trained, client, site, context)
        theta = self.objective.own(self.base, job, trained, site, context)
        return replace(client, own=theta), upload

    def personal_model(self, download: Offer, client: Owner) -> Params:
        """theta, once there is one."""
        return client.own or super().personal_model(download, client)

    def select_model(self, download: Offer, client: Owner, site: Site) -> Params | None:
        """Nothing to select once there is theta."""
        return None if client.own else super().select_model(download, client, site)
