"""What a run writes of its clusters: a row after each round and, after an evaluation, their files."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, partial
from typing import Any

from fedquilt.core.deployed import first_state
from fedquilt.core.params import Params
from fedquilt.core.table import ClientId
from fedquilt.engines.client_side import one_thread
from fedquilt.engines.rounds import Rounds
from fedquilt.pieces.clustering.result import ClusterResult
from fedquilt.runs.clusters import LOG, by_cluster, clusters_of, row_of, save_clusters
from fedquilt.runs.snapshot import personal_model
from fedquilt.runs.storage import RunFolder


class ClusterLog:
    """Writes nothing for a method without clusters, or without a folder."""

    def __init__(self, folder: RunFolder | None, federation: Any) -> None:
        self.folder, self.federation = folder, federation

    def note(self, rounds: Rounds, before: ClusterResult | None, exams: Mapping[ClientId, Mapping[str, Any]]) -> None:
        """The row of the round that was just played."""
        now = clusters_of(rounds.state)
        if self.folder is None or now is None:
            return
        row = row_of(rounds.done, before, now, getattr(self.federation, "groups", None), len(rounds.source.ids))
        if exams:
            net = getattr(rounds.method, "net", None)
            with one_thread():
                row["clusters"] = by_cluster(rounds.state, exams, partial(_model, rounds), net, self._majority)
            self.save(rounds)
        self.folder.log(LOG, [row])

    def save(self, rounds: Rounds) -> None:
        """clusters.json and its arrays."""
        now = clusters_of(rounds.state)
        if self.folder is not None and now is not None:
            classes, clients = getattr(self.federation, "classes", None), len(rounds.source.ids)
            save_clusters(self.folder.path, now, rounds.done, classes, clients)

    @cached_property
    def _majority(self) -> dict[ClientId, float]:
        """Each client's accuracy with its commonest training label."""
        find = getattr(self.federation, "majority", None)
        if find is None or getattr(self.federation, "classes", None) is None:
            return {}
        return dict(zip(self.federation.examined, find().clients.tolist(), strict=True))


def _model(rounds: Rounds, client: ClientId) -> Params:
    """A client's model; where clients' states stay at their sites, that of a client without a past."""
    if not rounds.engine.keeps_states:
        return personal_model(rounds, client)
    fresh = first_state(rounds.method, rounds.seed, client)
    return rounds.method.personal_model(rounds.next_exchange().down(rounds.state, client), fresh)
