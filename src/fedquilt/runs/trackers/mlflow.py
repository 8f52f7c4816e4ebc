"""MLflow, through its client: no global state, so that several runs may be told at once."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedquilt.core.plain import JSON
from fedquilt.errors import InputError
from fedquilt.runs.trackers import RunInfo

LONGEST = 500  # characters of a value
AT_ONCE = 100  # params in a message; of metrics there may be 1000


@dataclass
class MLflow:
    """A run of MLflow; a resumed run goes on under the same id.

    Args:
        uri: The tracking server or store, for example ``sqlite:///mlflow.db``; by default MLFLOW_TRACKING_URI.
        experiment: Its name there; made if it is missing.
    """

    uri: str | None = None
    experiment: str = "fedquilt"
    _client: Any = field(default=None, init=False, repr=False)
    _id: str = field(default="", init=False, repr=False)

    def start(self, run: RunInfo) -> str:
        """Begin, or go on under the id of before."""
        try:
            from mlflow.entities import Param
            from mlflow.tracking import MlflowClient
        except ImportError as error:
            raise InputError(f'mlflow is not installed ({error}): pip install "fedquilt[track]".') from error
        self._client = MlflowClient(self.uri)
        if run.place:
            self._id = run.place
            self._client.update_run(self._id, status="RUNNING")
            return self._id
        known = self._client.get_experiment_by_name(self.experiment)
        experiment = self._client.create_experiment(self.experiment) if known is None else known.experiment_id
        self._id = str(self._client.create_run(experiment, run_name=run.name).info.run_id)
        params = [Param(name, value[:LONGEST]) for name, value in run.config.items()]
        for low in range(0, len(params), AT_ONCE):
            self._client.log_batch(self._id, params=params[low : low + AT_ONCE])
        return self._id

    def log(self, round: int, numbers: Mapping[str, float]) -> None:
        """A point of every number."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self._client.log_batch(self._id, metrics=[Metric(n, v, now, round) for n, v in numbers.items()])

    def finish(self, result: Mapping[str, JSON] | None) -> None:
        """The end, or an interruption; what validation chose becomes tags."""
        if result is not None:
            for name in ("best_round", "digest"):
                self._client.set_tag(self._id, name, str(result[name]))
        self._client.set_terminated(self._id, status="KILLED" if result is None else "FINISHED")
