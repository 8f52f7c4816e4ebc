"""CGPFL, a reading: clients are pulled to the model of their context and regrouped by how near theirs came."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import Tensor

from fedquilt.core.errors import InputError
from fedquilt.core.exchange import Turn
from fedquilt.core.net import Net
from fedquilt.core.objective import Objective
from fedquilt.core.params import Params
from fedquilt.core.seed import Seed
from fedquilt.core.table import Site
from fedquilt.core.train import Job, Trained
from fedquilt.methods.by_distance import ByDistance
from fedquilt.methods.fedavg import FedAvg, Owner
from fedquilt.methods.pfedme import Moreau
from fedquilt.methods.starts import Starts
from fedquilt.pieces.clustering.centres import METRICS
from fedquilt.pieces.objectives import prox


@dataclass(frozen=True, kw_only=True)
class CGPFL(ByDistance):
    """Client i trains f_i(w) + mu/2 |w - W_k|^2 from the model W_k of its context, then goes to the nearest context.

    Args:
        base, n_clusters, starts, reseed_after, start_at: See :class:`ByDistance`.
        mu: Strength of the pull, >= 0.
        measure: 'squared': argmin_k |w_i - W_k|^2. 'cosine': argmax_k cos(w_i - w0, W_k - w0), w0 the first model.

    Reference: Tang, Guo, Guo, Personalized Federated Learning With Contextualized Generalization, 2022.
    """

    mu: float = 1.0
    measure: Literal["squared", "cosine"] = "squared"

    def __post_init__(self) -> None:
        super().__post_init__()
        prox(self.mu)  # checks it
        if self.measure not in METRICS:
            raise InputError(f"metric must be one of {', '.join(METRICS)}, got {self.measure!r}.")

    @property
    def objective(self) -> Objective:
        """With the pull."""
        return self.base.loss.plus(prox(self.mu))

    @property
    def metric(self) -> str:
        """As given."""
        return self.measure

    def view(self, state: Any, params: Params) -> Tensor:
        """For cosines, the way from the first model: whole models are almost parallel."""
        whole = self.vector(params)
        return whole - self.vector(state.origin) if self.measure == "cosine" else whole


def cgpfl(
    objective: Objective | Net, n_clusters: int = 3, mu: float = 1.0, metric: Literal["squared", "cosine"] = "squared",
    starts: Starts = "updates", reseed_after: int = 0, start_at: Literal["cluster", "global"] = "cluster",
    **rest: Any,
) -> CGPFL:  # fmt: skip
    """CGPFL on FedAvg."""
    return CGPFL(
        base=FedAvg(objective=objective, **rest), n_clusters=n_clusters, starts=starts, reseed_after=reseed_after,
        mu=mu, measure=metric, start_at=start_at,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class CGPFLMoreau(CGPFL):
    """The same with pFedMe's two loops: theta_i(w) = argmin f_i(theta) + mu/2 |theta - w|^2 is the client's own model,
    found by a few steps; the copy w of W_k, which is what is compared and averaged, moves by lr mu (w - theta_i(w)).

    Args:
        envelope: How theta is found.
    """

    envelope: Moreau

    def init_client(self, seed: Seed) -> Owner:
        """No model of its own yet."""
        return Owner(self.base.init_client(seed).private, {})

    @property
    def objective(self) -> Any:
        """The Moreau envelope of the loss."""
        return self.envelope

    def finish(self, job: Job, trained: Trained, client: Any, site: Site, turn: Turn) -> tuple[Any, Any]:
        """Send what w learned, keep theta(w)."""
        client, upload = super().finish(job, trained, client, site, turn)
        theta = self.envelope.own(self.base, job, trained, site, turn)
        return replace(client, own=theta), upload

    def personal_model(self, download: Any, client: Any) -> Params:
        """theta, once there is one."""
        return client.own or super().personal_model(download, client)

    def select_model(self, download: Any, client: Any, site: Site) -> Params | None:
        """Nothing to select once there is theta."""
        return None if client.own else super().select_model(download, client, site)


def cgpfl_moreau(
    objective: Objective | Net, n_clusters: int = 3, mu: float = 15.0, inner_lr: float = 0.05, inner_steps: int = 5,
    metric: Literal["squared", "cosine"] = "squared", starts: Starts = "updates", reseed_after: int = 0, **rest: Any,
) -> CGPFLMoreau:  # fmt: skip
    """CGPFL with an inner problem, on FedAvg."""
    base = FedAvg(objective=objective, **rest)
    return CGPFLMoreau(
        base=base, n_clusters=n_clusters, starts=starts, reseed_after=reseed_after, mu=mu, measure=metric,
        envelope=Moreau(base.loss, mu, inner_lr, inner_steps),
    )  # fmt: skip
