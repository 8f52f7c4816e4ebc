"""What a run on a stream learned, kept and forgot: its features are probed on every task after every stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from fedquilt.analysis.afterwards import config_in
from fedquilt.config.data import federations_of
from fedquilt.core.exchange import Method
from fedquilt.core.net import Net
from fedquilt.core.params import Params
from fedquilt.core.plain import Row
from fedquilt.core.seed import Seed
from fedquilt.core.table import Table
from fedquilt.data.streams.streams import Stream
from fedquilt.errors import InputError
from fedquilt.methods.self_supervised.masked import features
from fedquilt.metrics.continual import LinearProbe, Neighbours, continual
from fedquilt.metrics.reconstruct import reconstruct
from fedquilt.rounds.client import one_thread
from fedquilt.runs.build import method_of
from fedquilt.runs.stages import Stage, stages_in
from fedquilt.storage.files import to_json, write_atomic
from fedquilt.storage.folder import RunFolder

FILE = "metrics/continual.json"
NAMES = {
    "probe": "linear probe, own task",
    "neighbours": "20 neighbours, own task",
    "probe_all": "linear probe, all tasks",
    "neighbours_all": "20 neighbours, all tasks",
    "loss": "reconstruction loss",
}
NUMBERS = {"average": "average", "incremental": "increm.", "forgetting": "forgot", "backward": "BWT", "forward": "FWT"}
Labelled = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class TaskEvaluator:
    """Scores models on the tasks of a stream; the rows of all clients are put together.

    Args:
        method: Whose network has features (``embed``) and reconstructs.
        stream: The tasks.
        stages: The task of each stage: the columns of every matrix.
        rows: At most so many training and as many test samples of each task, drawn by the seed; None for all.
        probe, neighbours: How features are judged; both at length 1, without hidden patches.
        seed: For the order of the probe's batches, and the rows.
    """

    method: Method
    stream: Stream
    stages: tuple[int, ...]
    rows: int | None = None
    probe: LinearProbe = LinearProbe()  # noqa: RUF009 - frozen, so it can be shared
    neighbours: Neighbours = Neighbours()  # noqa: RUF009
    seed: Seed = Seed(0)  # noqa: RUF009

    def __post_init__(self) -> None:
        if not getattr(self.method, "reconstructs", False):
            raise InputError("Only masked-autoencoder methods, such as podfcssv, can be probed.")

    @property
    def net(self) -> Net:
        """The network."""
        found: Net = getattr(self.method, "net")  # noqa: B009 - methods of this kind have one
        return found

    @cached_property
    def tables(self) -> dict[int, tuple[Table, Table]]:
        """(training samples, test samples) of each task, of all clients."""
        return {task: (self._some(self._train(task)), self._some(self._test(task))) for task in set(self.stages)}

    def _train(self, task: int) -> Table:
        pooled = self.stream.tasks[task].pooled()
        return pooled.site("pooled", 0).train

    def _test(self, task: int) -> Table:
        tables = [self.stream.evaluation_of(client, "test", task) for client in self.stream.evaluated]
        index = [table.all_rows() for table in tables if table is not None]
        if not index:
            raise InputError(f"Task {task} has no test samples. Give the recipe data.test.")
        return Table(self.stream.tasks[task].columns, torch.unique(torch.cat(index)), self.stream.prepare)

    def _some(self, table: Table) -> Table:
        if self.rows is None or len(table) <= self.rows:
            return table
        chosen = torch.randperm(len(table), generator=self.seed.fold("rows").torch())[: self.rows].sort().values
        return replace(table, index=table.all_rows()[chosen])

    def features(self, model: Params, table: Table) -> Labelled:
        """Features and labels of all rows, with nothing hidden."""
        return features(self.net, model, table, None), table.columns["y"].index_select(0, table.all_rows())

    @cached_property
    def apart(self) -> bool:
        """Whether no two tasks share a class, so that one probe can tell the classes of all tasks from each other."""
        seen = [
            set(self.tables[task][0].columns["y"][self.tables[task][0].all_rows()].tolist()) for task in self.tables
        ]
        return sum(map(len, seen)) == len(set().union(*seen))

    def scores(self, model: Params) -> dict[str, list[float]]:
        """Of each measure a score for the task of each stage.

        ``probe`` and ``neighbours`` tell the classes of one task apart, ``probe_all`` and ``neighbours_all`` those of
        all tasks (where tasks share none); ``loss`` is that of guessing hidden patches of test samples.
        """
        with one_thread():
            known = {t: tuple(self.features(model, part) for part in pair) for t, pair in self.tables.items()}
            found: dict[str, dict[int, float]] = {"probe": {}, "neighbours": {}, "loss": {}}
            for task, (train, test) in known.items():
                found["probe"][task] = _share(self.probe(train, test, self.seed))
                found["neighbours"][task] = _share(self.neighbours(train, test))
                found["loss"][task] = reconstruct(self.method.predict, model, self.tables[task][1]).loss
            if self.apart and len(known) > 1:
                found |= self._together(known)
        return {name: [values[task] for task in self.stages] for name, values in found.items()}

    def _together(self, known: dict[int, tuple[Labelled, ...]]) -> dict[str, dict[int, float]]:
        (x, y), (new, truth) = (
            tuple(torch.cat(parts) for parts in zip(*(pair[i] for pair in known.values()), strict=True)) for i in (0, 1)
        )
        sizes = [len(pair[1][0]) for pair in known.values()]
        right = {
            "probe_all": self.probe((x, y), (new, truth), self.seed),
            "neighbours_all": self.neighbours((x, y), (new, truth)),
        }
        return {n: {t: _share(part) for t, part in zip(known, r.split(sizes), strict=True)} for n, r in right.items()}

    def mean_scores(self, models: Sequence[Params]) -> dict[str, list[float]]:
        """The mean over several models, such as those of clients that learn alone."""
        each = [self.scores(model) for model in models]
        return {n: torch.tensor([s[n] for s in each]).mean(0).tolist() for n in each[0]}


def _share(right: Tensor) -> float:
    return float(right.double().mean())


def summary(before: dict[str, list[float]], after: Sequence[dict[str, list[float]]]) -> dict[str, Row]:
    """Of each measure its matrix (a row for each stage), the scores before, and the numbers of :func:`continual`.

    Of a loss, ``forgetting`` is how far it is above its least, and transfers count a fall as gain.
    """
    found = {}
    for name in before:
        sign = -1.0 if name == "loss" else 1.0
        matrix = [row[name] for row in after]
        numbers = asdict(continual([[sign * v for v in row] for row in matrix], [sign * v for v in before[name]]))
        numbers |= {n: sign * numbers[n] for n in ("average", "incremental")}
        found[name] = {"matrix": matrix, "before": before[name], **numbers}
    return found


def evaluate(folder: str | Path, rows: int | None = None) -> Row:
    """Probe what a run on a stream kept of each stage; the numbers are also written to its metrics/continual.json.

    Example:
        >>> evaluate("runs/smoke-1a2b3c4d")["measures"]["probe"]["forgetting"]  # doctest: +SKIP
        0.02
    """
    return keep(Recalled.of(Path(folder), rows))


def keep(run: Recalled) -> Row:
    """All numbers of a run, also in its folder."""
    found = run.told()
    write_atomic(run.folder / FILE, to_json(found, indent=1).encode())
    return found


@dataclass(frozen=True)
class Recalled:
    """A run on a stream, with what it kept of each stage."""

    folder: Path
    kind: str
    seed: int
    evaluator: TaskEvaluator
    stages: tuple[Stage, ...]

    @classmethod
    def of(cls, folder: Path, rows: int | None = None) -> Recalled:
        """From the folder; the data are made anew by its recipe."""
        config = config_in(folder)
        stream, _ = federations_of(config)
        if not isinstance(stream, Stream):
            raise InputError(
                f"The data of '{folder}' do not change over time. Measuring forgetting needs a "
                "stream: add [stream] to the recipe."
            )
        stages = tuple(stages_in(folder))
        if not stages:
            raise InputError(
                f"'{folder}' has no saved stages, or has not finished the first one. Set output.stages = true and "
                "run it again."
            )
        tasks = tuple(stream.clock.task(stage.round - 1) for stage in stages)
        method = method_of(config, stream)
        evaluator = TaskEvaluator(method, stream, tasks, rows, seed=Seed(config.seed))
        return cls(folder, config.method.kind, config.seed, evaluator, stages)

    @property
    def start(self) -> Params:
        """The model before the first round: for adapters, the frozen backbone."""
        return self.evaluator.net.init(Seed(self.seed).fold("server"))

    def models(self, stage: Stage) -> tuple[Params, ...]:
        """The global model after a stage, or all clients' models."""
        whole = self.evaluator.method.global_model(stage.state)
        return stage.models if whole is None else (whole,)

    def bank(self) -> dict[str, list[int]]:
        """Of each row of the bank at the end: data rows behind it, merges, and the rounds it came and was last used."""
        bank = self.stages[-1].state.bank
        rounds = {name: (getattr(bank, name) + 1).tolist() for name in ("born", "used")}
        return {"counts": bank.counts.tolist(), "merges": bank.merges.tolist(), **rounds}

    def told(self) -> Row:
        """All numbers."""
        before = self.evaluator.scores(self.start)
        after = [self.evaluator.mean_scores(self.models(stage)) for stage in self.stages]
        rounds = RunFolder(self.folder).rows("metrics/rounds.jsonl")
        names = ("round", "train_loss", "test_loss", "bytes_up", "bytes_down", "bank")
        return {
            "folder": str(self.folder),
            "method": self.kind,
            "seed": self.seed,
            "tasks": list(self.evaluator.stages),
            "rounds": [stage.round for stage in self.stages],
            "rows": {task: [len(part) for part in pair] for task, pair in self.evaluator.tables.items()},
            "measures": summary(before, after),
            "bank": self.bank(),
            "by_round": [{n: v for n, v in row.items() if n in names or n.startswith("prototypes_")} for row in rounds],
        }
