"""One run, round by round: train, score, record, snapshot, stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import asdict
from functools import cached_property, partial
from typing import Any

from fedquilt.core.errors import InputError, RoundError
from fedquilt.core.exchange import Method
from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId, Table, in_order
from fedquilt.data.streams import Stream
from fedquilt.engines.auto import Auto
from fedquilt.engines.client_side import Score, one_thread
from fedquilt.engines.engine import Carrier, Engine
from fedquilt.engines.rounds import RoundLog, Rounds
from fedquilt.engines.scale import GROWTH
from fedquilt.engines.worker import peak_bytes
from fedquilt.metrics.classify import classify
from fedquilt.metrics.energy import Meter
from fedquilt.metrics.memory import memory
from fedquilt.metrics.scoring import score_of
from fedquilt.metrics.table import PRIMARY, metric
from fedquilt.runs.checkpoints import Checkpoints
from fedquilt.runs.cluster_log import ClusterLog
from fedquilt.runs.clusters import clusters_of
from fedquilt.runs.columns import write_tables
from fedquilt.runs.config import Evaluation, Snapshots, Stop
from fedquilt.runs.ending import write_global, write_personal
from fedquilt.runs.energy import Energy
from fedquilt.runs.environment import environment
from fedquilt.runs.evaluation import client_rows, common_numbers, score_row, summarise
from fedquilt.runs.files import to_json, write_atomic
from fedquilt.runs.finished import CARRIED, on_validation
from fedquilt.runs.journal import Journal
from fedquilt.runs.links import Network
from fedquilt.runs.logs import WITHHELD
from fedquilt.runs.majority import at_majority, majority_facts
from fedquilt.runs.mending import joined
from fedquilt.runs.meters import LOG as PHASES
from fedquilt.runs.meters import Meters
from fedquilt.runs.preparation import Prepared, of_run
from fedquilt.runs.served import common_modes, reread, served
from fedquilt.runs.snapshot import Snapshot
from fedquilt.runs.stages import Stages
from fedquilt.runs.storage import RunFolder
from fedquilt.runs.trackers import Trackers
from fedquilt.runs.traffic import TRAFFIC, model_bytes, traffic_rows, visit_row
from fedquilt.runs.withheld import apart, without_tests


class Run:
    """A run of a method on a federation. Iterating plays the rounds and yields a :class:`Snapshot` after each.

    With a folder, a run that was interrupted goes on from its last snapshot.
    """

    def __init__(
        self, method: Method, federation: Any, *, rounds: int, seed: int = 0, engine: Engine,
        evaluation: Evaluation | None = None, stop: Stop | None = None, snapshots: Snapshots | None = None,
        folder: RunFolder | None = None, identity: str = "", score: Score | None = classify,
        personal_models: bool = False, checkpoints: bool = False, stages: bool = False,
        min_replies: float = 0.5, max_growth: float = GROWTH, meter: Meter | None = None,
        network: Network | None = None, tell: Callable[[Callable[[str], None]], Trackers] | None = None,
        withhold_test: bool = False,
    ) -> None:  # fmt: skip
        if rounds < 1:
            raise InputError(f"rounds must be at least 1, got {rounds}.")
        self.method, self.federation, self.total, self.seed = method, federation, rounds, Seed(seed)
        self.source = federation.pooled() if getattr(method, "pools_data", False) else federation
        self.engine, self.folder, self.identity = engine, folder, identity
        self.score: Score | None = score_of(method) if score is classify else score
        self.evaluation = evaluation or Evaluation()
        self.stop = stop or Stop()
        self.snapshots = snapshots or Snapshots()
        if personal_models and engine.keeps_states:
            raise InputError("output.personal_models: clients' states stay at their sites, so the server has none.")
        self.personal_models, self.min_replies, self.max_growth = personal_models, min_replies, max_growth
        self.withhold_test = withhold_test
        wanted = checkpoints and folder is not None
        self.checkpoints = Checkpoints(folder.path, method) if wanted and folder is not None else None
        wanted = isinstance(federation, Stream) and (stages or getattr(method, "reconstructs", False))
        self.stages = Stages(folder.path, federation) if wanted and folder is not None else None
        self.energy, self.meters = Energy(engine, meter), Meters(network)
        self.clusters = ClusterLog(folder, federation)
        self.journal = Journal(None if folder is None else folder.path)
        self.notes: list[str] = []
        self.trackers = (tell or partial(Trackers, {}, None))(self._note)
        self.done = 0
        self.progress: dict[str, Any] = {
            "best_round": None, "best_valid": None, "since_best": 0, "stopped": False,
            "updates": 0, "bytes_down": 0, "bytes_up": 0, "raw_down": 0, "raw_up": 0, "seconds": 0.0, "quarantined": 0,
            "last": {}, "best": {}, "energy": {}, "virtual_seconds": None,
        }  # fmt: skip

    def __iter__(self) -> Generator[Snapshot, None, None]:
        if self.folder is not None:
            self.folder.open()
        try:
            with self.journal.ending(lambda: self.done):
                rounds = self._begin()
                self.trackers.start()
                yield from self._play(rounds)
        finally:
            self.trackers.finish(None)  # unless they know the end already
            if self.folder is not None:
                self.folder.close()

    def _begin(self) -> Rounds:
        found = None
        if self.folder is not None:
            found, notes = self.folder.restore(self.identity, self._data)
            self.done = 0 if found is None else found.done
            self.journal.say("begun" if found is None else "resumed", self.done)
            for note in notes:
                self._note(note)
            if self.prepared is not None:
                self.prepared.write(self.folder.path)
        if found is not None:
            self.progress |= found.progress
            if self.folder is not None and self.folder.missing:
                self.progress["missing"] = joined(self.progress.get("missing", {}), self.folder.missing)
            self.energy.restore(self.progress["energy"], self.done)
            self.meters.restore(self.energy.meter.spent, self.progress["virtual_seconds"])
        rounds = Rounds(
            self.method, self.source, self.energy.engine, self.seed, score=self.score,
            slots=self.folder.slots if self.folder is not None else None,
            state=None if found is None else found.state, done=self.done, min_replies=self.min_replies,
            growth=self.max_growth, past=self.progress.get("past"),
        )  # fmt: skip
        if self.checkpoints is not None:
            rounds.heard = self.checkpoints.heard
        rounds.stepped = self.journal.step
        if self.folder is not None and self.folder.missing:
            self._save(rounds)  # from now on the logs are what they are, and what is gone is known
        return rounds

    def _note(self, text: str) -> None:
        self.notes.append(text)
        self.journal.say("note", self.done, text)

    @cached_property
    def prepared(self) -> Prepared | None:
        """What was done to the columns of tables; None for other rows."""
        return of_run(self.federation, None if self.folder is None else self.folder.path)

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
                before = clusters_of(rounds.state)
                measure = due and self._local
                log = self.energy.play(partial(rounds.play, measure=measure, scored=self._used(rounds.done + 1)))
                self.done = rounds.done
                if self.checkpoints is not None:
                    self.checkpoints.merged(self.method.global_model(rounds.state), rounds.done)
                snapshot = self._record(rounds, log, due)
                self.clusters.note(rounds, before, snapshot.exams)
                if isinstance(self.engine, Auto):
                    self.engine.expect(snapshot.metrics["seconds"], self.total - rounds.done)
                finished = self._over(rounds)
                if self.stages is not None:
                    self.stages.note(rounds, finished)
                since = time.monotonic() - saved_at
                wanted = rounds.done % self.snapshots.every == 0 and since >= self.snapshots.seconds
                if self.folder is not None and (wanted or finished):
                    self._save(rounds)
                    saved, saved_at = rounds.done, time.monotonic()
                if self.folder is None:
                    self.engine.saved(rounds.done)  # nothing goes back, so nothing older will be asked for
                elif finished:
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

    def _used(self, done: int) -> bool:
        """Whether somebody looks at clients' models after this round."""
        return self._scheduled(done) or done == self.total or self.stages is not None

    def _scheduled(self, done: int) -> bool:
        """Whether this round is scored anyway; a score only because it is the last one steers nothing, so that a run
        with more rounds begins with the very same ones."""
        return done % self.evaluation.every == 0

    @property
    def _local(self) -> bool:
        """Whether clients' models are scored, on test rows, before and after their training."""
        return self.evaluation.local and not self.withhold_test

    def _save(self, rounds: Rounds) -> None:
        if self.folder is not None:
            self.folder.save(self.identity, self._data, rounds.done, rounds.state, self.progress)
            self.engine.saved(self.folder.oldest())

    # One round's record

    def _record(self, rounds: Rounds, log: RoundLog, due: bool) -> Snapshot:
        with one_thread():
            return self._recorded(rounds, log, due)

    def _recorded(self, rounds: Rounds, log: RoundLog, due: bool) -> Snapshot:
        began = time.perf_counter()
        exams = rounds.examine(self._examined()) if due else {}
        numbers = self._numbers(rounds, exams) if due else {}
        told = self.method.told(rounds.state) if hasattr(self.method, "told") else {}
        before = served(self.method, rounds.state)
        if due and self._scheduled(rounds.done):
            heard = {k: v for k, v in numbers.items() if k.startswith(("valid_", "global_valid_", "common_valid_"))}
            rounds.state = self.method.observe(rounds.state, heard)  # test rows never steer training
        mode = served(self.method, rounds.state)
        if due and mode is not None and mode != before:
            exams, numbers = reread(self.method, mode, exams, partial(self._numbers, rounds))
        phases = self.meters.note(log, time.perf_counter() - began if due else None, self.energy.meter.spent)
        losses = [(v.examples, v.loss) for v in log.visits if v.loss is not None]
        metrics: dict[str, Any] = {
            "round": rounds.done,
            "clients": len({v.client for v in log.visits}),
            "updates": sum(v.steps is not None for v in log.visits),
            "train_loss": sum(n * v for n, v in losses) / sum(n for n, _ in losses) if losses else None,
            "bytes_down": log.bytes_down,
            "bytes_up": log.bytes_up,
            "raw_down": log.raw_down,
            "raw_up": log.raw_up,
            **(self.engine.carried() if isinstance(self.engine, Carrier) else {}),
            "quarantined": len(log.quarantined),
            "peak_bytes": peak_bytes(),
            **told,
            **numbers,
            **({"served": mode} if due and mode is not None else {}),
            **self.meters.numbers(phases),
            "train_seconds": log.seconds,
            "seconds": log.seconds + time.perf_counter() - began,
        }
        if log.void is not None:
            self._note(f"round {rounds.done} is void: {log.void}")
            if rounds.done == self.total == rounds.past["void"]:
                raise RoundError(f"round {rounds.done}: {log.void}. None of the {self.total} rounds counts.")
        if self.withhold_test:
            (metrics, held), exams = apart(metrics), without_tests(exams)
            if due and self.folder is not None:
                self.folder.log(WITHHELD, [held])
        self._warn(rounds)
        self._follow(rounds, metrics, due)
        self._write(rounds, log, metrics, exams)
        if self.folder is not None:
            self.folder.log(PHASES, phases)
        self.trackers.log(rounds.done, metrics)
        return Snapshot(rounds.done, rounds.state, metrics, log, exams, rounds)

    def _warn(self, rounds: Rounds) -> None:
        """What the method has to say about its state, once."""
        text = self.method.warned(rounds.state) if hasattr(self.method, "warned") else None
        if text is not None and not self.progress.get("warned"):
            self.progress["warned"] = True
            self._note(f"round {rounds.done}: {text}")

    def _examined(self) -> Sequence[ClientId]:
        ids, count = self.source.examined, self.evaluation.clients
        if count is None or count >= len(ids):
            return tuple(ids)
        chosen = self.seed.fold("examined").numpy().choice(len(ids), count, replace=False)
        return in_order([ids[i] for i in chosen])

    def _numbers(self, rounds: Rounds, exams: dict[ClientId, dict[str, Any]]) -> dict[str, float]:
        numbers = summarise(exams)
        whole = rounds.method.global_model(rounds.state)
        for name, held in (("common_test", "global_test"), ("common_valid", "server_valid")):
            common: Table | None = getattr(self.federation, held, None)
            if common is not None and whole is not None and self.score is not None:
                score = self.score(self.method.predict, whole, common)
                numbers |= common_numbers(name, score)
                numbers |= common_modes(self.method, rounds.state, name, self.score, common)
        return numbers

    def _follow(self, rounds: Rounds, metrics: dict[str, Any], due: bool) -> None:
        """Keep count, remember the best round by validation, and decide whether to stop."""
        progress = self.progress
        for name in ("updates", "bytes_down", "bytes_up", "raw_down", "raw_up", "seconds", "quarantined"):
            progress[name] += metrics[name]
        progress |= {name: progress.get(name, 0) + metrics[name] for name in CARRIED if name in metrics}
        progress |= {"energy": self.energy.state(), "virtual_seconds": self.meters.virtual, "past": rounds.past}
        if not due:
            return
        progress["last"] = metrics
        if not self._scheduled(rounds.done) and progress["best_round"] is not None:
            return
        valid, best = on_validation(metrics, self.stop.metric), progress["best_valid"]
        if valid is None or best is None or metric(self.stop.metric).better(valid, best, self.stop.min_delta):
            progress |= {"best_valid": valid, "best_round": rounds.done, "since_best": 0, "best": metrics}
            if self.folder is not None:
                write_global(self.folder, rounds, "best")
        else:
            progress["since_best"] += 1
            progress["stopped"] = self.stop.patience is not None and progress["since_best"] >= self.stop.patience

    def _write(
        self, rounds: Rounds, log: RoundLog, metrics: dict[str, Any], exams: dict[ClientId, dict[str, Any]]
    ) -> None:
        if self.folder is None:
            return
        visits = []
        for visit, spent in zip(log.visits, self.energy.of(log.visits), strict=True):
            row = {"round": rounds.done, **visit_row(visit), **spent}
            for when in ("before", "after"):
                if getattr(visit, when) is not None:
                    row[when] = score_row(getattr(visit, when))
            visits.append(row)
        self.folder.log("metrics/visits.jsonl", visits)
        self.folder.log(TRAFFIC, traffic_rows(rounds.done, log.visits))
        self.folder.log("metrics/clients.jsonl", client_rows(rounds.done, exams))
        self.folder.log("ledger.jsonl", [{**asdict(q), "round": rounds.done} for q in log.quarantined])
        self.folder.log("metrics/rounds.jsonl", [metrics])

    # The end

    def _finish(self, rounds: Rounds) -> None:
        if self.folder is None:
            return
        write_global(self.folder, rounds, "global")
        self.clusters.save(rounds)
        if self.personal_models:
            write_personal(self.folder, rounds)
        result = {
            "digest": rounds.digest(), "rounds": rounds.done, "stopped_early": self.progress["stopped"],
            "best_round": self.progress["best_round"], "best": self.progress["best"], "last": self.progress["last"],
            **({} if self.stop.metric == PRIMARY else {"chosen_by": self.stop.metric}),
            "updates": self.progress["updates"],
            "bytes_down": self.progress["bytes_down"], "bytes_up": self.progress["bytes_up"],
            "raw_down": self.progress["raw_down"], "raw_up": self.progress["raw_up"],
            **{name: self.progress[name] for name in CARRIED if name in self.progress},
            "model_bytes": model_bytes(self.method), "memory": memory(),
            "seconds": self.progress["seconds"], "virtual_seconds": self.meters.virtual,
            "quarantined": self.progress["quarantined"],
            "peak_bytes": peak_bytes(), "data": self._data, **majority_facts(self.federation),
            "energy": self.energy.result(rounds.done), "logs": self.folder.extents(),
            **({"missing": self.progress["missing"]} if self.progress.get("missing") else {}),
            "engine": self.engine.facts(), "environment": environment(self.method),
        }  # fmt: skip
        if self.prepared is not None:
            result["preparation"] = self.prepared.facts
        if (doubt := at_majority([result])) is not None:
            result["doubt"] = doubt
        for problem in write_tables(self.folder.path):
            self._note(problem)
        write_atomic(self.folder.path / "result.json", to_json(result, indent=1).encode())
        early = f"validation {metric(self.stop.metric).name} got no better" if self.progress["stopped"] else ""
        self.journal.say("finished", rounds.done, early)
        self.trackers.finish(result)
