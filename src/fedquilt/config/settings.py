"""The settings of a run, section by section, with their defaults and bounds."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    field_validator,
    model_validator,
)

from fedquilt.config.links import Network
from fedquilt.config.script import Script
from fedquilt.config.space import Sweep, different
from fedquilt.config.training import resolved
from fedquilt.core.plain import JSON, Row
from fedquilt.errors import InputError
from fedquilt.metrics import PRIMARY
from fedquilt.moved import current_choice
from fedquilt.registry import lookup

Positive = Annotated[int, Field(ge=1, lt=2**31)]
Number = Annotated[int, Field(ge=0, lt=2**63)]  # a seed, which travels in 64 bits
Text = Annotated[str, Field(min_length=1, pattern=r"^[^\x00]*$")]  # which no path can hold
Share = Annotated[float, Field(ge=0, lt=1)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Kinded(BaseModel):
    """A choice by name with options of its own; the options are checked against what the choice takes."""

    model_config = ConfigDict(extra="allow", frozen=True)
    kind: str

    @property
    def options(self) -> Row:
        """Everything but the name."""
        return dict(self.model_extra or {})

    @model_validator(mode="after")
    def _finite(self) -> Kinded:
        for name, value in self.options.items():
            if not all(math.isfinite(v) for v in _inside(value) if isinstance(v, float)):
                raise ValueError(f"{name} should be a finite number")
        return self


def _inside(value: JSON) -> Iterator[JSON]:
    """A value, or what is in lists and sections inside one another."""
    if isinstance(value, list | dict):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _inside(inner)
    else:
        yield value


def named(value: JSON) -> JSON:
    """A bare name as a choice without options."""
    return {"kind": value} if isinstance(value, str) else current_choice(value)


Choice = Annotated[Kinded, BeforeValidator(named)]  # a bare name is a choice without options


def _bare(choice: Kinded) -> JSON:
    return choice.model_dump() if choice.options else choice.kind


OwnChoice = Annotated[Choice, PlainSerializer(_bare)]  # the same, which without options is written as a bare name


def _whose(value: JSON) -> JSON:
    return "federation" if value is True else value


Standardise = Annotated[Literal["federation", "clients", False], BeforeValidator(_whose)]


class Data(_Section):
    """Which data, and how they are divided among clients."""

    source: OwnChoice | None = None
    path: Text | None = None
    label: Text | list[Text] | None = None
    user: Text | None = None
    features: list[Text] | None = None
    categories: list[Text] | None = None
    standardise: Standardise = "federation"
    text: Text | list[Text] | None = None
    words: Annotated[int, Field(ge=3, lt=2**31)] | None = None
    length: Positive | None = None
    tokeniser: Text | None = None
    size: Positive | None = None
    clients: Positive | None = None
    partition: Choice = Kinded(kind="dirichlet", alpha=0.3)  # type: ignore[call-arg]
    long_tail: Choice | None = None
    shift: Choice | None = None
    by_user: bool = False
    drop_empty: bool = False
    test: Share = 0.2
    valid: Share = 0.1
    common_test: Share = 0.0
    common_valid: Share = 0.0
    local_tests: bool = False
    limit: Positive | None = None
    mean: float | list[float] = 0.0
    std: float | list[float] = 1.0
    transforms: list[Choice] = []
    unlabelled: Share = 0.0
    pretraining: Share = 0.0
    newcomers: Annotated[int, Field(ge=0)] = 0
    seed: Number = 0

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, given: JSON) -> JSON:
        """What follows from the rest: the source when there is no path, the number of clients when none are natural."""
        if not isinstance(given, dict):
            return given
        filled = dict(given)
        if filled.get("path") is None:
            filled.setdefault("source", "digits")
        elif filled.get("source") is not None:
            raise ValueError("source and path are mutually exclusive; give only one of them")
        if filled.get("user") is not None:
            filled.setdefault("by_user", True)
        if filled.get("local_tests") and filled.setdefault("test", 0.0):
            raise ValueError(f"local_tests takes tests from the common test set; set test = 0, got {filled['test']}")
        if not filled.get("by_user"):
            filled.setdefault("clients", 20)
        return filled


class MethodChoice(Kinded):
    """A method by name; ``label`` is what people read in tables and pictures, in the place of its own name."""

    label: Annotated[str, Field(min_length=1, max_length=80, pattern=r"^[^\x00-\x1f\x7f]+$")] | None = None


Method = Annotated[MethodChoice, BeforeValidator(named)]


class StreamChoice(Kinded):
    """How data change from round to round; ``shift`` is what happens in a drift."""

    shift: Choice | None = None


class CodecChoice(Kinded):
    """How messages travel: a codec by name, on one field or on all; what it leaves may be coded again.

    ``exchange`` says on which exchange; by default the one called 'train', or else the first.
    """

    field: str | None = None
    chain: list[Choice] = []
    error_feedback: bool = False
    exchange: str | None = None


def _listed(value: JSON) -> JSON:
    """One name or section as a list of one."""
    items = value if isinstance(value, list) else [value]
    return [named(item) for item in items]


Codecs = Annotated[list[CodecChoice], BeforeValidator(_listed)]


class OptimizerChoice(Kinded):
    """An optimiser; without its kind, other options of the method's own one."""

    kind: str = ""


class Training(_Section):
    """Local work. Where nothing is given, each method has settings of its own (:mod:`fedquilt.config.training`).

    ``loss`` and ``loop`` name a loss and a training loop of the user's own."""

    epochs: Positive = 1
    epochs_first: Positive | None = None
    steps: Positive | None = None
    batch_size: Positive = 32
    optimizer: Annotated[OptimizerChoice, BeforeValidator(named)] = OptimizerChoice(kind="sgd", lr=0.05)  # type: ignore[call-arg]
    schedule: Choice | None = None
    clip: Annotated[float, Field(gt=0)] | None = None
    precision: Literal["float32", "bfloat16"] = "float32"
    loss: Choice | None = None
    loop: OwnChoice | None = None

    @model_validator(mode="after")
    def _one_length(self) -> Training:
        if self.steps is not None and (self.epochs != 1 or self.epochs_first is not None):
            raise ValueError("steps and epochs are mutually exclusive; give only one of them")
        return self


class Participation(_Section):
    """Who is asked each round: a fraction, or a number, of the clients; how many must answer for it to count: a whole
    number of them, or a share; and how many times its past norm a part of the server's state may have after it."""

    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    count: Positive | None = None
    min_replies: Positive | Annotated[float, Field(gt=0, le=1)] = 0.5
    max_growth: Annotated[float, Field(gt=1)] = 1000.0

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth(cls, value: JSON) -> JSON:
        """Python takes true for 1."""
        if isinstance(value, bool):
            raise ValueError("should be a number")
        return value

    @model_validator(mode="after")
    def _one_size(self) -> Participation:
        if self.count is not None and self.fraction != 1.0:
            raise ValueError("count and fraction are mutually exclusive; give only one of them")
        return self


def _engine(kind: str) -> str:
    lookup("engine", kind)
    return kind


class EngineChoice(_Section):
    """Where clients' work runs. Results do not depend on it, but for rounding with 'lanes', and with 'auto' when
    ``exact`` is false: then it may choose lanes. ``at_once``: runs of a comparison or sweep that are played side by
    side; by default, with 'auto', one per core. ``capture``: whether steps are captured, as ``Net`` has it."""

    kind: Annotated[str, AfterValidator(_engine)] = "auto"
    exact: bool = True
    processes: Positive | None = None
    devices: list[str] = []
    nodes: Positive | None = None
    width: Positive | None = None
    at_once: Positive | None = None
    capture: Literal["auto"] | bool = "auto"


class Federated(_Section):
    """A real federation on Flower: how many nodes to wait for, and how patient to be (in seconds)."""

    nodes: Positive = 2
    wait: Annotated[float, Field(gt=0)] = 600.0
    deadline: Annotated[float, Field(gt=0)] = 3600.0
    ask: Annotated[float, Field(gt=0)] = 30.0
    classes: Annotated[int, Field(ge=2)] | None = None


class EvaluationSettings(_Section):
    """When models are scored, and on how many clients."""

    every: Positive = 1
    clients: Positive | None = None
    local: bool = False


def _metric(id: str) -> str:
    if id == PRIMARY:
        return id
    from fedquilt.metrics.table import metric  # with numpy, which light commands do without

    try:
        return metric(id).id
    except InputError as error:
        raise ValueError(str(error)) from error


class Stop(_Section):
    """Stop when the metric on validation samples, by which the best round is chosen too, has not become better by
    min_delta for ``patience`` evaluations."""

    metric: Annotated[str, AfterValidator(_metric)] = PRIMARY
    patience: Positive | None = None
    min_delta: Annotated[float, Field(ge=0)] = 0.0


class Snapshots(_Section):
    """After every so many rounds, but not more often than so many seconds."""

    every: Positive = 1
    seconds: Annotated[float, Field(ge=0)] = 5.0


class MeterSettings(_Section):
    """What is measured beside the numbers: the joules that counters of the machine tell."""

    energy: bool = True


class Output(_Section):
    """Where runs go, whether personal models are saved at the end, models of every round (checkpoints), and what was
    learned at the end of each task of a stream (stages; for methods whose features can be probed they always are); who
    else is told of the numbers (trackers); and whether test scores are kept apart and shown to nobody (withhold_test),
    as a sweep does until it has chosen."""

    folder: Text = "runs"
    personal_models: bool = False
    checkpoints: bool = False
    stages: bool = False
    trackers: list[Choice] = []
    withhold_test: bool = False


def _labels_differ(methods: list[MethodChoice]) -> list[MethodChoice]:
    """What people give methods as labels tells them apart."""
    labels = [m.label for m in methods if m.label is not None]
    if twice := next((label for label in labels if labels.count(label) > 1), None):
        raise ValueError(f"two methods have the label {twice!r}; give each one of its own")
    return methods


class Comparison(_Section):
    """Methods and seeds of ``fedquilt compare``, the accuracy that costs are counted to, and whether local-only and
    centralised training are run too, as the frame of the table."""

    methods: Annotated[list[Method], Field(min_length=1), AfterValidator(_labels_differ)] = [
        MethodChoice(kind="fedavg"),
        MethodChoice(kind="fedprox"),
        MethodChoice(kind="local_only"),
    ]
    seeds: Annotated[list[Number], Field(min_length=1), AfterValidator(different)] = [0, 1, 2]
    target: Annotated[float, Field(gt=0, le=1)] = 0.8
    frame: bool = False


def _choices(listed: list[str | Row]) -> list[str | Row]:
    """Names, or tables of a kind whose other values are finite."""
    for item in listed:
        if isinstance(item, dict) and not isinstance(item.get("kind"), str):
            raise ValueError(f"each should be a name, or a table with a kind, got {item!r}")
        try:
            json.dumps(item, allow_nan=False)
        except (TypeError, ValueError):
            raise ValueError(f"each should be a name, or a table of finite values, got {item!r}") from None
    return listed


class Robustness(_Section):
    """What ``fedquilt robustness`` tries: aggregators beside the mean (``checks = {}`` in one turns the cohort's checks
    on), attacks, shares of malicious clients (counted by clients, or by their samples), and seeds; and how much
    accuracy a rule may cost without an attack, to be recommended."""

    rules: Annotated[list[str | Row], Field(min_length=1), AfterValidator(_choices)] = [
        "clip_norm",
        "geometric_median",
        "median",
        "trimmed_mean",
        "multi_krum",
        {"kind": "nearest_mixing", "then": "geometric_median"},
    ]
    attacks: Annotated[list[str | Row], Field(min_length=1), AfterValidator(_choices)] = [
        "sign_flip",
        "gaussian",
        "alie",
        "ipm",
        "min_max",
        "label_flip",
    ]
    shares: Annotated[list[Annotated[float, Field(gt=0, lt=0.5)]], Field(min_length=1), AfterValidator(different)] = [
        0.1,
        0.2,
        0.3,
    ]
    by: Annotated[list[Literal["clients", "samples"]], Field(min_length=1)] = ["clients"]
    seeds: Annotated[list[Number], Field(min_length=1), AfterValidator(different)] = [0, 1, 2]
    most_cost: Annotated[float, Field(ge=0, le=1)] = 0.01


def _who(value: JSON) -> JSON:
    named = isinstance(value, list | tuple) and all(isinstance(client, int | str) for client in value)
    if named or (isinstance(value, float) and 0 < value < 1):
        return value
    raise ValueError(f"should be a share below 1 or a list of ids, e.g. 0.2 or [0, 9], got {value!r}")


class AttackChoice(Kinded):
    """What attackers send or learn, in a simulation, and who they are: a share of the clients, a list of them, or as
    many as hold a share of the training samples."""

    clients: Annotated[Annotated[float, Field(gt=0, lt=1)] | list[int | str], BeforeValidator(_who)] = 0.2
    samples: Annotated[float, Field(gt=0, lt=1)] | None = None


class Checks(_Section):
    """Which replies are left out because they stand out from their cohort: options of
    :class:`fedquilt.CohortChecks`."""

    false_alarms: Annotated[float, Field(ge=0.001, le=0.5)] = 0.01
    length: bool = True
    direction: bool = True
    most_share: Annotated[float, Field(gt=0, le=1)] | None = None
    shorten: Annotated[float, Field(gt=0, lt=1)] | None = None
    strikes: Positive | None = 3
    suspended: Positive = 10


# These cannot change the numbers.
def _as_0_1_had_it(method: Row) -> None:
    """Name the criterion of a cut as 0.1 did, whose 'auto' is called 'silhouette' now, and 'auto' 'null': its runs keep
    their identity, and none of today's takes it."""
    usual = usual_criterion(method["kind"])
    criterion = method.pop("criterion", usual)
    was = "null" if criterion == "auto" else "auto" if criterion == "silhouette" else criterion
    if was != usual:
        method["criterion"] = was


def usual_criterion(kind: object) -> str | None:
    """The criterion by which a method's clusters are cut unless its options say so, if 'auto'."""
    return "auto" if kind in ("hcfl", "fedper_grouped") else None


OTHERWISE = {"engine", "snapshot", "meters", "output", "compare", "flower", "network", "sweep", "robustness", "script"}


_USUAL: tuple[tuple[str, str, JSON], ...] = (  # settings that came later: left alone, a run is what it was before
    ("train", "epochs_first", None),
    ("stop", "metric", PRIMARY),
    ("train", "precision", "float32"),
    ("cohort", "max_growth", Participation().max_growth),
    ("data", "pretraining", None),
    ("data", "common_valid", None),
    ("data", "categories", None),
    ("data", "standardise", "federation"),
    ("", "attack", None),
    ("", "checks", None),
    ("", "codec", None),
    ("", "download_codec", None),
    ("train", "loss", None),
    ("train", "loop", None),
    ("", "metrics", None),
    ("", "callbacks", None),
    ("", "task", None),
)


class Config(_Section):
    """All settings of a run."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)] = "run"
    seed: Number = 0
    rounds: Positive = 20
    task: Choice | None = None
    data: Data = Data()
    stream: StreamChoice | None = None
    model: Choice = Kinded(kind="mlp")
    method: Method = MethodChoice(kind="fedavg")
    train: Training = Training()
    codec: Codecs = []
    download_codec: Codecs = []
    cohort: Participation = Participation()
    checks: Checks | None = None
    attack: Annotated[AttackChoice, BeforeValidator(named)] | None = None
    engine: EngineChoice = EngineChoice()
    flower: Federated = Federated()
    network: Network | None = None
    evaluate: EvaluationSettings = EvaluationSettings()
    stop: Stop = Stop()
    metrics: Annotated[list[Choice], BeforeValidator(_listed)] = []
    callbacks: list[Choice] = []
    snapshot: Snapshots = Snapshots()
    meters: MeterSettings = MeterSettings()
    output: Output = Output()
    compare: Comparison = Comparison()
    sweep: Sweep = Sweep()
    robustness: Robustness = Robustness()
    script: Script | None = None

    @model_validator(mode="after")
    def _trains(self) -> Config:
        """What the recipe leaves open in ``train`` is as the method has it, and in ``stop`` as the task; an unknown
        method is told elsewhere."""
        with suppress(InputError):
            self.__dict__["train"] = resolved(self.train, self.method.kind)
        if self.task is not None and self.stop.metric == PRIMARY:
            from fedquilt.metrics.table import main  # of this task, whose metrics are known by now

            self.__dict__["stop"] = self.stop.model_copy(update={"metric": main().id})
        return self

    def with_method(self, method: MethodChoice) -> Config:
        """The same for another method, with that method's own training wherever the recipe is silent."""
        return self.model_copy(update={"method": method, "train": resolved(self.train, method.kind)})

    def identity(self) -> str:
        """A short hash of everything that can change the numbers, and of nothing else."""
        if self.script is not None:
            return self.script.identity(self.seed, repr(self.evaluate), self.stop.patience, self.stop.min_delta)
        asked = self.model_dump(mode="json", exclude=OTHERWISE)
        del asked["method"]["label"]  # it is called so, and is the same
        _as_0_1_had_it(asked["method"])
        if isinstance(self.cohort.min_replies, float):
            asked["cohort"]["min_replies"] = 1  # as before there were shares: it stops runs and changes no number
        for section, name, usual in _USUAL:
            place = asked[section] if section else asked
            if place[name] == usual or (usual is None and not place[name]):
                del place[name]
        if self.flower.classes is not None:  # the one setting of a federation that shapes the model
            asked["classes"] = self.flower.classes
        for name in ("path", "tokeniser"):  # where files are does not matter; snapshots know the hash of the rows
            if asked["data"][name] is not None:
                asked["data"][name] = Path(asked["data"][name]).name
        for name, path in self.weight_files().items():
            from fedquilt.models.weights.files import fingerprint

            asked["model"][name] = fingerprint(path)  # what is in the files counts, not where they are
        return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:8]

    def weight_files(self) -> dict[str, str]:
        """The options of the model that name files or folders on this machine; a name on a hub is none."""
        files = ("weights", "pretrained", "folder")
        given = {n: v for n, v in self.model.options.items() if n in files and isinstance(v, str)}
        return {n: v for n, v in given.items() if n != "folder" or Path(v).is_dir()}

    @property
    def folder_name(self) -> str:
        """The run's folder below ``output.folder``."""
        return f"{self.name}-{self.identity()}"
