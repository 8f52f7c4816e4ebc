"""The function ``run``: a method on a federation, from Python."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from fedquilt.config.links import Network
from fedquilt.core.exchange import Method
from fedquilt.core.table import Divided
from fedquilt.metrics.classify import classify
from fedquilt.pieces.robust.attackers import Attackers
from fedquilt.pieces.robust.cohort import CohortChecks
from fedquilt.rounds.client import Score
from fedquilt.rounds.engine import Engine
from fedquilt.rounds.scale import GROWTH
from fedquilt.runs.build import run_of
from fedquilt.runs.callbacks import Callback
from fedquilt.runs.engines import make_engine as make_engine
from fedquilt.runs.given import Given, OwnMetric, settings_of
from fedquilt.runs.play import Run as Run
from fedquilt.runs.progress import progress_of
from fedquilt.runs.snapshot import Snapshot as Snapshot
from fedquilt.storage.federation_file import write_federation


def run(
    method: Method,
    federation: Divided,
    *,
    rounds: int,
    engine: str | Engine = "auto",
    seed: int = 0,
    folder: str | Path | None = None,
    evaluate_every: int = 1,
    evaluate_clients: int | None = None,
    evaluate_local: bool = False,
    patience: int | None = None,
    min_delta: float = 0.0,
    snapshot_every: int = 1,
    processes: int | None = None,
    devices: Sequence[str] = (),
    personal_models: bool = False,
    checkpoints: bool = False,
    score: Score | None = classify,
    network: Network | None = None,
    exact: bool = True,
    min_replies: float = 0.5,
    max_growth: float = GROWTH,
    checks: CohortChecks | None = None,
    attackers: Attackers | None = None,
    energy: bool = True,
    metrics: Sequence[OwnMetric] = (),
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
) -> Iterator[Snapshot]:
    """Run a method on a federation and yield a :class:`Snapshot` after every round.

    The caller owns the loop: stop, print or save as you like.

    Args:
        method: For example ``FedAvg(objective=net)``.
        federation: Whose data; see :class:`fedquilt.data.Federation`.
        rounds: How many rounds in all.
        engine: 'auto', 'local', 'workers', 'lanes', 'flower-simulation', or an engine of your own (which stays open).
            Numbers do not depend on it, but for rounding with 'lanes'.
        seed: Everything random follows from it.
        folder: If given, metrics, models and snapshots go there, and a run found there goes on where it stopped.
        evaluate_every: Score models after every so many rounds, and after the last.
        evaluate_clients: Score only so many clients, always the same; None for all.
        evaluate_local: Also score the cohort before and after local training, where an evaluation is due.
        patience, min_delta: Stop when validation accuracy has not grown by min_delta for so many evaluations.
        snapshot_every: With a folder: write a snapshot after every so many rounds.
        processes: For all but 'local'; by default one per core.
        devices: For example ["cuda:0", "cuda:1"]; workers are mapped to them in turn.
        personal_models: With a folder: save every client's model at the end.
        checkpoints: With a folder: save what each client sent and the merged model, every round.
        score: How a model is scored; None for no evaluation.
        network: Links and devices of the virtual clock (``virtual_seconds`` of the metrics); None for no clock.
        energy: Count joules, where the machine has counters that can be read.
        exact: False lets 'auto' train clients side by side where that is faster; then numbers agree but for rounding.
        min_replies: How many clients of a cohort must give a usable reply, or the run stops: a count (1, 2, ...) or a
            share (a float up to 1.0).
        max_growth: How many times its past norm a part of the server's state may have after a round. One that leaves
            its scale makes the round void: states stay as they were. Three such rounds in a row stop the run.
        checks: Leave out replies that stand out from their cohort, see :class:`fedquilt.CohortChecks`.
        attackers: Malicious clients, in a simulation, see :class:`fedquilt.Attackers`.
        metrics: Functions of the scores and labels of all of a client's samples to a number, or metrics of
            :mod:`fedquilt.metrics.table`; known until the next run, comparison or sweep begins.
        callbacks: Told of the run as it goes, see :class:`fedquilt.Callback`.
        progress: None shows a bar in a terminal and in a notebook, and nothing where nobody watches; True also writes
            a line now and then into a pipe; False shows nothing.

    Example:
        >>> for snapshot in run(method, federation, rounds=10):  # doctest: +SKIP
        ...     print(snapshot.round, snapshot.metrics["test_accuracy"])
    """
    place = None if folder is None else Path(folder)
    config = settings_of(
        engine,
        place,
        rounds=rounds,
        seed=seed,
        evaluate_every=evaluate_every,
        evaluate_clients=evaluate_clients,
        evaluate_local=evaluate_local,
        patience=patience,
        min_delta=min_delta,
        snapshot_every=snapshot_every,
        processes=processes,
        devices=devices,
        personal_models=personal_models,
        checkpoints=checkpoints,
        network=network,
        exact=exact,
        min_replies=min_replies,
        max_growth=max_growth,
        energy=energy,
        metrics=metrics,
    )
    used = make_engine(engine, processes, devices, exact=exact)
    try:
        made = run_of(
            config, used, place, federation, given=Given(method, score, callbacks, checks, attackers, metrics)
        )
        if place is not None:
            write_federation(place, federation)
        with progress_of(progress) as shown:
            bar = shown.bar(config.name, rounds)
            made.journal.hear = bar.step
            for snapshot in made:
                for note in made.notes:
                    warnings.warn(note, stacklevel=2)
                made.notes.clear()
                bar.round(snapshot.round, snapshot.metrics, made.progress)
                yield snapshot
    finally:
        if isinstance(engine, str):
            used.close()
