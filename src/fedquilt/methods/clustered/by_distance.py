"""A rule for who belongs where: the server places each client at the model nearest to the one that it sends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from torch import Tensor

from fedquilt.core.exchange import Reply
from fedquilt.core.params import Params
from fedquilt.core.table import ClientId
from fedquilt.errors import InputError
from fedquilt.methods.clustered.starts import Centres, HasVote, Offer, StartAt, all_models, check_start, labelled, local
from fedquilt.pieces.clustering.centres import METRICS, nearest, reseed_empty
from fedquilt.records.record import record

Metric = Literal["squared", "cosine"]


@record(name="fedquilt.methods.by_distance:Placed")
class PlacedCentres(Centres):
    """Also the model that everything began from, and for each empty cluster since how many rounds it is."""

    origin: Params
    idle: dict[int, int]


@record(name="fedquilt.methods.by_distance:Sent")
class BegunOffer(Offer):
    """Also where local training begins, if not at the model itself ({})."""

    begin: Params


P = TypeVar("P", bound=PlacedCentres)


@dataclass(frozen=True)
class Nearest:
    """A client is sent its cluster's model only, and after training belongs to the centre nearest to its own model.

    Centres are those the round began with. Only clients that were heard move. A client that is in no cluster yet is
    sent all models and begins with the one of lowest loss.

    Args:
        vector: What of a model is compared.
        metric: 'squared': argmin_k |w_i - W_k|^2. 'cosine': argmax_k cos(w_i - w0, W_k - w0), w0 the first model, since
            whole models are almost parallel.
        reseed_after: After so many rounds without a member, a cluster restarts from the received model that is
            farthest from its own centre; 0 for never.
        start_at: 'cluster' begins local training at the cluster's model; 'global' always at the first model, a stale
            start that only serves to reproduce published runs.
        seen: For 'cosine', what of w - w0 counts, given the server's state; by default all of it.
    """

    vector: Callable[[Params], Tensor]
    metric: Metric = "squared"
    reseed_after: int = 0
    start_at: StartAt = "cluster"
    seen: Callable[[Any, Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        if self.reseed_after < 0:
            raise InputError(f"reseed_after must be 0 (never) or a number of rounds, got {self.reseed_after}.")
        if self.metric not in METRICS:
            raise InputError(f"metric must be one of {', '.join(METRICS)}, got {self.metric!r}.")
        check_start(self.start_at)

    @property
    def criterion(self) -> str:
        """What decides."""
        return f"nearest model, {self.metric}"

    def first(self, state: Centres) -> PlacedCentres:
        """Remember the first model."""
        return PlacedCentres(**vars(state), origin=state.models[0], idle={})

    def offer(self, state: PlacedCentres, client_id: ClientId) -> BegunOffer:
        """The model of the client's cluster; all of them for a client without one."""
        offer = all_models(state, client_id)
        if offer.yours >= 0:
            offer = replace(offer, models={offer.yours: offer.models[offer.yours]})
        return BegunOffer(**vars(offer), begin=state.origin if self.start_at == "global" else {})

    def view(self, state: PlacedCentres, params: Params) -> Tensor:
        """What of a model is compared."""
        whole = self.vector(params)
        if self.metric == "squared":
            return whole
        way = whole - self.vector(state.origin)
        return way if self.seen is None else self.seen(state, way)

    def regroup(self, state: PlacedCentres, heard: Sequence[Reply[HasVote]]) -> dict[ClientId, int]:
        """To the nearest centre."""
        if len(state.models) == 1:
            return {r.client: 0 for r in heard}
        centres = [self.view(state, m) for m in state.models]
        return {r.client: nearest(self.view(state, local(state, r)), centres, self.metric) for r in heard}

    def settle(self, before: P, after: P, heard: Sequence[Reply[HasVote]]) -> P:
        """Clusters that were empty for long start anew, as far as there are clients for them."""
        used = Counter(after.clusters.labels.values())
        idle = {k: before.idle.get(k, 0) + 1 for k in range(len(after.models)) if not used[k]}
        due = [k for k, rounds in idle.items() if 0 < self.reseed_after <= rounds]
        if not due:
            return replace(after, idle=idle)
        return self._reseeded(replace(after, idle=idle), due, {r.client: local(before, r) for r in heard})

    def _reseeded(self, after: P, due: Sequence[int], ends: Mapping[ClientId, Params]) -> P:
        """These clusters restart from the received models that are farthest from their own centres."""
        views, centres = {c: self.view(after, p) for c, p in ends.items()}, [self.view(after, m) for m in after.models]
        found = reseed_empty(views, after.clusters.labels, centres, due, self.metric)
        models = tuple(ends[found[k]] if k in found else m for k, m in enumerate(after.models))
        clusters = labelled(after, {c: k for k, c in found.items()}, len(models), self.criterion)
        idle = {k: rounds for k, rounds in after.idle.items() if k not in found}
        return replace(after, models=models, clusters=clusters, idle=idle)
