"""What a run writes into its folder, as callbacks in the order of their writes: logs first, the result last.

The result tells what its numbers were made with: a run is a pure function of settings, data and seed on one kind of CPU
and one version of torch. torch chooses its kernels by what the CPU can do (``cpu_capability``), and their sums differ
in the last digit, which training magnifies. The number of threads changes nothing: a client's work has one thread on
every engine.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from fedquilt.core.deployed import first_state
from fedquilt.core.exchange import Method, Reply
from fedquilt.core.net import Net
from fedquilt.core.params import Params, add
from fedquilt.core.plain import Row
from fedquilt.core.table import ClientId, in_order
from fedquilt.methods.fedavg import FedAvg
from fedquilt.methods.merging.localize_stitch import LocalizeStitch
from fedquilt.metrics.evaluation import client_rows, score_row
from fedquilt.metrics.memory import memory
from fedquilt.pieces.clustering.result import ClusterResult
from fedquilt.results.clusters import LOG, by_cluster, clusters_of, row_of, save_clusters
from fedquilt.results.majority import at_majority, majority_facts
from fedquilt.results.traffic import model_bytes, traffic_rows, update_row
from fedquilt.rounds.client import one_thread
from fedquilt.rounds.phases import peak_bytes
from fedquilt.rounds.rounds import Rounds
from fedquilt.runs.attacked import scored
from fedquilt.runs.callbacks import Callback
from fedquilt.runs.inputs import KeptInputs
from fedquilt.runs.preparation import Prepared, of_run
from fedquilt.runs.snapshot import Snapshot, personal_model
from fedquilt.runs.stages import StageFiles
from fedquilt.storage.files import file_name, to_json, write_atomic
from fedquilt.storage.folder import RunFolder
from fedquilt.storage.logs import CLIENTS, LEDGER, PHASES, ROUNDS, TRAFFIC, UPDATES, WITHHELD, write_tables

if TYPE_CHECKING:
    from fedquilt.runs.play import Run


def outputs_of(run: Run, folder: RunFolder, personal_models: bool, checkpoints: bool) -> tuple[Callback, ...]:
    """Everything that is written of a run."""
    return (
        Logs(run, folder),
        *((Checkpoints(folder.path, run.method),) if checkpoints else ()),
        *((StageFiles(run, folder.path),) if run.keeps_stages else ()),
        ClusterLog(run, folder),
        KeptInputs(folder.path),
        *((Preparation(folder.path),) if getattr(run.federation, "preparation", None) is not None else ()),
        Models(run, folder, personal_models),
        ResultFile(run, folder),
    )


class Logs(Callback):
    """The rows of each round: of its client updates, its traffic, its clients' scores, what was left out, and its
    metrics."""

    def __init__(self, run: Run, folder: RunFolder) -> None:
        self.run, self.folder = run, folder

    def on_round_end(self, snapshot: Snapshot) -> None:
        """Write them."""
        done, log, write = snapshot.round, snapshot.log, self.folder.log
        write(WITHHELD, self.run.withheld)
        write(UPDATES, self._updates(snapshot))
        write(TRAFFIC, traffic_rows(done, log.updates))
        write(CLIENTS, client_rows(done, snapshot.evaluations))
        write(LEDGER, [q.row(done) for q in (*log.quarantined, *log.bounded)])
        write(ROUNDS, [snapshot.metrics])
        write(PHASES, self.run.meters.rows)

    def _updates(self, snapshot: Snapshot) -> list[Row]:
        updates, rows = snapshot.log.updates, []
        for update, spent in zip(updates, self.run.energy.of(updates), strict=True):
            scores = {"before": update.before, "after": update.after}
            scored = {when: score_row(score) for when, score in scores.items() if score is not None}
            rows.append({"round": snapshot.round, **update_row(update), **spent, **scored})
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
        for client in rounds.source.evaluated if self.personal else ():
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


class Checkpoints(Callback):
    """Writes ``checkpoints/round_TT/client{id}_ep{E}.safetensors`` and ``checkpoints/round_TT/NAME.safetensors``.

    round_TT holds the model after T rounds (round_00: none yet) and the clients' models that began from it; E counts
    local epochs from 1, so client0_ep4 was trained for four. NAME is 'stitched' for Localize-and-Stitch,
    'federated_avg' for FedAvg, 'merged' for others. A client's model is the start and the change *that the server
    received*: of a localised change only the chosen part, because nothing else left the client.
    """

    def __init__(self, run: Path, method: Method) -> None:
        self.run, self.net = run, getattr(method, "net", None)
        chain = [method]
        while (inner := getattr(chain[-1], "base", None)) is not None:
            chain.append(inner)
        stitches = any(isinstance(m, LocalizeStitch) for m in chain)
        self.name = "stitched" if stitches else "federated_avg" if isinstance(method, FedAvg) else "merged"
        self.trains = next((m for m in chain if isinstance(m, FedAvg)), None)

    def on_reply(self, round: int, reply: Reply[Any], state: object) -> None:
        """The client's model, which began from the one after the round before."""
        done = round - 1
        delta, shared = _delta(reply.upload), getattr(state, "shared", None)
        if delta is None or not isinstance(shared, dict) or delta.keys() != shared.keys():
            return
        model = add(shared, delta)
        self._write(model, f"round_{done:02d}/client{file_name(reply.client)}_ep{self._epochs(done)}")

    def on_round_end(self, snapshot: Snapshot) -> None:
        """What the server made of them."""
        model = snapshot.global_model()
        if model is not None:
            self._write(model, f"round_{snapshot.round:02d}/{self.name}")

    def _epochs(self, done: int) -> int:
        if self.trains is None:
            return 1
        return (self.trains.epochs_first or self.trains.epochs) if done == 0 else self.trains.epochs

    def _write(self, model: Mapping[str, Tensor], name: str) -> None:
        whole = self.net.full(model) if self.net is not None and model.keys() >= set(self.net.names) else dict(model)
        content = safetensors.torch.save({n: t.contiguous() for n, t in whole.items()})
        write_atomic(self.run / "checkpoints" / f"{name}.safetensors", content, self.run)


def _delta(upload: object) -> Params | None:
    """The change in an upload, also in one that is wrapped."""
    while upload is not None:
        found = getattr(upload, "delta", None)
        if isinstance(found, dict):
            return found
        upload = getattr(upload, "inner", None)
    return None


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
        now, rounds, evaluations = clusters_of(snapshot.state), self.run.rounds, snapshot.evaluations
        if now is None:
            return
        row = row_of(rounds.done, self._before, now, getattr(self.federation, "groups", None), len(rounds.source.ids))
        if evaluations:
            net = getattr(rounds.method, "net", None)
            with one_thread():
                row["clusters"] = by_cluster(
                    rounds.state, evaluations, partial(_used_model, rounds), net, self._majority
                )
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
        return dict(zip(self.federation.evaluated, find().clients.tolist(), strict=True))


def _used_model(rounds: Rounds, client: ClientId) -> Params:
    """A client's model; where clients' states stay at their sites, that of a client without a past."""
    if not rounds.engine.keeps_states:
        return personal_model(rounds, client)
    fresh = first_state(rounds.method, rounds.seed, client)
    return rounds.method.personal_model(rounds.next_exchange().down(rounds.state, client), fresh)


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
    """The logs as Parquet and, last of all, result.json: what was found beside trivial baseline, and with
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
            **majority_facts(scored(self.run.federation, self.run.malicious)),
            **self._malicious(),
            "logs": self.folder.extents(),
            "environment": environment(self.run.method),
        }
        if (doubt := at_majority([result])) is not None:
            result["doubt"] = doubt
        for problem in write_tables(self.folder.path):
            self.run.note(problem)
        write_atomic(self.folder.path / "result.json", to_json(result, indent=1).encode())

    def _malicious(self) -> Row:
        """Who attacked, of how many clients; nothing without an attack."""
        found = in_order(list(self.run.malicious))
        return {"malicious": {"clients": list(found), "of": len(self.run.source.ids)}} if found else {}


KIND = ("torch", "machine", "cpu", "cpu_capability", "mkldnn")  # where these are equal, so are the numbers


def environment(method: Method | None = None) -> Row:
    """Versions, machine and kernels; with a method also which of this library's own kernels its network uses."""
    found: Row = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "machine": platform.machine(),
        "system": platform.system(),
        "cpu": cpu_name(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "mkldnn": bool(torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled),
        "mkl": bool(torch.backends.mkl.is_available()),
        "threads": torch.get_num_threads(),
    }
    net = getattr(method, "net", None)
    return found | (kernels(net) if isinstance(net, Net) else {})


def kernels(net: Net) -> Row:
    """The layers that this library's own kernels compute, and whether steps of training are captured where they can
    be."""
    return {
        "fast_kernels": dict(net.fast_layers),
        "capture": net.captured_steps.wanted and net.captured_steps.capture is not False,
    }


def same_kind(one: Row, other: Row) -> bool:
    """Whether equal settings, data and seeds give equal numbers in both."""
    return all(one.get(name) == other.get(name) for name in KIND)


@lru_cache(maxsize=1)
def cpu_name() -> str:
    """The CPU as it calls itself."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.lower().startswith(("model name", "cpu model")))
    return next(named, "") or platform.processor() or "unknown"
