"""One run, round by round: train, score, record, snapshot, stop."""

from __future__ import annotations

import hashlib
import json
import platform
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch

from fedquilt.core.describe import describe
from fedquilt.core.errors import InputError
from fedquilt.core.exchange import Method
from fedquilt.core.params import Params
from fedquilt.core.record import pack, unpack
from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId, Table, in_order
from fedquilt.engines.auto import Auto
from fedquilt.engines.client_side import Score, one_thread
from fedquilt.engines.engine import Engine
from fedquilt.engines.local import Local
from fedquilt.engines.rounds import RoundLog, Rounds
from fedquilt.engines.worker import peak_bytes
from fedquilt.engines.workers import Workers
from fedquilt.metrics.classify import classify
from fedquilt.runs.config import Evaluation, Snapshots, Stop
from fedquilt.runs.evaluation import client_rows, score_row, summarise
from fedquilt.runs.files import to_json, write_atomic
from fedquilt.runs.storage import RunFolder


@dataclass(frozen=True)
class Snapshot:
    """A run after a round.

    Args:
        round: How many rounds are done.
        state: The server's state.
        metrics: The numbers of this round; those of an evaluation only when one was due.
        log: Every visit of the round: bytes, time, loss; and what was quarantined.
        exams: Scores per client, when an evaluation was due.
    """

    round: int
    state: Any
    metrics: dict[str, Any]
    log: RoundLog
    exams: dict[ClientId, dict[str, Any]]
    _rounds: Rounds = field(repr=False)

    def _current(self) -> Rounds:
        if self._rounds.done != self.round:
            raise InputError(f"The run has gone on to round {self._rounds.done}; ask a snapshot before the next round.")
        return self._rounds

    @property
    def method(self) -> Method:
        """The method that is run."""
        return self._rounds.method

    @property
    def seed(self) -> Seed:
        """The seed of the run."""
        return self._rounds.seed

    def digest(self) -> str:
        """The hash of the whole state of the run: equal runs have equal digests, on every engine."""
        return self._current().digest()

    def global_model(self) -> Params | None:
        """What a stranger would be given now."""
        return self._rounds.method.global_model(self.state)

    def personal_model(self, client: ClientId) -> Params:
        """What this client would use now."""
        return personal_model(self._current(), client)

    def client_state(self, client: ClientId) -> Any:
        """The method's state at this client."""
        return _client_state(self._current(), client)


def personal_model(rounds: Rounds, client: ClientId) -> Params:
    """What a client would use in the present state of a run."""
    method = rounds.method
    exchange = rounds.next_exchange()
    return method.personal_model(exchange.down(rounds.state, client), _client_state(rounds, client))


def _client_state(rounds: Rounds, client: ClientId) -> Any:
    frame = rounds.slots.get(client)
    if frame is not None:
        return unpack(frame).state
    return rounds.method.init_client(rounds.seed.fold("client", client))


def make_engine(engine: str | Engine, processes: int | None = None, devices: Sequence[str] = ()) -> Engine:
    """An engine by name: 'auto', 'local' or 'workers'."""
    if not isinstance(engine, str):
        return engine
    for device in devices:
        _check_device(device)
    if engine == "auto" and not devices:
        return Auto(processes)
    if engine == "local":
        return Local(devices[0] if devices else None)
    if engine in ("workers", "auto"):
        return Workers(processes, devices)
    raise InputError(f"Unknown engine {engine!r}. Use 'auto', 'local' or 'workers'.")


def _check_device(name: str) -> None:
    try:
        kind = torch.device(name).type
        if kind == "cuda" and not torch.cuda.is_available():
            raise RuntimeError("there is no CUDA device on this machine")
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise InputError(
            f"engine.devices: {name!r} cannot be used: {reason}. Give devices like 'cuda:0', or none for the CPU."
        ) from error


class Run:
    """A run of a method on a federation. Iterating plays the rounds and yields a :class:`Snapshot` after each.

    With a folder, a run that was interrupted goes on from its last snapshot.
    """

    def __init__(
        self, method: Method, federation: Any, *, rounds: int, seed: int = 0, engine: Engine,
        evaluation: Evaluation | None = None, stop: Stop | None = None, snapshots: Snapshots | None = None,
        folder: RunFolder | None = None, identity: str = "", score: Score | None = classify,
        personal_models: bool = False,
    ) -> None:  # fmt: skip
        if rounds < 1:
            raise InputError(f"rounds must be at least 1, got {rounds}.")
        self.method, self.federation, self.total, self.seed = method, federation, rounds, Seed(seed)
        self.source = federation.pooled() if getattr(method, "pools_data", False) else federation
        self.engine, self.score, self.folder, self.identity = engine, score, folder, identity
        self.evaluation = evaluation or Evaluation()
        self.stop = stop or Stop()
        self.snapshots = snapshots or Snapshots()
        self.personal_models = personal_models
        self.notes: list[str] = []
        self.progress: dict[str, Any] = {
            "best_round": None, "best_valid": None, "since_best": 0, "stopped": False,
            "bytes_down": 0, "bytes_up": 0, "seconds": 0.0, "quarantined": 0, "last": {}, "best": {},
        }  # fmt: skip

    def __iter__(self) -> Iterator[Snapshot]:
        if self.folder is not None:
            self.folder.open()
        try:
            yield from self._play(self._begin())
        finally:
            if self.folder is not None:
                self.folder.close()

    def _begin(self) -> Rounds:
        found = None
        if self.folder is not None:
            found, notes = self.folder.restore(self.identity, self._data)
            self.notes += notes
        if found is not None:
            self.progress |= found.progress
        return Rounds(
            self.method, self.source, self.engine, self.seed, score=self.score,
            slots=self.folder.slots if self.folder is not None else None,
            state=None if found is None else found.state, done=0 if found is None else found.done,
        )  # fmt: skip

    @cached_property
    def _data(self) -> str:
        return str(self.federation.fingerprint())

    def _play(self, rounds: Rounds) -> Iterator[Snapshot]:
        saved, saved_at = rounds.done, time.monotonic()
        if self._over(rounds):  # resumed after the last snapshot, perhaps before the result was written
            self._finish(rounds)
            yield Snapshot(rounds.done, rounds.state, self.progress["last"], RoundLog(rounds.done - 1), {}, rounds)
        try:
            while not self._over(rounds):
                due = self._due(rounds.done + 1)
                log = rounds.play(measure=due and self.evaluation.local)
                snapshot = self._record(rounds, log, due)
                if isinstance(self.engine, Auto):
                    self.engine.expect(snapshot.metrics["seconds"], self.total - rounds.done)
                finished = self._over(rounds)
                since = time.monotonic() - saved_at
                wanted = rounds.done % self.snapshots.every == 0 and since >= self.snapshots.seconds
                if self.folder is not None and (wanted or finished):
                    self._save(rounds)
                    saved, saved_at = rounds.done, time.monotonic()
                if finished and self.folder is not None:
                    self._finish(rounds)
                yield snapshot
                del snapshot
        except GeneratorExit:
            if self.folder is not None and saved < rounds.done:
                self._save(rounds)
            raise

    def _over(self, rounds: Rounds) -> bool:
        return rounds.done >= self.total or bool(self.progress["stopped"])

    def _due(self, done: int) -> bool:
        return self.score is not None and (self._scheduled(done) or done == self.total)

    def _scheduled(self, done: int) -> bool:
        """Whether this round is scored anyway; a score only because it is the last one steers nothing, so that a run
        with more rounds begins with the very same ones."""
        return done % self.evaluation.every == 0

    def _save(self, rounds: Rounds) -> None:
        if self.folder is not None:
            self.folder.save(self.identity, self._data, rounds.done, rounds.state, self.progress)

    # One round's record

    def _record(self, rounds: Rounds, log: RoundLog, due: bool) -> Snapshot:
        with one_thread():
            return self._recorded(rounds, log, due)

    def _recorded(self, rounds: Rounds, log: RoundLog, due: bool) -> Snapshot:
        began = time.perf_counter()
        exams = rounds.examine(self._examined()) if due else {}
        numbers = self._numbers(rounds, exams) if due else {}
        losses = [(v.examples, v.loss) for v in log.visits if v.loss is not None]
        metrics: dict[str, Any] = {
            "round": rounds.done,
            "clients": len({v.client for v in log.visits}),
            "train_loss": sum(n * v for n, v in losses) / sum(n for n, _ in losses) if losses else None,
            "bytes_down": log.bytes_down,
            "bytes_up": log.bytes_up,
            "quarantined": len(log.quarantined),
            "peak_bytes": peak_bytes(),
            **numbers,
            "train_seconds": log.seconds,
            "seconds": log.seconds + time.perf_counter() - began,
        }
        if due and self._scheduled(rounds.done):
            heard = {k: v for k, v in numbers.items() if k.startswith(("valid_", "global_valid_"))}
            rounds.state = self.method.observe(rounds.state, heard)  # test rows never steer training
        self._follow(rounds, metrics, due)
        self._write(rounds, log, metrics, exams)
        return Snapshot(rounds.done, rounds.state, metrics, log, exams, rounds)

    def _examined(self) -> Sequence[ClientId]:
        ids, count = self.source.examined, self.evaluation.clients
        if count is None or count >= len(ids):
            return tuple(ids)
        chosen = self.seed.fold("examined").numpy().choice(len(ids), count, replace=False)
        return in_order([ids[i] for i in chosen])

    def _numbers(self, rounds: Rounds, exams: dict[ClientId, dict[str, Any]]) -> dict[str, float]:
        numbers = summarise(exams)
        common: Table | None = getattr(self.federation, "global_test", None)
        whole = rounds.method.global_model(rounds.state)
        if common is not None and whole is not None and self.score is not None:
            score = self.score(self.method.predict, whole, common)
            numbers |= {"common_test_accuracy": score.accuracy, "common_test_loss": score.loss}
        return numbers

    def _follow(self, rounds: Rounds, metrics: dict[str, Any], due: bool) -> None:
        """Keep count, remember the best round by validation, and decide whether to stop."""
        progress = self.progress
        for name in ("bytes_down", "bytes_up", "seconds", "quarantined"):
            progress[name] += metrics[name]
        if not due:
            return
        progress["last"] = metrics
        if not self._scheduled(rounds.done) and progress["best_round"] is not None:
            return
        valid = metrics.get("valid_accuracy")
        if valid is None or progress["best_valid"] is None or valid > progress["best_valid"] + self.stop.min_delta:
            progress |= {"best_valid": valid, "best_round": rounds.done, "since_best": 0, "best": metrics}
            self._save_model(rounds, "best")
        else:
            progress["since_best"] += 1
            progress["stopped"] = self.stop.patience is not None and progress["since_best"] >= self.stop.patience

    def _write(
        self, rounds: Rounds, log: RoundLog, metrics: dict[str, Any], exams: dict[ClientId, dict[str, Any]]
    ) -> None:
        if self.folder is None:
            return
        visits = []
        for visit in log.visits:
            row = {"round": rounds.done, **{k: v for k, v in vars(visit).items() if k not in ("before", "after")}}
            for when in ("before", "after"):
                if getattr(visit, when) is not None:
                    row[when] = score_row(getattr(visit, when))
            visits.append(row)
        self.folder.log("metrics/visits.jsonl", visits)
        self.folder.log("metrics/clients.jsonl", client_rows(rounds.done, exams))
        self.folder.log("ledger.jsonl", [{**asdict(q), "round": rounds.done} for q in log.quarantined])
        self.folder.log("metrics/rounds.jsonl", [metrics])

    # The end

    def _save_model(self, rounds: Rounds, name: str) -> None:
        model = rounds.method.global_model(rounds.state)
        if self.folder is not None and model is not None:
            self._write_model(model, f"models/{name}.safetensors")

    def _write_model(self, model: Params, name: str) -> None:
        net = getattr(self.method, "net", None)
        whole = model if net is None else net.full(model)
        content = safetensors.torch.save({n: t.contiguous() for n, t in whole.items()})
        if self.folder is not None:
            write_atomic(self.folder.path / name, content, self.folder.path)

    def _finish(self, rounds: Rounds) -> None:
        if self.folder is None:
            return
        self._save_model(rounds, "global")
        if self.personal_models:
            for client in self.source.examined:
                name = client if isinstance(client, int) else json.dumps(client).replace("/", "%2F").strip('"')
                self._write_model(personal_model(rounds, client), f"models/client-{name}.safetensors")
        result = {
            "digest": rounds.digest(), "rounds": rounds.done, "stopped_early": self.progress["stopped"],
            "best_round": self.progress["best_round"], "best": self.progress["best"], "last": self.progress["last"],
            "bytes_down": self.progress["bytes_down"], "bytes_up": self.progress["bytes_up"],
            "seconds": self.progress["seconds"], "quarantined": self.progress["quarantined"],
            "peak_bytes": peak_bytes(), "data": self._data,
            "engine": self.engine.facts(), "environment": environment(),
        }  # fmt: skip
        write_atomic(self.folder.path / "result.json", to_json(result, indent=1).encode())


def environment() -> dict[str, str]:
    """What the numbers were made with."""
    return {
        "python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__,
        "machine": platform.machine(), "system": platform.system(),
    }  # fmt: skip


def _identity(method: Method, *settings: Any) -> str:
    """What tells one run's snapshots from another's."""
    try:
        what = hashlib.sha256(pack(describe(method))).hexdigest()
    except InputError as error:
        raise InputError(
            f"A run with a folder must be able to tell its method from others, so that the right one resumes. {error}"
        ) from error
    return hashlib.sha256(repr((what, *settings)).encode()).hexdigest()[:8]


def run(
    method: Method, federation: Any, *, rounds: int, engine: str | Engine = "auto", seed: int = 0,
    folder: str | Path | None = None, evaluate_every: int = 1, evaluate_clients: int | None = None,
    evaluate_local: bool = False, patience: int | None = None, min_delta: float = 0.0, snapshot_every: int = 1,
    processes: int | None = None, devices: Sequence[str] = (), personal_models: bool = False,
    score: Score | None = classify,
) -> Iterator[Snapshot]:  # fmt: skip
    """Run a method on a federation and yield a :class:`Snapshot` after every round.

    The caller owns the loop: stop, print or save as you like.

    Args:
        method: For example ``FedAvg(objective=net)``.
        federation: Whose data; see :class:`fedquilt.data.Federation`.
        rounds: How many rounds in all.
        engine: 'auto', 'local', 'workers', or an engine of your own (which stays open). Numbers do not depend on it.
        seed: Everything random follows from it.
        folder: If given, metrics, models and snapshots go there, and a run found there goes on where it stopped.
        evaluate_every: Score models after every so many rounds, and after the last.
        evaluate_clients: Score only so many clients, always the same; None for all.
        evaluate_local: Also score the cohort before and after local training, where an evaluation is due.
        patience, min_delta: Stop when validation accuracy has not grown by min_delta for so many evaluations.
        snapshot_every: With a folder: write a snapshot after every so many rounds.
        processes: For 'workers' and 'auto'; by default one per core.
        devices: For example ["cuda:0", "cuda:1"]; workers are mapped to them in turn.
        personal_models: With a folder: save every client's model at the end.
        score: How a model is scored; None for no evaluation.

    Example:
        >>> for snapshot in run(method, federation, rounds=10):  # doctest: +SKIP
        ...     print(snapshot.round, snapshot.metrics["test_accuracy"])
    """
    evaluation = Evaluation(every=evaluate_every, clients=evaluate_clients, local=evaluate_local)
    identity = "" if folder is None else _identity(method, seed, repr(evaluation), patience, min_delta)
    used = make_engine(engine, processes, devices)
    try:
        made = Run(
            method, federation, rounds=rounds, seed=seed, engine=used, evaluation=evaluation,
            stop=Stop(patience=patience, min_delta=min_delta), personal_models=personal_models,
            snapshots=Snapshots(every=snapshot_every, seconds=0.0), identity=identity, score=score,
            folder=None if folder is None else RunFolder(Path(folder)),
        )  # fmt: skip
        for snapshot in made:
            for note in made.notes:
                warnings.warn(note, stacklevel=2)
            made.notes.clear()
            yield snapshot
    finally:
        if isinstance(engine, str):
            used.close()
