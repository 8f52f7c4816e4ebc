"""What a run writes into its folder, as callbacks in the order of their writes: logs first, the result last."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import safetensors.torch

from fedquilt.core.exchange import Method
from fedquilt.core.params import Params
from fedquilt.core.plain import Row
from fedquilt.metrics.evaluation import client_rows, score_row
from fedquilt.metrics.memory import memory
from fedquilt.results.majority import at_majority, majority_facts
from fedquilt.results.traffic import model_bytes, traffic_rows, visit_row
from fedquilt.rounds.phases import peak_bytes
from fedquilt.runs.callbacks import Callback
from fedquilt.runs.checkpoints import Checkpoints
from fedquilt.runs.cluster_log import ClusterLog
from fedquilt.runs.environment import environment
from fedquilt.runs.preparation import Prepared, of_run
from fedquilt.runs.snapshot import Snapshot, personal_model
from fedquilt.runs.stages import StageFiles
from fedquilt.storage.columns import write_tables
from fedquilt.storage.files import file_name, to_json, write_atomic
from fedquilt.storage.folder import RunFolder
from fedquilt.storage.logs import CLIENTS, LEDGER, PHASES, ROUNDS, TRAFFIC, VISITS, WITHHELD

if TYPE_CHECKING:
    from fedquilt.runs.play import Run


def outputs_of(run: Run, folder: RunFolder, personal_models: bool, checkpoints: bool) -> tuple[Callback, ...]:
    """Everything that is written of a run."""
    return (
        Logs(run, folder),
        *((Checkpoints(folder.path, run.method),) if checkpoints else ()),
        *((StageFiles(run, folder.path),) if run.keeps_stages else ()),
        ClusterLog(run, folder),
        *((Preparation(folder.path),) if getattr(run.federation, "preparation", None) is not None else ()),
        Models(run, folder, personal_models),
        ResultFile(run, folder),
    )


class Logs(Callback):
    """The rows of each round: of its visits, its traffic, its clients' scores, what was left out, and its metrics."""

    def __init__(self, run: Run, folder: RunFolder) -> None:
        self.run, self.folder = run, folder

    def on_round_end(self, snapshot: Snapshot) -> None:
        """Write them."""
        done, log, write = snapshot.round, snapshot.log, self.folder.log
        write(WITHHELD, self.run.withheld)
        write(VISITS, self._visits(snapshot))
        write(TRAFFIC, traffic_rows(done, log.visits))
        write(CLIENTS, client_rows(done, snapshot.exams))
        write(LEDGER, [{**asdict(q), "round": done} for q in log.quarantined])
        write(ROUNDS, [snapshot.metrics])
        write(PHASES, self.run.meters.rows)

    def _visits(self, snapshot: Snapshot) -> list[Row]:
        visits, rows = snapshot.log.visits, []
        for visit, spent in zip(visits, self.run.energy.of(visits), strict=True):
            scores = {"before": visit.before, "after": visit.after}
            scored = {when: score_row(score) for when, score in scores.items() if score is not None}
            rows.append({"round": snapshot.round, **visit_row(visit), **spent, **scored})
        return rows


class Models(Callback):
    """``models/``: the best global model and the last one, and if that is asked for every client's."""

    def __init__(self, run: Run, folder: RunFolder, personal: bool) -> None:
        self.run, self.folder, self.personal = run, folder.path, personal

    def on_round_end(self, snapshot: Snapshot) -> None:
        """The best so far."""
        if snapshot.round == self.run.progress["best_round"]:
            self._global("best")

    def on_run_end(self, result: Row | None) -> None:
        """What is left of the run."""
        if result is None:
            return
        self._global("global")
        rounds = self.run.rounds
        for client in rounds.source.examined if self.personal else ():
            self._write(rounds.method, personal_model(rounds, client), f"client-{file_name(client)}")

    def _global(self, name: str) -> None:
        rounds = self.run.rounds
        model = rounds.method.global_model(rounds.state)
        if model is not None:
            self._write(rounds.method, model, name)

    def _write(self, method: Method, model: Params, name: str) -> None:
        net = getattr(method, "net", None)
        whole = model if net is None else net.full(model)
        content = safetensors.torch.save({n: t.contiguous() for n, t in whole.items()})
        write_atomic(self.folder / f"models/{name}.safetensors", content, self.folder)


class Preparation(Callback):
    """preparation.json: how the columns of tables were prepared."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_run_begin(self, run: Run) -> None:
        """Write it."""
        self.prepared: Prepared | None = of_run(run.federation, self.folder)
        if self.prepared is not None:
            self.prepared.write(self.folder)

    def on_run_end(self, result: Row | None) -> None:
        """Tell it in the result."""
        if result is not None and self.prepared is not None:
            result["preparation"] = self.prepared.facts


class ResultFile(Callback):
    """The logs as Parquet and, last of all, result.json: what was found beside the least that must be beaten, and with
    what."""

    def __init__(self, run: Run, folder: RunFolder) -> None:
        self.run, self.folder = run, folder

    def on_run_end(self, result: Row | None) -> None:
        """Write them."""
        if result is None:
            return
        result |= {
            "model_bytes": model_bytes(self.run.method),
            "memory": memory(),
            "peak_bytes": peak_bytes(),
            "data": self.run.data,
            **majority_facts(self.run.federation),
            "logs": self.folder.extents(),
            "environment": environment(self.run.method),
        }
        if (doubt := at_majority([result])) is not None:
            result["doubt"] = doubt
        for problem in write_tables(self.folder.path):
            self.run.note(problem)
        write_atomic(self.folder.path / "result.json", to_json(result, indent=1).encode())
