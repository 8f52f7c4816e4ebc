"""A run as a configuration: TOML in, checked settings out, every problem reported at once."""

from __future__ import annotations

import hashlib
import inspect
import json
import tomllib
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    create_model,
    model_validator,
)

from fedquilt.core.errors import ConfigError, InputError
from fedquilt.runs.registry import did_you_mean, lookup

Positive = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, lt=1)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Kinded(BaseModel):
    """A choice by name with options of its own; the options are checked against what the choice takes."""

    model_config = ConfigDict(extra="allow", frozen=True)
    kind: str

    @property
    def options(self) -> dict[str, Any]:
        """Everything but the name."""
        return dict(self.model_extra or {})


def _named(value: Any) -> Any:
    return {"kind": value} if isinstance(value, str) else value


def _different(values: list[int]) -> list[int]:
    if len(set(values)) < len(values):
        raise ValueError(f"the numbers must differ, got {values}")
    return values


Choice = Annotated[Kinded, BeforeValidator(_named)]  # a bare name is a choice without options


class Data(_Section):
    """Which data, and how they are divided among clients."""

    source: str | None = None
    path: str | None = None
    clients: Positive | None = None
    partition: Choice = Kinded(kind="dirichlet", alpha=0.3)  # type: ignore[call-arg]
    long_tail: Choice | None = None
    shift: Choice | None = None
    by_user: bool = False
    drop_empty: bool = False
    test: Share = 0.2
    valid: Share = 0.1
    limit: Positive | None = None
    mean: float | list[float] = 0.0
    std: float | list[float] = 1.0
    transforms: list[Choice] = []
    unlabelled: Share = 0.0
    newcomers: Annotated[int, Field(ge=0)] = 0
    seed: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, given: Any) -> Any:
        """What follows from the rest: the source when there is no path, the number of clients when none are natural."""
        if not isinstance(given, dict):
            return given
        filled = dict(given)
        if filled.get("path") is None:
            filled.setdefault("source", "digits")
        elif filled.get("source") is not None:
            raise ValueError("source and path exclude each other; leave one of them out")
        if not filled.get("by_user"):
            filled.setdefault("clients", 20)
        return filled


class StreamChoice(Kinded):
    """How data change from round to round; ``shift`` is what happens in a drift."""

    shift: Choice | None = None


class Training(_Section):
    """Local work, the same for every method of a comparison."""

    epochs: Positive = 1
    steps: Positive | None = None
    batch_size: Positive = 32
    optimizer: Choice = Kinded(kind="sgd", lr=0.05)  # type: ignore[call-arg]
    schedule: Choice | None = None
    clip: Annotated[float, Field(gt=0)] | None = None

    @model_validator(mode="after")
    def _one_length(self) -> Training:
        if self.steps is not None and self.epochs != 1:
            raise ValueError("steps and epochs exclude each other; leave one of them out")
        return self


class Participation(_Section):
    """Who is asked each round: a fraction, or a number, of the clients."""

    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    count: Positive | None = None

    @model_validator(mode="after")
    def _one_size(self) -> Participation:
        if self.count is not None and self.fraction != 1.0:
            raise ValueError("count and fraction exclude each other; leave one of them out")
        return self


class EngineChoice(_Section):
    """Where clients' work runs. Results do not depend on it."""

    kind: Literal["auto", "local", "workers"] = "auto"
    processes: Positive | None = None
    devices: list[str] = []


class Evaluation(_Section):
    """When models are scored, and on how many clients."""

    every: Positive = 1
    clients: Positive | None = None
    local: bool = False


class Stop(_Section):
    """Stop when validation accuracy has not grown by min_delta for ``patience`` evaluations."""

    patience: Positive | None = None
    min_delta: Annotated[float, Field(ge=0)] = 0.0


class Snapshots(_Section):
    """After every so many rounds, but not more often than so many seconds."""

    every: Positive = 1
    seconds: Annotated[float, Field(ge=0)] = 5.0


class Output(_Section):
    """Where runs go, and whether personal models are saved."""

    folder: str = "runs"
    personal_models: bool = False


class Comparison(_Section):
    """Methods and seeds of ``fedquilt compare``."""

    methods: Annotated[list[Choice], Field(min_length=1)] = [
        Kinded(kind="fedavg"), Kinded(kind="fedprox"), Kinded(kind="local_only")
    ]  # fmt: skip
    seeds: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1), AfterValidator(_different)] = [0, 1, 2]


class Config(_Section):
    """All settings of a run."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] = "run"
    seed: Annotated[int, Field(ge=0)] = 0
    rounds: Positive = 20
    data: Data = Data()
    stream: StreamChoice | None = None
    model: Choice = Kinded(kind="mlp")
    method: Choice = Kinded(kind="fedavg")
    train: Training = Training()
    cohort: Participation = Participation()
    engine: EngineChoice = EngineChoice()
    evaluate: Evaluation = Evaluation()
    stop: Stop = Stop()
    snapshot: Snapshots = Snapshots()
    output: Output = Output()
    compare: Comparison = Comparison()

    def identity(self) -> str:
        """A short hash of everything that can change the numbers, and of nothing else."""
        asked = self.model_dump(mode="json", exclude={"engine", "snapshot", "output", "compare"})
        if self.data.path is not None:
            asked["data"]["path"] = Path(
                self.data.path
            ).name  # where the file is does not matter; snapshots know its hash
        return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:8]

    @property
    def folder_name(self) -> str:
        """The run's folder below ``output.folder``."""
        return f"{self.name}-{self.identity()}"


def load(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read a TOML file, apply ``key=value`` overrides, and check everything."""
    file = Path(path)
    try:
        raw = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(
            f"There is no file '{file}'. Give the path of a recipe, for example recipes/demo.toml."
        ) from error
    except IsADirectoryError as error:
        raise InputError(f"'{file}' is a folder; give the path of a .toml file.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError([f"not valid TOML: {error}"], str(file)) from error
    settings, problems = apply(raw, overrides)
    return parse(settings, str(file), problems)


def apply(raw: Mapping[str, Any], overrides: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """The settings with dotted overrides, for example ``train.optimizer.lr=0.1``; and the overrides that are wrong."""
    settings: dict[str, Any] = json.loads(json.dumps(raw, default=str))
    problems = []
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            problems.append(f"override {text!r} is not of the form key=value")
            continue
        *parents, leaf = key.strip().split(".")
        place = settings
        for name in parents:
            place = place.setdefault(name, {})
            if not isinstance(place, dict):
                problems.append(f"override {text!r}: '{name}' is not a section")
                place = {}
        place[leaf] = _value(value.strip())
    return settings, problems


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def parse(raw: Mapping[str, Any], where: str = "configuration", known: Sequence[str] = ()) -> Config:
    """Check settings; raises one error that lists every problem, after those already known."""
    problems = list(known)
    raw = _with_kinds(raw)
    try:
        config = Config.model_validate(raw)
    except ValidationError as error:
        problems += [_explain(e) for e in error.errors() if not _of_other_branch(e)]
        config = None
    problems += _check_choices(raw) + _check_model(_inner(raw, "model"))
    if problems or config is None:
        raise ConfigError(problems, where)
    return config


_KINDS = {
    ("method",): "fedavg", ("model",): "mlp", ("train", "optimizer"): "sgd", ("data", "partition"): "dirichlet",
    ("data", "long_tail"): "exponential",
}  # fmt: skip


def _with_kinds(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The settings, with the default kind where a choice has options only."""
    filled = dict(raw)
    for (*parents, leaf), kind in _KINDS.items():
        place = filled
        for name in parents:
            inner = place.get(name)
            if isinstance(inner, Mapping):
                place[name] = inner = dict(inner)
            place = inner if isinstance(inner, dict) else {}
        if isinstance(place.get(leaf), Mapping):
            place[leaf] = {"kind": kind, **place[leaf]}
    return filled


_BRANCHES = ("float", "list[float]")  # what pydantic adds to the path of a setting that is a number or a list


def _of_other_branch(error: Any) -> bool:
    return bool(error["loc"][-1:] == (("float" if isinstance(error["input"], list) else "list[float]"),))


def _explain(error: Any) -> str:
    path = ".".join(str(p) for p in error["loc"] if p not in _BRANCHES)
    if error["type"] == "extra_forbidden":
        *parents, leaf = error["loc"]
        return f"{path}: unknown key{_meant(str(leaf), _known(parents))}"
    if error["type"] == "missing":
        return f"{path}: missing"
    if error["type"] == "value_error":
        value = "" if isinstance(error["input"], dict) else f", got {error['input']!r}"
        return f"{path}: {error['ctx']['error']}{value}"
    if error["type"] == "model_type":
        return f"{path}: should be a section, got {error['input']!r}"
    return f"{path}: {error['msg'][0].lower()}{error['msg'][1:]}, got {error['input']!r}"


def _meant(name: str, known: Iterable[str]) -> str:
    """What was perhaps meant, or else everything there is."""
    names = list(known)
    return did_you_mean(name, names) or (f"; known: {', '.join(names)}" if names else "; it has no options")


def _known(parents: Sequence[Any]) -> list[str]:
    model: Any = Config
    for name in parents:
        info = getattr(model, "model_fields", {}).get(name)
        model = info.annotation if info is not None else None
        inner = [a for a in typing.get_args(model) if isinstance(a, type) and issubclass(a, BaseModel)]
        model = inner[0] if inner else model
    return list(getattr(model, "model_fields", {}))


def _check_choices(raw: Mapping[str, Any]) -> list[str]:
    """Problems of the sections that are chosen by kind."""
    problems: list[str] = []
    choices: list[tuple[str, str, Any]] = [
        ("method", "method", _inner(raw, "method")),
        ("optimizer", "train.optimizer", _inner(raw, "train", "optimizer")),
        ("schedule", "train.schedule", _inner(raw, "train", "schedule")),
        ("partition", "data.partition", _inner(raw, "data", "partition")),
        ("long_tail", "data.long_tail", _inner(raw, "data", "long_tail")),
        ("shift", "data.shift", _inner(raw, "data", "shift")),
        ("stream", "stream", _inner(raw, "stream")),
        ("shift", "stream.shift", _inner(raw, "stream", "shift")),
    ]
    changes = _inner(raw, "data", "transforms")
    for i, item in enumerate(changes if isinstance(changes, list) else []):
        choices.append(("transform", f"data.transforms.{i}", item))
    listed = _inner(raw, "compare", "methods")
    for i, item in enumerate(listed if isinstance(listed, list) else []):
        choices.append(("method", f"compare.methods.{i}", item))
    for table, path, named in choices:
        given = _named(named)
        if isinstance(given, Mapping) and isinstance(given.get("kind"), str):
            apart = ("kind", "shift") if table == "stream" else ("kind",)
            options = {k: v for k, v in given.items() if k not in apart}
            problems += check_options(table, given["kind"], options, path)[1]
    return problems


def _check_model(named: Any) -> list[str]:
    """Problems of the model's name and options; whether it fits the data is seen when both are there."""
    given = _named(named)
    if not isinstance(given, Mapping) or not isinstance(given.get("kind"), str):
        return []
    from fedquilt.models.registry import MODELS

    kind = given["kind"]
    if kind not in MODELS:
        return [f"model.kind: unknown model {kind!r}{did_you_mean(kind, MODELS)} (known: {', '.join(sorted(MODELS))})"]
    takes = MODELS[kind].options
    odd = [name for name in given if name != "kind" and name not in takes]
    return [f"model.{name}: unknown key for {kind!r}{did_you_mean(name, takes)}" for name in odd]


def _inner(raw: Mapping[str, Any], *keys: str) -> Any:
    inner: Any = raw
    for key in keys:
        inner = inner.get(key) if isinstance(inner, Mapping) else None
    return inner


def check_options(table: str, kind: str, options: Mapping[str, Any], path: str) -> tuple[dict[str, Any], list[str]]:
    """The options of a choice, converted to the types it takes, and every problem with them."""
    try:
        takes = _schema(table, kind)
    except InputError as error:
        return {}, [f"{path}.kind: {error}"]
    try:
        made = takes.model_validate(dict(options))
    except ValidationError as error:
        problems = []
        for e in error.errors():
            leaf = str(e["loc"][0]) if e["loc"] else ""
            if e["type"] == "extra_forbidden":
                problems.append(f"{path}.{leaf}: unknown key for {kind!r}{_meant(leaf, takes.model_fields)}")
            else:
                problems.append(f"{path}." + _explain(e))
        known = {k: v for k, v in options.items() if k in takes.model_fields}
        if all(e["type"] == "extra_forbidden" for e in error.errors()):  # the others may be wrong in other ways
            problems += check_options(table, kind, known, path)[1]
        return {}, problems
    given = {name: getattr(made, name) for name in made.model_fields_set}
    try:
        if table != "method":  # pieces check their own ranges when they are made
            lookup(table, kind).load()(**given)
    except (InputError, ValueError, TypeError) as error:
        return {}, [f"{path}: {error}"]
    return given, []


_PLAIN = (bool, int, float, str)


def _schema(table: str, kind: str) -> type[BaseModel]:
    """A model of the plain options that a choice takes, from its signature."""
    entry = lookup(table, kind)
    maker = entry.load()
    hints = typing.get_type_hints(maker, include_extras=True)  # of a class: its fields, each in its own module's words
    taken: dict[str, Any] = {}
    for name, parameter in inspect.signature(maker).parameters.items():
        kind_of = hints.get(name)
        if (table == "method" and name in COMMON) or not _is_plain(kind_of):
            continue
        default = ... if parameter.default is inspect.Parameter.empty else parameter.default
        taken[name] = (kind_of, default)
    if table == "method" and "aggregate" not in entry.fixed:
        taken["aggregate"] = (Literal["mean", "uniform_mean"], "mean")
    return create_model(f"{kind} options", __config__=ConfigDict(extra="forbid"), **taken)


COMMON = ("optimizer", "epochs", "steps", "batch_size", "schedule", "clip", "cohort")


def _is_plain(hint: Any) -> bool:
    if hint in _PLAIN or hint is type(None):
        return True
    parts = typing.get_args(hint)
    if typing.get_origin(hint) is Literal:
        return True
    if typing.get_origin(hint) is Annotated:
        return _is_plain(parts[0])
    return bool(parts) and all(p is Ellipsis or _is_plain(p) for p in parts)


def dump(config: Config) -> str:
    """The resolved settings as TOML."""
    lines: list[str] = []
    _write_table(config.model_dump(mode="json", exclude_none=True), "", lines)
    return "\n".join(lines) + "\n"


def _write_table(table: Mapping[str, Any], path: str, lines: list[str]) -> None:
    inner = {k: v for k, v in table.items() if isinstance(v, dict)}
    if path:
        lines += ["", f"[{path}]"]
    lines += [f"{k} = {_toml(v)}" for k, v in table.items() if k not in inner]
    for name, value in inner.items():
        _write_table(value, f"{path}.{name}" if path else name, lines)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{k} = {_toml(v)}" for k, v in value.items() if v is not None) + " }"
    return repr(value)
