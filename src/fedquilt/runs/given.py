"""What a script gives a run: objects in the place of names, and arguments in the place of settings."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from torch import Tensor

from fedquilt.config.config import Config, Kinded, parse
from fedquilt.config.links import Network
from fedquilt.config.script import Script
from fedquilt.core.exchange import Method
from fedquilt.core.table import Divided
from fedquilt.errors import ConfigError, InputError, did_you_mean
from fedquilt.metrics.classify import classify
from fedquilt.metrics.own import metric_of
from fedquilt.metrics.table import Metric, use
from fedquilt.pieces.robust.attackers import Attackers
from fedquilt.pieces.robust.cohort import CohortChecks
from fedquilt.registry import entries
from fedquilt.rounds.client import Score
from fedquilt.rounds.engine import Engine
from fedquilt.runs.callbacks import Callback

OwnMetric = Metric | Callable[[Tensor, Tensor], Any]


@dataclass(frozen=True)
class Given:
    """The objects of a run that settings do not name.

    ``kept``: whether the run is one to go on with later, so that its method must be told from others.
    """

    method: Method
    score: Score | None = classify
    callbacks: Sequence[Callback] = ()
    checks: CohortChecks | None = None
    attackers: Attackers | None = None
    metrics: Sequence[OwnMetric] = ()
    kept: bool = True

    def told(self, config: Config, data: Divided) -> Config:
        """The settings, with these objects as far as they can be written down."""
        own = {} if self.score is classify else {"score": "a function of its own"}
        own |= {"metrics": "functions of its own"} if self.metrics else {}
        own |= {"callbacks": "objects of its own"} if self.callbacks else {}
        beside = {"checks": self.checks, "attackers": self.attackers}
        script = Script.of(self.method, data, beside, own, self.kept)
        method = config.method.model_copy(update={"kind": kind_of(self.method)})
        model = Kinded(kind=_model(self.method))
        return config.model_copy(update={"script": script, "method": method, "model": model})


def _model(method: Method) -> str:
    """What the class of a method's network is called."""
    build = getattr(getattr(method, "net", None), "build", None)
    made = getattr(build, "func", build)  # of a partial function
    return getattr(made, "__name__", type(made).__name__)


def kind_of(method: Method) -> str:
    """What a method is called in recipes, or the name of its class."""
    where = f"{type(method).__module__}:{type(method).__qualname__}"
    return next((e.name for e in entries("method").values() if e.where == where), type(method).__name__)


class RunOptions(TypedDict, total=False):
    """Arguments of :func:`fedquilt.run` that a comparison gives to each of its runs."""

    evaluate_every: int
    evaluate_clients: int | None
    evaluate_local: bool
    patience: int | None
    min_delta: float
    snapshot_every: int
    processes: int | None
    devices: Sequence[str]
    personal_models: bool
    checkpoints: bool
    network: Network | None
    exact: bool
    min_replies: float
    max_growth: float
    energy: bool
    checks: CohortChecks | None
    attackers: Attackers | None
    metrics: Sequence[OwnMetric]


OBJECTS = {"checks": CohortChecks, "attackers": Attackers}  # which have no setting of a simple value
_SETTINGS = {  # which setting of a recipe an argument is
    "evaluate_every": "evaluate.every",
    "evaluate_clients": "evaluate.clients",
    "evaluate_local": "evaluate.local",
    "patience": "stop.patience",
    "min_delta": "stop.min_delta",
    "snapshot_every": "snapshot.every",
    "processes": "engine.processes",
    "devices": "engine.devices",
    "at_once": "engine.at_once",
    "personal_models": "output.personal_models",
    "checkpoints": "output.checkpoints",
    "network": "network",
    "exact": "engine.exact",
    "min_replies": "cohort.min_replies",
    "max_growth": "cohort.max_growth",
    "energy": "meters.energy",
    "engine": "engine.kind",
    "rounds": "rounds",
    "seed": "seed",
    "seeds": "compare.seeds",
    "target": "compare.target",
}


def settings_of(engine: str | Engine, folder: Path | None, **arguments: Any) -> Config:
    """The settings that arguments stand for; every problem with them is told, by the argument's name. From here on the
    metrics among them are known."""
    raw: dict[str, Any] = {"snapshot": {"seconds": 0.0}, "name": _name(folder)}
    unknown = _misused(arguments)
    own = _metrics(arguments.get("metrics") or (), unknown)
    chosen = {"engine": engine} if isinstance(engine, str) else {}
    _put(raw, {_SETTINGS[n]: v for n, v in {**chosen, **arguments}.items() if n in _SETTINGS and v is not None})
    try:
        config = parse(raw, "arguments", unknown)
    except ConfigError as error:
        names = {setting: name for name, setting in _SETTINGS.items()}
        raise ConfigError([_renamed(problem, names) for problem in error.problems], "arguments") from error
    use(own)
    return config


def _misused(arguments: Mapping[str, Any]) -> list[str]:
    """Arguments that there are not, and objects of another kind."""
    known = [*_SETTINGS, *OBJECTS, "metrics"]
    unknown = [f"{n}: unknown argument{did_you_mean(n, known)}" for n in arguments if n not in known]
    return unknown + [
        f"{n}: should be {kind.__name__}(...), got {arguments[n]!r:.60}"
        for n, kind in OBJECTS.items()
        if not isinstance(arguments.get(n), kind | None)
    ]


def _put(raw: dict[str, Any], values: Mapping[str, Any]) -> None:
    """Values into the sections of their settings."""
    for setting, value in values.items():
        *sections, leaf = setting.split(".")
        place = raw
        for section in sections:
            place = place.setdefault(section, {})
        place[leaf] = list(value) if isinstance(value, tuple | range) else value


def _metrics(given: object, problems: list[str]) -> list[Metric]:
    if not isinstance(given, list | tuple):
        problems.append(f"metrics: should be a list of functions of scores and labels, such as [auroc], got {given!r}")
        return []
    found = []
    for item in given:
        try:
            found.append(metric_of(item))
        except InputError as error:
            problems.append(f"metrics: {error}")
    return found


def _renamed(problem: str, names: Mapping[str, str]) -> str:
    setting, colon, rest = problem.partition(":")
    known = next((s for s in (setting, setting.rpartition(".")[0]) if s in names), None)
    return problem if known is None else f"{names[known]}{setting.removeprefix(known)}{colon}{rest}"


def _name(folder: Path | None) -> str:
    """The name of a folder, as names of runs are."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", "" if folder is None else folder.resolve().name)[:100].lstrip("._-")
    return plain or "run"
