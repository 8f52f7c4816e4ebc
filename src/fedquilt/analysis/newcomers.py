"""Clients that never took part: how well does what was learned serve them?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedquilt.core.deployed import first_state
from fedquilt.core.exchange import Context, Method
from fedquilt.core.net import Net, logits_of
from fedquilt.core.params import Names, Params, everything
from fedquilt.core.plain import Row
from fedquilt.core.seed import Seed
from fedquilt.core.table import Batch, ClientId, Site, Source, Table
from fedquilt.core.train import InTurn, Job, Train, Trained, constant
from fedquilt.errors import InputError, StageError
from fedquilt.metrics.classify import classify
from fedquilt.metrics.evaluation import score_row
from fedquilt.pieces.optimizers import SGD
from fedquilt.rounds.client import Score, one_thread
from fedquilt.runs.runner import Snapshot

MODES = ("none", "fine_tune", "head")
EPOCHS = 5


@dataclass(frozen=True)
class Newcomers:
    """How newcomers fare in one mode.

    Args:
        mode: 'none', 'fine_tune' or 'head'.
        start: What each was given: 'global model', or 'fresh client' where the method has no global model.
        epochs: Passes over a newcomer's own training samples; 0 for 'none'.
        clients: For each newcomer its test samples, every metric, and the accuracy of always answering its most
            frequent training label (majority).
        mean, std, worst: Of the accuracies, over newcomers.
        majority: The mean of the majority accuracies: trivial baseline.
    """

    mode: str
    start: str
    epochs: int
    clients: tuple[Row, ...]
    mean: float
    std: float
    worst: float
    majority: float


@dataclass(frozen=True)
class LearnedRun:
    """What a run left behind, as far as newcomers need it: the method, the server's state, rounds done, the seed."""

    method: Method
    state: object
    done: int
    seed: Seed


def evaluate_newcomers(
    trained: Snapshot | Method | str | Path,
    federation: Source | None = None,
    mode: str = "fine_tune",
    epochs: int = EPOCHS,
    *,
    state: object = None,
    rounds: int = 1,
    seed: int = 0,
    score: Score = classify,
) -> Newcomers:
    """Score clients that never took part, on their own test samples.

    mode 'none' takes the global model as it is. 'fine_tune' trains it for some epochs on the newcomer's own training
    rows, 'head' only its part called head; both with cross-entropy, the batch size and the optimiser of the method's
    local work, at its initial learning rate. Where the method has no global model (FedPer's heads stay at home, say),
    'none' is refused, and the others start from what a client has before its first client update: the method's
    ``personal_model`` of the download and a fresh client state. A method may say otherwise:
    ``newcomer_model(download, client, site, context)`` gives the model that a newcomer with this data starts from,
    ``newcomer_head`` names the parts that count as head.

    Args:
        trained: A snapshot of a run; or the folder of a run; or a method, with the server's ``state``.
        federation: The newcomers and their data, for example of :func:`fedquilt.data.held_out`; for the folder of a run
            by default those its recipe holds out.
        mode: 'none', 'fine_tune' or 'head'.
        epochs: Passes over a newcomer's training samples.
        state, rounds, seed: With a method: the server's state, after how many rounds, and the seed of the run.
        score: How a model is scored.

    Example:
        >>> evaluate_newcomers(snapshot, newcomers, mode="head", epochs=2).mean  # doctest: +SKIP
        0.87
    """
    if mode not in MODES:
        raise InputError(f"mode must be one of {', '.join(MODES)}, got {mode!r}.")
    if epochs < 1:
        raise InputError(f"epochs must be at least 1, got {epochs}.")
    learned, newcomers = _learned(trained, federation, state, rounds, seed)
    with one_thread():
        return _evaluated(learned, newcomers, mode, 0 if mode == "none" else epochs, score)


def _learned(
    trained: Snapshot | Method | str | Path, federation: Source | None, state: object, rounds: int, seed: int
) -> tuple[LearnedRun, Source]:
    if isinstance(trained, str | Path):
        from fedquilt.analysis.afterwards import learned_in

        return learned_in(Path(trained), federation)
    if federation is None:
        raise InputError("Give the federation of the newcomers, for example of fedquilt.data.held_out(...).")
    if isinstance(trained, Snapshot):
        return LearnedRun(trained.method, trained.state, trained.round, trained.seed), federation
    if state is None:
        raise InputError("A method has no trained weights: give the server state too, or a snapshot of a run.")
    return LearnedRun(trained, state, rounds, Seed(seed)), federation


def _check_scorable(learned: LearnedRun, mode: str, whole: Params | None, own: object) -> None:
    """Raise unless a newcomer of this mode has a model, and one that classifies."""
    if getattr(learned.method, "reconstructs", False):
        raise InputError(f"{type(learned.method).__name__} is not a classifier, so new clients cannot be scored.")
    task = getattr(getattr(learned.method, "net", None), "task", None)
    if task is not None and task.kind != "classification":
        raise InputError(f"New clients are scored by the class of each row, and the task of this run is {task.name}.")
    if mode == "none" and whole is None and own is None:
        raise InputError(
            f"{type(learned.method).__name__} has no global model: its clients use personal models. "
            "A new client has to train first: mode 'fine_tune' or 'head'."
        )


def _evaluated(learned: LearnedRun, source: Source, mode: str, epochs: int, score: Score) -> Newcomers:
    whole, own = learned.method.global_model(learned.state), getattr(learned.method, "newcomer_model", None)
    _check_scorable(learned, mode, whole, own)
    work = None if mode == "none" else _work(learned.method, mode, epochs)
    rows = []
    for client in source.ids:
        table = source.evaluation(client, "test", learned.done - 1)
        if table is not None:
            site = source.site(client, learned.done - 1)
            model = _model(learned, whole, client, site, work)
            rows.append(_row(client, score(learned.method.predict, model, table), site, table))
    if not rows:
        raise InputError("No newcomer has test samples. Make the federation with test > 0.")
    found = np.array([row["accuracy"] for row in rows])
    start = "own choice" if own is not None else "fresh client" if whole is None else "global model"
    return Newcomers(
        mode,
        start,
        epochs,
        tuple(rows),
        float(found.mean()),
        float(found.std()),
        float(found.min()),
        float(np.mean([row["majority"] for row in rows])),
    )


def _model(learned: LearnedRun, whole: Params | None, client: ClientId, site: Site, work: Train | None) -> Params:
    """What this newcomer would use."""
    method, context = learned.method, Context(learned.done, client, learned.seed.fold("newcomer", client))
    fresh, own = first_state(method, learned.seed, client), getattr(method, "newcomer_model", None)
    model: Params
    if own is not None:
        model = own(download_of(learned, client), fresh, site, context)
    else:
        model = whole if whole is not None else method.personal_model(download_of(learned, client), fresh)
    if work is None:
        return model
    try:
        return work.run(model, None, site, context)[3].params
    except StageError as error:
        raise (error.__cause__ or error) from error


def download_of(learned: LearnedRun, client: ClientId) -> Any:
    """What the first exchange of the next round would bring."""
    exchanges = {e.name: e for e in learned.method.exchanges()}
    names = learned.method.plan(learned.state, learned.done) or tuple(exchanges)
    return exchanges[names[0]].downloaded(learned.state, client, learned.done, learned.seed)


@dataclass(frozen=True)
class Tuning:
    """Cross-entropy of what the method predicts with these params.

    Where they are a model of the net and nothing else, in training mode, so that BatchNorm follows the newcomer.
    """

    method: Method
    net: Net

    @property
    def trainable(self) -> tuple[str, ...]:
        """Those of the network."""
        return self.net.trainable

    def __call__(self, params: Params, fixed: Mapping[str, object], batch: Batch) -> Tensor:
        alone = params.keys() <= set(self.net.names)
        scores = logits_of(self.net(params, batch, train=True)) if alone else self.method.predict(params, batch)
        if not scores.requires_grad:
            raise InputError(
                f"What {type(self.method).__name__} predicts does not depend on the part to tune. Use mode 'fine_tune'."
            )
        return F.cross_entropy(scores, batch.y)


def _work(method: Method, mode: str, epochs: int) -> Train:
    """The training of a newcomer: the method's, as far as it has one, on plain cross-entropy."""
    net: Net | None = getattr(method, "net", None)
    if net is None:
        raise InputError(f"{type(method).__name__} has no network (attribute net) to tune; use mode 'none'.")
    only: Names = everything if mode == "fine_tune" else net.under(*getattr(method, "newcomer_head", ("head",)))
    if not any(only(name) for name in net.trainable):
        raise InputError(f"The head of this network has nothing that is trained; its parts are {_tops(net)}.")
    changes: dict[str, Any] = {
        "start": _begin,
        "finish": _end,
        "objective": Tuning(method, net),
        "epochs": epochs,
        "steps": None,
        "only": only,
        "schedule": constant,
    }
    found = _local_work(method)
    return Train(optimizer=SGD(0.05), **changes) if found is None else replace(found, **changes)


def _local_work(method: Method) -> Train | None:
    """The first training among the method's exchanges."""
    for exchange in method.exchanges():
        work: Any = exchange.work.works[0] if isinstance(exchange.work, InTurn) else exchange.work
        if isinstance(work, Train):
            return work
    return None


def _begin(download: Params, client: None, site: Site, context: Context) -> Job:
    return Job(params=download)


def _end(job: Job, trained: Trained, client: None, site: Site, context: Context) -> tuple[None, None]:
    return None, None


def _tops(net: Net) -> str:
    return ", ".join(sorted({name.split(".")[0] for name in net.trainable}))


def _row(client: ClientId, score: Any, site: Site, table: Table) -> Row:
    answer = int(torch.bincount(_labels(site.train)).argmax())  # the smallest on a tie
    return {
        **score_row(score),
        "client": client,
        "rows": score.rows,
        "majority": float((_labels(table) == answer).double().mean()),
    }


def _labels(table: Table) -> Tensor:
    return table.columns["y"].index_select(0, table.all_rows())


def every_mode(learned: LearnedRun, newcomers: Source, epochs: int = EPOCHS, score: Score = classify) -> Row:
    """All modes, as plain values; a mode that this method cannot have says why."""
    found: Row = {}
    with one_thread():
        for mode in MODES:
            try:
                found[mode] = asdict(_evaluated(learned, newcomers, mode, 0 if mode == "none" else epochs, score))
            except InputError as error:
                found[mode] = {"mode": mode, "refused": str(error)}
    return {"rounds": learned.done, "newcomers": len(newcomers.ids), "modes": found}
