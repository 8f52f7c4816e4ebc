"""What a run writes of its clusters: a row after each round and, after an evaluation, their files."""

from __future__ import annotations

from functools import cached_property, partial
from typing import TYPE_CHECKING

from fedquilt.core.deployed import first_state
from fedquilt.core.params import Params
from fedquilt.core.plain import Row
from fedquilt.core.table import ClientId
from fedquilt.pieces.clustering.result import ClusterResult
from fedquilt.results.clusters import LOG, by_cluster, clusters_of, row_of, save_clusters
from fedquilt.rounds.client import one_thread
from fedquilt.rounds.rounds import Rounds
from fedquilt.runs.callbacks import Callback
from fedquilt.runs.snapshot import Snapshot, personal_model
from fedquilt.storage.folder import RunFolder

if TYPE_CHECKING:
    from fedquilt.runs.play import Run


class ClusterLog(Callback):
    """Writes nothing for a method without clusters."""

    def __init__(self, run: Run, folder: RunFolder) -> None:
        self.run, self.federation, self.folder = run, run.federation, folder
        self._before: ClusterResult | None = None

    def on_round_begin(self, round: int) -> None:
        """Remember who was where."""
        self._before = clusters_of(self.run.rounds.state)

    def on_round_end(self, snapshot: Snapshot) -> None:
        """The row of the round that was just played."""
        now, rounds, exams = clusters_of(snapshot.state), self.run.rounds, snapshot.exams
        if now is None:
            return
        row = row_of(rounds.done, self._before, now, getattr(self.federation, "groups", None), len(rounds.source.ids))
        if exams:
            net = getattr(rounds.method, "net", None)
            with one_thread():
                row["clusters"] = by_cluster(rounds.state, exams, partial(_model, rounds), net, self._majority)
            self._save(now)
        self.folder.log(LOG, [row])

    def on_run_end(self, result: Row | None) -> None:
        """The files of the last clusters."""
        now = clusters_of(self.run.rounds.state) if result is not None else None
        if now is not None:
            self._save(now)

    def _save(self, now: ClusterResult) -> None:
        """clusters.json and its arrays."""
        rounds, classes = self.run.rounds, getattr(self.federation, "classes", None)
        save_clusters(self.folder.path, now, rounds.done, classes, len(rounds.source.ids))

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
