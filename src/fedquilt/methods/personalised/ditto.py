"""Ditto: beside the global model, each client trains its own, pulled towards the global one."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedquilt.core.exchange import Context, Exchange
from fedquilt.core.holders import HasShared
from fedquilt.core.params import Params
from fedquilt.core.seed import Seed
from fedquilt.core.table import Site
from fedquilt.core.train import Job, Trained, in_turn
from fedquilt.methods.fedavg import FedAvg, Owner
from fedquilt.methods.on_base import OnBase
from fedquilt.pieces.objectives import prox


@dataclass(frozen=True, init=False)
class Ditto(OnBase):
    """A client update: the base's work on the global model w, then v_k <- v_k - lr (grad f_k(v_k) + lam (v_k - w)).

    w is the model as received. v_k starts at the first w that the client sees and is never sent, so the global model is
    exactly the base's.

    Args:
        base: How the global model is trained.
        lam: Strength of the proximal term, >= 0: at 0 v_k is trained alone.
        own_epochs: Passes for v_k; None for as much work as the base does.

    Reference: Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, 2021, algorithm 1.

    Example:
        >>> from fedquilt import Net, models
        >>> method = Ditto(Net.of(models.MLP, features=64, classes=10), lam=0.5)
    """

    base: FedAvg
    lam: float = 0.1
    own_epochs: int | None = None

    def __post_init__(self) -> None:
        prox(self.lam)  # checks it

    def init_client(self, seed: Seed) -> Owner:
        """No model of its own yet."""
        return Owner(self.base.init_client(seed).private, {})

    def exchanges(self) -> tuple[Exchange, ...]:
        """The base's exchange, with two trainings in turn."""
        (train,) = self.base.exchanges()
        own = train.training(start=self.start, objective=self.base.loss.plus(prox(self.lam)), finish=self.keep)
        if self.own_epochs is not None:
            own = own.training(epochs=self.own_epochs, steps=None)
        return (replace(train, work=in_turn(train.work, own.work)),)

    def start(self, download: HasShared, client: Owner, site: Site, context: Context) -> Job:
        """Go on with one's own model; the pull is towards what was received."""
        return Job(params=self.personal_model(download, client), fixed={"start": download.shared})

    def keep(self, job: Job, trained: Trained, client: Owner, site: Site, context: Context) -> tuple[Owner, None]:
        """It stays home."""
        return replace(client, own=trained.params), None

    def personal_model(self, download: HasShared, client: Owner) -> Params:
        """The client's own, once there is one."""
        return client.own or self.base.personal_model(download, client)
