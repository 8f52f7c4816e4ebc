"""What methods with several models share whose clients change clusters: the server's state and the messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol, TypeVar

from fedquilt.core.exchange import Reply
from fedquilt.core.holders import HasDelta
from fedquilt.core.params import Params, add
from fedquilt.core.table import ClientId, in_order
from fedquilt.errors import InputError
from fedquilt.pieces.clustering.result import ClusterResult
from fedquilt.records.record import record

Starts = Literal["updates", "seeds"]
StartAt = Literal["cluster", "global"]


@record(name="fedquilt.methods.starts:Centres")
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


@record(name="fedquilt.methods.starts:Offer")
class Offer:
    """What a client is sent: models by number, the part they share, and the number of the client's own (-1: none)."""

    models: dict[int, Params]
    common: Params
    yours: int


@record(name="fedquilt.methods.starts:Vote")
class ClusterVote:
    """What a client answers: how the model it trained changed, and the model's number."""

    delta: Params
    cluster: int


class HasVote(HasDelta, Protocol):
    """An upload that says which model changed."""

    @property
    def cluster(self) -> int:
        """The model's number."""
        ...


S = TypeVar("S", bound=Centres)


def check_start(start_at: str) -> None:
    """Raise unless local training can begin there."""
    if start_at not in ("cluster", "global"):
        raise InputError(f"start_at must be 'cluster' or 'global', got {start_at!r}.")


def all_models(state: Centres, client_id: ClientId) -> Offer:
    """Every model for a client."""
    return Offer(dict(enumerate(state.models)), state.common, state.clusters.labels.get(client_id, -1))


def local(state: Centres, reply: Reply[HasVote]) -> Params:
    """The client's model after training."""
    return add(state.models[reply.upload.cluster], reply.upload.delta)


def labelled(state: Centres, labels: Mapping[ClientId, int], k: int, criterion: str) -> ClusterResult:
    """The clusters after some clients were heard; the others stay where they were."""
    before = state.clusters
    everybody = {**before.labels, **labels}
    found = {c: everybody[c] for c in in_order(list(everybody))}
    return ClusterResult(found, k, criterion, measures=before.measures)
