"""What every engine promises, one function for each property."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from unittest import SkipTest

from fedquilt.core.exchange import Method, fraction
from fedquilt.core.params import Parts, everything_but, under
from fedquilt.data import Federation
from fedquilt.errors import ExchangeError
from fedquilt.methods.averaging.scaffold import Scaffold
from fedquilt.methods.clustered.ifca import IFCA
from fedquilt.methods.compressed import Compressed
from fedquilt.pieces.codecs import error_feedback, half, on, top_k
from fedquilt.pieces.optimizers import SGD
from fedquilt.rounds.engine import Engine
from fedquilt.runs.runner import run
from fedquilt.testing.checks import Check, CheckReport, Problems, report_of
from fedquilt.testing.faults import Deadly, FailingAt, Without
from fedquilt.testing.toy import WORK, digits, fedavg, network
from fedquilt.testing.trial import EndedRun, seen

LOST = 1  # the client that is lost


@dataclass(frozen=True)
class EngineTrial:
    """An engine on trial, and the data."""

    engine: Engine
    federation: Federation = field(default_factory=digits)

    def run(self, method: Method) -> EndedRun:
        """Two rounds on the engine."""
        return seen(method, self.federation, 2, self.engine)

    def local(self, method: Method) -> EndedRun:
        """Two rounds on ``local``."""
        return seen(method, self.federation, 2)


def methods() -> dict[str, Method]:
    """A method for each thing that an engine must carry."""
    private = Parts(shared=everything_but(under("head")), private=under("head"))
    return {
        "FedAvg": fedavg(),
        "a state at the clients": fedavg(parts=private),
        "a part of the clients": fedavg(cohort=fraction(0.5)),
        "two records a message": Scaffold(network(), **{**WORK, "optimizer": SGD(0.3)}),
        "several exchanges": IFCA(network(), n_clusters=2, starts="updates", **WORK),
        "codecs with a memory": Compressed(
            base=fedavg(), codec=on("delta", error_feedback(top_k(0.3))), download=half()
        ),
    }


def same_as_local(trial: EngineTrial) -> Problems:
    """One run after another ends as on ``local``: the same state, to the last bit, and the same metrics."""
    for what, method in methods().items():
        found, expected = trial.run(method), trial.local(method)
        if found.digests != expected.digests:
            yield f"{what}: the digests are not those of 'local'. Is every client update a function of its task alone?"
        names = sorted(n for n in expected.numbers if found.numbers.get(n) != expected.numbers[n])
        if names:
            yield f"{what}: other numbers than on 'local': {', '.join(names)}."


def tells_of_errors(trial: EngineTrial) -> Problems:
    """A client's work that raises ends the run with all names, or leaves that client out with the reason."""
    try:
        found = trial.run(FailingAt(base=fedavg(), client=LOST))
    except ExchangeError as error:
        if (error.client, error.stage, error.round, error.exchange) != (LOST, "work", 0, "train"):
            yield f"The error does not say where it happened: {error}"
        if "this client was told to fail" not in str(error):
            yield f"The error does not say why: {error}"
        return
    yield from _left_out(trial, found, LOST)


def tells_of_lost_clients(trial: EngineTrial) -> Problems:
    """A client whose process dies at every client update is left out with a reason; the run is that without it."""
    found = trial.run(Deadly(base=fedavg(), client=LOST))
    if found.digest == trial.local(fedavg()).digest:
        raise SkipTest("client updates are made in this process")
    yield from _left_out(trial, found, LOST)


def _left_out(trial: EngineTrial, found: EndedRun, client: int) -> Problems:
    told = [(one.client, one.round) for one in found.left_out]
    if told != [(client, 0), (client, 1)]:
        yield f"Client {client} is lost in both rounds; left out were (client, round): {told}. Yield a Lost for it."
    if found.digest != trial.local(Without(base=fedavg(), client=client)).digest:
        yield f"The run differs from the run without client {client}."


def serves_again(trial: EngineTrial) -> Problems:
    """After a run that failed, and one that was left in the middle, the next one is as if it had been the first."""
    with suppress(ExchangeError):
        trial.run(FailingAt(base=fedavg(), client=LOST))
    left = run(fedavg(), trial.federation, rounds=2, engine=trial.engine)
    next(left)
    if trial.run(fedavg()).digest != trial.local(fedavg()).digest:
        yield "A run after others differs. Forget the last run in begin()."


def has_facts(trial: EngineTrial) -> Problems:
    """What it records about itself can be written as JSON and names the engine."""
    facts = trial.engine.facts()
    try:
        json.dumps(facts)
    except TypeError as error:
        yield f"facts() cannot be written as JSON: {error}."
    if not facts.get("engine") or not isinstance(facts["engine"], str):
        yield f"facts()['engine'] should be the name of an engine, got {facts.get('engine')!r}."


def closes_twice(trial: EngineTrial) -> Problems:
    """It can be closed, and closed again."""
    trial.engine.close()
    trial.engine.close()
    yield from ()


PROPERTIES: tuple[Callable[[EngineTrial], Problems], ...] = (
    same_as_local,
    tells_of_errors,
    tells_of_lost_clients,
    serves_again,
    has_facts,
    closes_twice,
)


def checks_of_engine(engine: Engine, federation: Federation | None = None) -> list[Check]:
    """Every check of an engine, in an order that matters: the last one closes it."""
    trial = EngineTrial(engine) if federation is None else EngineTrial(engine, federation)
    return [Check(p.__name__, partial(p, trial)) for p in PROPERTIES]


def check_engine(engine: Engine, federation: Federation | None = None) -> CheckReport:
    """Run every check of an engine, which is closed at the end.

    Args:
        engine: The engine, which has not begun a run.
        federation: The data; by default the digits of :func:`fedquilt.testing.digits`. Its ids must include 1.
    """
    return report_of(checks_of_engine(engine, federation), type(engine).__name__)
