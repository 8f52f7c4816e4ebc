"""What methods share whose server regroups clients by the models they send."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import Tensor

from fedquilt.core.errors import InputError
from fedquilt.core.exchange import Reply, Turn
from fedquilt.core.params import Params
from fedquilt.core.record import record
from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId, Site
from fedquilt.core.train import Job
from fedquilt.methods.regrouping import Regrouping
from fedquilt.methods.starts import Centres, Offer
from fedquilt.pieces.clustering.centres import nearest, reseed_empty


@record
class Placed(Centres):
    """Also the model that everything began from, and for each empty cluster since how many rounds it is."""

    origin: Params
    idle: dict[int, int]


@record
class Sent(Offer):
    """Also where local training begins, if not at the model itself ({})."""

    begin: Params


@dataclass(frozen=True, kw_only=True)
class ByDistance(Regrouping):
    """A client is sent its cluster's model only, and after training belongs to the centre nearest to its own model.

    Centres are those the round began with. Only clients that were heard move. A client that is in no cluster yet is
    sent all models and begins with the one of lowest loss.

    Args:
        base, n_clusters, starts: See :class:`Regrouping`.
        reseed_after: After so many rounds without a member, a cluster starts anew at the model, of those heard, that is
            farthest from its own centre; 0 for never.
        start_at: 'cluster' begins local training at the cluster's model; 'global' always at the first model, a stale
            start that only serves to reproduce published runs.
    """

    reseed_after: int = 0
    start_at: Literal["cluster", "global"] = "cluster"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reseed_after < 0:
            raise InputError(f"reseed_after must be 0 (never) or a number of rounds, got {self.reseed_after}.")
        if self.start_at not in ("cluster", "global"):
            raise InputError(f"start_at must be 'cluster' or 'global', got {self.start_at!r}.")

    @property
    def metric(self) -> str:
        """'squared' or 'cosine'; see :func:`fedquilt.pieces.clustering.centres.distance`."""
        return "squared"

    @property
    def criterion(self) -> str:
        """What decides where a client belongs."""
        return f"nearest model, {self.metric}"

    def init_server(self, seed: Seed) -> Any:
        """Remember the first model."""
        fresh = super().init_server(seed)
        return Placed(**vars(fresh), origin=fresh.models[0], idle={})

    def down(self, state: Any, client_id: ClientId) -> Any:
        """The model of the client's cluster."""
        mine = state.clusters.labels.get(client_id, -1)
        offer = super().down(state, client_id) if mine < 0 else Offer({mine: state.models[mine]}, state.common, mine)
        return Sent(**vars(offer), begin=self.begin(state) if self.start_at == "global" else {})

    def begin(self, state: Any) -> Params:
        """Where a global start is."""
        origin: Params = state.origin
        return origin

    def start(self, download: Any, client: Any, site: Site, turn: Turn) -> Job:
        """From the model, or where the download says; changes and pulls are from the model all the same."""
        job = super().start(download, client, site, turn)
        return replace(job, params={**job.params, **download.begin})

    def view(self, state: Any, params: Params) -> Tensor:
        """What of a model is compared."""
        return self.vector(params)

    def regroup(self, state: Any, heard: Sequence[Reply[Any]]) -> dict[ClientId, int]:
        """To the nearest centre."""
        if len(state.models) == 1:
            return {r.client: 0 for r in heard}
        centres = [self.view(state, m) for m in state.models]
        return {r.client: nearest(self.view(state, self.local(state, r)), centres, self.metric) for r in heard}

    def up(self, state: Any, replies: Iterable[Reply[Any]], turn: Turn) -> Any:
        """Regroup and average; then clusters that were empty for long start anew."""
        heard = list(replies)
        if not heard:
            return state
        after = super().up(state, heard, turn)
        used = Counter(after.clusters.labels.values())
        idle = {k: state.idle.get(k, 0) + 1 for k in range(len(after.models)) if not used[k]}
        due = [k for k, rounds in idle.items() if 0 < self.reseed_after <= rounds]
        after = replace(after, idle=idle)
        return self.reseeded(after, due, {r.client: self.local(state, r) for r in heard}) if due else after

    def reseeded(self, state: Any, due: Sequence[int], local: Mapping[ClientId, Params]) -> Any:
        """Start these clusters anew, as far as there are clients for them."""
        views, centres = {c: self.view(state, p) for c, p in local.items()}, [self.view(state, m) for m in state.models]
        found = reseed_empty(views, state.clusters.labels, centres, due, self.metric)
        models = tuple(local[found[k]] if k in found else m for k, m in enumerate(state.models))
        clusters = self.found(state, len(models), {c: k for k, c in found.items()})
        idle = {k: rounds for k, rounds in state.idle.items() if k not in found}
        return replace(state, models=models, clusters=clusters, idle=idle)
