"""When the models of a run are scored, which clients' are, and what the method hears of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fedquilt.config.config import EvaluationSettings
from fedquilt.core.deployed import mode_scores
from fedquilt.core.exchange import Method
from fedquilt.core.plain import Row
from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId, Source, Table, in_order
from fedquilt.metrics.evaluation import common_numbers, summarise
from fedquilt.rounds.client import Score
from fedquilt.rounds.rounds import Rounds

Evaluations = dict[ClientId, Row]
COMMON = {"common_test": "global_test", "common_valid": "server_valid"}  # tables that a federation may hold in common
HEARD = ("valid_", "global_valid_", "common_valid_")  # test samples never steer training


class Evaluated(NamedTuple):
    """The scores of each client, and the metrics they make."""

    evaluations: Evaluations
    metrics: Row


@dataclass
class Evaluator:
    """Scores the models of a run of so many rounds."""

    method: Method
    federation: Source
    seed: Seed
    settings: EvaluationSettings
    score: Score | None
    rounds: int

    def scheduled(self, done: int) -> bool:
        """Whether this round is scored anyway; a score only because it is the last one steers nothing, so that a run
        with more rounds begins with the very same ones."""
        return done % self.settings.every == 0

    def used(self, done: int) -> bool:
        """Whether models are used after this round: scored, or left to the user."""
        return self.scheduled(done) or done == self.rounds

    def due(self, done: int) -> bool:
        """Whether models are scored after this round."""
        return self.score is not None and self.used(done)

    def clients(self, ids: Sequence[ClientId]) -> tuple[ClientId, ...]:
        """Who is evaluated of these: all, or always the same few."""
        count = self.settings.clients
        if count is None or count >= len(ids):
            return tuple(ids)
        chosen = self.seed.fold("examined").numpy().choice(len(ids), count, replace=False)
        return in_order([ids[i] for i in chosen])

    def evaluate(self, rounds: Rounds) -> Evaluated:
        """Score the models after a round; the method hears of validation scores, which may change its state."""
        evaluations = rounds.evaluate(self.clients(rounds.source.evaluated))
        metrics = self._metrics(rounds, evaluations)
        before = self._served(rounds)
        if self.scheduled(rounds.done):
            heard = {name: value for name, value in metrics.items() if name.startswith(HEARD)}
            rounds.state = self.method.observe(rounds.state, heard)
        mode = self._served(rounds)
        if mode is None:
            return Evaluated(evaluations, metrics)
        if mode != before:
            evaluations = self._in_mode(mode, evaluations)
            metrics = self._metrics(rounds, evaluations)
        return Evaluated(evaluations, {**metrics, "served": mode})

    def _served(self, rounds: Rounds) -> str | None:
        """The mode that the method serves now; None for a method without modes."""
        method: Any = self.method
        return str(method.served(rounds.state)) if mode_scores(method) else None

    def _in_mode(self, mode: str, evaluations: Evaluations) -> Evaluations:
        """Scores where the global model is in this mode: what was served until now may be another."""
        name = mode_scores(self.method)[mode]
        return {
            client: {**evaluation, "global": evaluation[name]} if name in evaluation else evaluation
            for client, evaluation in evaluations.items()
        }

    def _metrics(self, rounds: Rounds, evaluations: Evaluations) -> Row:
        metrics: Row = dict(summarise(evaluations))
        whole = rounds.method.global_model(rounds.state)
        for name, held in COMMON.items():
            table: Table | None = getattr(self.federation, held, None)
            if table is None or whole is None or self.score is None:
                continue
            score = self.score(self.method.predict, whole, table)
            metrics |= common_numbers(name, score)
            metrics |= self._by_mode(rounds, name, self.score, table)
        return metrics

    def _by_mode(self, rounds: Rounds, name: str, score: Score, table: Table) -> dict[str, float]:
        """The accuracies of all modes on a table of the server's, as ``NAME_accuracy_MODE``."""
        method: Any = self.method
        modes = method.modes(rounds.state) if mode_scores(method) else {}
        scores = {mode: score(method.predict, model, table) for mode, model in modes.items()}
        return {f"{name}_accuracy_{mode}": s.accuracy for mode, s in scores.items() if hasattr(s, "accuracy")}
