"""One run, round by round: train, evaluate, record, snapshot, stop."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from functools import cached_property, partial
from typing import Any

from fedquilt.config.config import EvaluationSettings, Snapshots, Stop
from fedquilt.config.links import Network
from fedquilt.core.exchange import Method, Reply
from fedquilt.core.plain import Row
from fedquilt.core.seed import Seed
from fedquilt.core.table import Divided
from fedquilt.data.streams.streams import Stream
from fedquilt.engines.auto import Auto
from fedquilt.errors import InputError, RoundError
from fedquilt.metrics.classify import classify
from fedquilt.metrics.energy import Meter
from fedquilt.metrics.scoring import score_of
from fedquilt.metrics.table import PRIMARY, main, metric, use_task
from fedquilt.moved import current
from fedquilt.pieces.robust.attackers import Attackers
from fedquilt.pieces.robust.cohort import CohortChecks
from fedquilt.rounds.client import Score, one_thread
from fedquilt.rounds.engine import Carrier, Engine
from fedquilt.rounds.phases import peak_bytes
from fedquilt.rounds.rounds import RoundLog, Rounds
from fedquilt.rounds.scale import GROWTH
from fedquilt.runs.attacked import aggregator_of, attacked, malicious_of, score_under
from fedquilt.runs.callbacks import Callback, Callbacks
from fedquilt.runs.energy import Energy
from fedquilt.runs.evaluator import Evaluated, Evaluator
from fedquilt.runs.meters import Meters
from fedquilt.runs.outputs import outputs_of
from fedquilt.runs.snapshot import Snapshot
from fedquilt.storage.finished import CARRIED, on_validation
from fedquilt.storage.folder import RunFolder
from fedquilt.storage.journal import Journal
from fedquilt.storage.mending import joined
from fedquilt.storage.withheld import apart, without_tests

TOTALS = ("updates", "bytes_down", "bytes_up", "raw_down", "raw_up", "seconds", "quarantined")  # sums over rounds


class Run:
    """A run of a method on a federation. Iterating plays the rounds and yields a :class:`Snapshot` after each.

    With a folder, a run that was interrupted goes on from its last snapshot. What is written is the work of callbacks
    (:mod:`fedquilt.runs.outputs`); ``callbacks`` hear of the run after those.
    """

    rounds: Rounds  # once it has begun

    def __init__(
        self,
        method: Method,
        federation: Divided,
        *,
        rounds: int,
        seed: int = 0,
        engine: Engine,
        evaluation: EvaluationSettings | None = None,
        stop: Stop | None = None,
        snapshots: Snapshots | None = None,
        folder: RunFolder | None = None,
        identity: str = "",
        score: Score | None = classify,
        personal_models: bool = False,
        checkpoints: bool = False,
        stages: bool = False,
        min_replies: float = 0.5,
        max_growth: float = GROWTH,
        checks: CohortChecks | None = None,
        attackers: Attackers | None = None,
        meter: Meter | None = None,
        network: Network | None = None,
        withhold_test: bool = False,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        if rounds < 1:
            raise InputError(f"rounds must be at least 1, got {rounds}.")
        if personal_models and engine.keeps_states:
            raise InputError("output.personal_models: clients' states stay at their sites, so the server has none.")
        self.method, self.federation, self.total, self.seed = method, federation, rounds, Seed(seed)
        self.source = federation.pooled() if getattr(method, "pools_data", False) else federation
        self.engine, self.folder, self.identity = engine, folder, identity
        self.stop, self.snapshots = stop or Stop(), snapshots or Snapshots()
        self.min_replies, self.max_growth, self.withhold_test = min_replies, max_growth, withhold_test
        use_task(getattr(getattr(method, "net", None), "task", None))
        self.chosen_by = main().id if self.stop.metric == PRIMARY else self.stop.metric
        self.checks = checks
        self.attackers = None if attackers is None else attackers.against(aggregator_of(method))
        self.malicious = malicious_of(self.source, attackers, self.seed)
        if attackers is not None:
            self.source = attacked(self.source, attackers, self.seed)
        score = score_under(score_of(method) if score is classify else score, attackers)
        self.evaluator = Evaluator(method, federation, self.seed, evaluation or EvaluationSettings(), score, rounds)
        self.energy, self.meters = Energy(engine, meter), Meters(network)
        self.journal = Journal(None if folder is None else folder.path)
        self.keeps_stages = isinstance(federation, Stream) and (stages or getattr(method, "reconstructs", False))
        own = () if folder is None else outputs_of(self, folder, personal_models, checkpoints)
        self.callbacks = Callbacks(own, callbacks)
        self.notes: list[str] = []
        self.withheld: list[Row] = []  # test scores of the last round that nobody may see yet
        self.progress: Row = {
            "best_round": None,
            "best_valid": None,
            "since_best": 0,
            "stopped": False,
            **dict.fromkeys(TOTALS, 0),
            "last": {},
            "best": {},
            "energy": {},
            "virtual_seconds": None,
        }
        self.done = 0
        self._told = False  # whether callbacks know that the run began, and not yet that it ended
        self._saved = (0, 0.0)  # rounds done at the last snapshot, and when that was

    def __iter__(self) -> Generator[Snapshot, None, None]:
        if self.folder is not None:
            self.folder.open()
        try:
            with self.journal.ending(lambda: self.done):
                try:
                    self._begin()
                    yield from self._play()
                finally:
                    self._leave()
        finally:
            if self.folder is not None:
                self.folder.close()

    def _play(self) -> Iterator[Snapshot]:
        """The run loop."""
        if self.over:  # resumed after the last snapshot, perhaps before the result was written
            self._finish()
            rounds, last = self.rounds, RoundLog(self.done - 1)
            yield Snapshot(self.done, rounds.state, self.progress["last"], last, {}, rounds)
        try:
            while not self.over:
                self.callbacks.call("on_round_begin", self.done + 1)
                log = self._train()
                with one_thread():
                    snapshot = self._evaluate(log)
                self.callbacks.call("on_round_end", snapshot)
                if self.over or self._save_is_due():
                    self._save()
                if self.over:
                    self._finish()
                yield snapshot
                del snapshot  # so that its state can go while the next is made
        except GeneratorExit:
            if self._saved[0] < self.done:
                self._save()
            raise

    @property
    def over(self) -> bool:
        """Whether no round follows."""
        return self.done >= self.total or bool(self.progress["stopped"])

    def note(self, text: str) -> None:
        """Something worth knowing: for whoever plays the run, and for those who watch it."""
        self.notes.append(text)
        self.journal.say("note", self.done, text)

    @cached_property
    def data(self) -> str:
        """The fingerprint of the data."""
        return str(self.federation.fingerprint())

    # Begin and end

    def _begin(self) -> None:
        found, notes = (None, []) if self.folder is None else self.folder.restore(self.identity, self.data)
        self.done = 0 if found is None else found.done
        self.journal.say("begun" if found is None else "resumed", self.done)
        for note in notes:
            self.note(note)
        if found is not None:
            self._restore(found.progress)
        self.rounds = Rounds(
            self.method,
            self.source,
            self.energy.engine,
            self.seed,
            score=self.evaluator.score,
            slots=None if self.folder is None else self.folder.slots,
            state=None if found is None else found.state,
            done=self.done,
            min_replies=self.min_replies,
            growth=self.max_growth,
            past=self.progress.get("past"),
            checks=self.checks,
            attackers=self.attackers,
        )
        self.rounds.stepped = self.journal.step
        if self.callbacks.hear("on_reply"):
            self.rounds.heard = self._heard
        self._told, self._saved = True, (self.done, time.monotonic())
        self.callbacks.call("on_run_begin", self)
        if self.folder is not None and self.folder.missing:
            self._save()  # from now on the logs are what they are, and what is gone is known

    def _heard(self, state: object, done: int, reply: Reply[Any]) -> None:
        self.callbacks.call("on_reply", done + 1, reply, state)

    def _restore(self, progress: Row) -> None:
        self.progress |= progress
        if self.folder is not None and self.folder.missing:
            self.progress["missing"] = joined(self.progress.get("missing", {}), self.folder.missing)
        self.energy.restore(self.progress["energy"], self.done)
        self.meters.restore(self.energy.meter.spent, self.progress["virtual_seconds"])
        self.callbacks.restore(self.progress.pop("callbacks", {}))

    def _finish(self) -> None:
        if self.folder is None and not self.callbacks.given:
            return
        progress = self.progress
        kept = ("best_round", "best", "last", *TOTALS, "virtual_seconds", *CARRIED, "missing")
        result = {
            "digest": self.rounds.digest(),
            "rounds": self.done,
            "stopped_early": progress["stopped"],
            **{name: progress[name] for name in kept if name in progress},
            **({} if self.chosen_by == PRIMARY else {"chosen_by": self.chosen_by}),
            "energy": self.energy.result(self.done),
            "engine": self.engine.facts(),
        }
        self._told = False
        errors = self.callbacks.end(result)
        early = f"validation {metric(self.chosen_by).name} got no better" if progress["stopped"] else ""
        self.journal.say("finished", self.done, early)
        if errors:
            raise errors[0]

    def _leave(self) -> None:
        """Callbacks hear that the run ended early, if it did; why it did is worth more than their errors."""
        for error in self.callbacks.end(None) if self._told else ():
            self.note(str(error))

    # Snapshots

    def _save_is_due(self) -> bool:
        if self.folder is None:
            return True
        since = time.monotonic() - self._saved[1]
        return self.done % self.snapshots.every == 0 and since >= self.snapshots.seconds

    def _save(self) -> None:
        """Write the snapshot that vouches for all rows so far. Without a folder nothing goes back, so that the engine
        may forget what is older."""
        if self.folder is None:
            self.engine.saved(self.done)
            return
        states = self.callbacks.state()
        progress = {**self.progress, **({"callbacks": states} if states else {})}
        self.folder.save(self.identity, self.data, self.done, self.rounds.state, progress)
        self.engine.saved(self.folder.oldest())
        self._saved = (self.done, time.monotonic())
        self.callbacks.call("on_snapshot", self.done)

    # One round

    def _train(self) -> RoundLog:
        """Play the exchanges of the next round."""
        round, evaluator = self.done + 1, self.evaluator
        measure = evaluator.due(round) and evaluator.settings.local and not self.withhold_test
        used = evaluator.used(round) or self.keeps_stages
        log = self.energy.play(partial(self.rounds.play, measure=measure, scored=used))
        self.done = self.rounds.done
        if log.void is not None:
            self.note(f"round {self.done} is void: {log.void}")
            if self.done == self.total == self.rounds.past["void"]:
                raise RoundError(f"round {self.done}: {log.void}. None of the {self.total} rounds counts.")
        return log

    def _evaluate(self, log: RoundLog) -> Snapshot:
        """Score the models if that is due, and gather the metrics of the round."""
        began, rounds, due = time.perf_counter(), self.rounds, self.evaluator.due(self.done)
        report = current(self.method, "reported", "told")
        reported = {} if report is None else report(rounds.state)
        evaluations, scores = self.evaluator.evaluate(rounds) if due else Evaluated({}, {})
        self.meters.note(log, time.perf_counter() - began if due else None, self.energy.meter.spent)
        metrics = {
            "round": self.done,
            **log.metrics(),
            **(self.engine.carried() if isinstance(self.engine, Carrier) else {}),
            "peak_bytes": peak_bytes(),
            **reported,
            **scores,
            **self.meters.numbers(),
            "train_seconds": log.seconds,
            "seconds": log.seconds + time.perf_counter() - began,
        }
        self.withheld = []
        if self.withhold_test:
            (metrics, held), evaluations = apart(metrics), without_tests(evaluations)
            self.withheld = [held] if due else []
        snapshot = Snapshot(self.done, rounds.state, metrics, log, evaluations, rounds)
        for numbers in self.callbacks.call("on_evaluate", snapshot) if due else ():
            metrics.update(numbers or {})
        self._follow(metrics, due)
        return snapshot

    def _follow(self, metrics: Row, due: bool) -> None:
        """Keep count, remember the best round by validation, and decide whether to stop."""
        progress = self.progress
        progress |= {name: progress.get(name, 0) + metrics[name] for name in (*TOTALS, *CARRIED) if name in metrics}
        progress |= {"energy": self.energy.state(), "virtual_seconds": self.meters.virtual, "past": self.rounds.past}
        if isinstance(self.engine, Auto):
            self.engine.expect(metrics["seconds"], self.total - self.done)
        warning = current(self.method, "warning", "warned")
        text = None if warning is None else warning(self.rounds.state)
        if text is not None and not progress.get("warned"):
            progress["warned"] = True
            self.note(f"round {self.done}: {text}")
        if due:
            progress["last"] = metrics
            if self.evaluator.scheduled(self.done) or progress["best_round"] is None:
                self._compare(metrics)

    def _compare(self, metrics: Row) -> None:
        """Is this the best round so far, and if not, for how long has none been better?"""
        progress = self.progress
        valid, best = on_validation(metrics, self.chosen_by), progress["best_valid"]
        if valid is None or best is None or metric(self.chosen_by).better(valid, best, self.stop.min_delta):
            progress |= {"best_valid": valid, "best_round": self.done, "since_best": 0, "best": metrics}
        else:
            progress["since_best"] += 1
            progress["stopped"] = self.stop.patience is not None and progress["since_best"] >= self.stop.patience
