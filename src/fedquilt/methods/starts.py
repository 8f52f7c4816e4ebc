"""Where several models start: the state, the messages and the first trip of methods whose clients change clusters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import Tensor

from fedquilt.core.errors import InputError
from fedquilt.core.exchange import Reply, Turn
from fedquilt.core.params import Params, add, flatten
from fedquilt.core.record import record
from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId, Site, in_order
from fedquilt.core.train import Job, Trained
from fedquilt.methods.fedavg import FedAvg
from fedquilt.methods.on_base import OnBase
from fedquilt.pieces.clustering.centres import distinct_starts, nearest
from fedquilt.pieces.clustering.result import ClusterResult

Starts = Literal["updates", "seeds"]


@record
class Centres:
    """The server's state.

    Args:
        models: The model of each cluster (a single one until the starts are placed).
        common: The part of the model that all clusters share, {} if none.
        clusters: Who is where. Labels are the numbers of the models, which do not change from round to round; clients
            that were never heard have none.
    """

    models: tuple[Params, ...]
    common: Params
    clusters: ClusterResult


@record
class Offer:
    """What a client is sent: models by number, the part they share, and the number of the client's own (-1: none)."""

    models: dict[int, Params]
    common: Params
    yours: int


@record
class Vote:
    """What a client answers: how the model it trained changed, and the model's number."""

    delta: Params
    cluster: int


@dataclass(frozen=True, kw_only=True)
class Starting(OnBase):
    """K distinct first models.

    Args:
        base: How one model is trained and averaged.
        n_clusters: How many clusters.
        starts: 'updates': before the first round all clients train the first model for one pass, and k-means++ draws
            as many of these models as there are clusters. 'seeds': fresh models. One cluster needs neither.
    """

    base: FedAvg
    n_clusters: int = 3
    starts: Starts = "updates"

    def __post_init__(self) -> None:
        if self.n_clusters < 1:
            raise InputError(f"The number of clusters, n_clusters, must be at least 1, got {self.n_clusters}.")
        if self.starts not in ("updates", "seeds"):
            raise InputError(f"starts must be 'updates' or 'seeds', got {self.starts!r}.")

    def init_server(self, seed: Seed) -> Any:
        """One model, or as many fresh ones as clusters; the first is always the base's."""
        seeds = [seed] + [seed.fold("start", i) for i in range(1, self.n_clusters if self.starts == "seeds" else 1)]
        models = tuple(self.base.init_server(s).shared for s in seeds)
        return Centres(models, {}, ClusterResult({}, len(models), self.criterion))

    @property
    def criterion(self) -> str:
        """What decides where a client belongs."""
        return "lowest loss"

    def plan(self, state: Any, round: int) -> tuple[str, ...]:
        """Train; before that, once, the starts."""
        return ("train",) if len(state.models) >= self.n_clusters else ("starts", "train")

    def show(self, job: Job, trained: Trained, client: Any, site: Site, turn: Turn) -> tuple[Any, Vote]:
        """Send where a pass leads, and keep nothing of it."""
        return client, Vote(self.base.finish(job, trained, client, site, turn)[1].delta, job.memo)

    def place(self, state: Any, replies: Iterable[Reply[Vote]], turn: Turn) -> Any:
        """Distinct starts from these passes; each client belongs to the nearest."""
        deltas = {r.client: r.upload.delta for r in replies}
        if not deltas:
            return state
        first, moves = state.models[0], {c: self.vector(d) for c, d in deltas.items()}
        drawn = distinct_starts(moves, self.n_clusters, turn.seed)
        models = [add(first, deltas[c]) for c in drawn] + [first] * (self.n_clusters - len(drawn))
        labels = {c: nearest(v, [moves[d] for d in drawn]) for c, v in moves.items()}
        return replace(state, models=tuple(models), clusters=self.found(state, self.n_clusters, labels))

    def vector(self, params: Params) -> Tensor:
        """What distances are taken of: all shared weights that are trained, without buffers."""
        return flatten(self.base.trained(params))

    def found(self, state: Any, k: int, labels: Mapping[ClientId, int]) -> ClusterResult:
        """The clusters after some clients were heard; the others stay where they were."""
        everybody = {**state.clusters.labels, **labels}
        return ClusterResult({c: everybody[c] for c in in_order(list(everybody))}, k, self.criterion)
