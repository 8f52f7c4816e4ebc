"""FedAMP: the server mixes for each client the models of clients like it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from fedquilt.core.exchange import Context, Exchange, Reply
from fedquilt.core.holders import HasShared
from fedquilt.core.params import Params, add, dot, sub, weighted_mean
from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId, Site
from fedquilt.core.train import Job, Trained
from fedquilt.errors import InputError
from fedquilt.methods.fedavg import Download, FedAvg, Owner, Upload
from fedquilt.methods.on_base import OnBase
from fedquilt.pieces.objectives import prox
from fedquilt.records.record import record


@record(name="fedquilt.methods.fedamp:Cloud")
class Cloud:
    """The first model, for clients not heard yet, and the last model of each of the others."""

    shared: Params
    models: dict[ClientId, Params]


@dataclass(frozen=True, init=False)
class FedAMP(OnBase):
    """Client i trains f_i(w) + lam/(2 alpha) |w - u_i|^2 from u_i to w_i, with u_i = sum_j xi_ij w_j,

    xi_ij = alpha A'(|w_i - w_j|^2) for j != i, A'(x) = e^(-x/sigma) / sigma, and xi_ii = 1 - the sum of the others.
    Weights are a convex combination, for which the paper asks for a small enough alpha in every round: where the
    others' weights sum to more than 1, which takes an alpha above sigma / (clients - 1), they are scaled to 1.

    Args:
        base: How clients train.
        alpha: Step of the attention, > 0.
        sigma: Width of the attention, > 0.
        lam: Strength of the proximal term, >= 0.

    Reference: Huang et al., Personalized Cross-Silo Federated Learning on Non-IID Data, 2021.

    Example:
        >>> from fedquilt import Net, models
        >>> method = FedAMP(Net.of(models.MLP, features=64, classes=10), sigma=50.0)
    """

    base: FedAvg
    alpha: float = 0.1
    sigma: float = 10.0
    lam: float = 0.01

    def __post_init__(self) -> None:
        if not (self.alpha > 0 and self.sigma > 0 and self.lam >= 0):
            raise InputError(
                f"FedAMP needs alpha > 0, sigma > 0 and lam >= 0, got {self.alpha}, {self.sigma}, {self.lam}."
            )

    def init_server(self, seed: Seed) -> Cloud:
        """No client heard yet."""
        return Cloud(self.base.init_server(seed).shared, {})

    def init_client(self, seed: Seed) -> Owner:
        """No model of its own yet."""
        return Owner(self.base.init_client(seed).private, {})

    def exchanges(self) -> tuple[Exchange, ...]:
        """The base's exchange, with a download for each client."""
        (train,) = self.base.exchanges()
        loss = self.base.loss.plus(prox(self.lam / self.alpha))
        return (replace(train.training(objective=loss, finish=self.finish), down=self.down, up=self.up),)

    def down(self, state: Cloud, client_id: ClientId) -> Download:
        """u_i."""
        mine = state.models.get(client_id)
        if mine is None:
            return Download(state.shared)
        weights = {j: self._attention(mine, w) for j, w in state.models.items() if j != client_id}
        total = math.fsum(weights.values())
        if total > 1:
            weights = {j: x / total for j, x in weights.items()}
        rest = max(0.0, 1 - total)
        return Download(weighted_mean([(rest, mine), *((x, state.models[j]) for j, x in weights.items())]))

    def _attention(self, mine: Params, other: Params) -> float:
        apart = sub(self.base.trained(mine), other)
        return self.alpha * math.exp(-dot(apart, apart) / self.sigma) / self.sigma

    def finish(self, job: Job, trained: Trained, client: Owner, site: Site, context: Context) -> tuple[Owner, Upload]:
        """As the base; w_i is also what the client uses."""
        client, upload = self.base.finish(job, trained, client, site, context)
        return replace(client, own=trained.params), upload

    def up(self, state: Cloud, replies: Iterable[Reply[Upload]], context: Context) -> Cloud:
        """Remember w_i = u_i + its change."""
        heard = {r.client: add(self.down(state, r.client).shared, r.upload.delta) for r in replies}
        return replace(state, models={**state.models, **heard})

    def warning(self, state: Cloud) -> str | None:
        """That alpha can be too large for so many clients."""
        others = len(state.models) - 1
        if self.alpha * others <= self.sigma:
            return None
        return (
            f"FedAMP's alpha {self.alpha:g} is above sigma / {others} = {self.sigma / others:.2g}: where clients are "
            "so alike that the others' weights sum to more than 1, these are scaled to 1 and the client's own is 0."
        )

    def global_model(self, state: Cloud) -> None:
        """There is none."""
        return None

    def personal_model(self, download: HasShared, client: Owner) -> Params:
        """w_i, once there is one."""
        return client.own or self.base.personal_model(download, client)
