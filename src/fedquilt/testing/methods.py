"""What every method promises, one function for each property; each gives what is wrong with a method, in words."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from itertools import count, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import SkipTest
from unittest.mock import patch

import torch

from fedquilt.core.capture.steps import UpdateSteps
from fedquilt.core.exchange import Context, Method
from fedquilt.core.params import Params, finite
from fedquilt.core.seed import Seed
from fedquilt.data import Federation
from fedquilt.errors import RoundError
from fedquilt.metrics.reconstruct import reconstruct
from fedquilt.records.record import pack, tensors_in, unpack
from fedquilt.rounds.client import one_thread
from fedquilt.rounds.engine import Engine
from fedquilt.runs.runner import run
from fedquilt.testing.checks import Check, CheckReport, Problems, report_of, result_of
from fedquilt.testing.faults import Corrupting, Shuffled, Tampering
from fedquilt.testing.spoiling import ALWAYS, KINDS, Spoil, Spoiling
from fedquilt.testing.toy import digits
from fedquilt.testing.trial import EndedRun, Trial, clients_log

Property = Callable[[Trial], Problems]


# It learns, and always the same


def stays_finite(trial: Trial) -> Problems:
    """The state stays finite, and no honest client is left out."""
    if not finite(tensors_in(trial.reference.snapshot.state)):
        yield "The server's state is not finite. Try a smaller learning rate."
    for one in trial.reference.left_out:
        yield f"Client {one.client!r} was left out of round {one.round + 1}: {one.reason}"


def learns(trial: Trial) -> Problems:
    """Better, on average over clients, than answering each client's most frequent label; for methods that guess
    patches, better than before the first round."""
    metrics, rounds = trial.reference.numbers, trial.rounds
    if trial.guesses:
        before = untrained(trial)
        if not metrics["test_loss"] < 0.995 * before:
            yield f"After {rounds} rounds the test loss is {metrics['test_loss']:.4f}; before, it was {before:.4f}."
        return
    if "test_accuracy" not in metrics:
        raise SkipTest("no client has test samples")
    chance = trial.federation.majority().personal
    if not metrics["test_accuracy"] > 1.3 * chance:
        yield (
            f"After {rounds} rounds the test accuracy is {metrics['test_accuracy']:.3f}; the most frequent label of "
            f"each client gives {chance:.3f}. Give the method settings with which it learns so fast, or more rounds."
        )


def untrained(trial: Trial) -> float:
    """The mean over clients of the loss of models before any training."""
    method: Any = trial.method
    with one_thread():
        model = method.net.init(Seed(0))
        tables = [t for c in trial.federation.evaluated if (t := trial.federation.evaluation(c, "test")) is not None]
        return sum(reconstruct(method.predict, model, t).loss for t in tables) / len(tables)


def same_again(trial: Trial) -> Problems:
    """Two runs with one seed are equal."""
    if trial.straight[0].digests[trial.rounds - 1] != trial.reference.digest:
        yield "Two runs with one seed differ. Take all randomness from context.seed or the seed you are given."


def same_elsewhere(trial: Trial) -> Problems:
    """Worker processes end in the same state as ``local``, with the same metrics."""
    with trial.elsewhere() as engine:
        found = trial.run(engine=engine)
    if found.digest != trial.reference.digest:
        yield "The result in another process differs. Does the method keep something outside its states?"
    yield from _other_numbers(found, trial.reference)


def same_in_any_order(trial: Trial) -> Problems:
    """Who is asked first does not matter."""
    if trial.run(engine=Shuffled(1)).digest != trial.reference.digest:
        yield "The result depends on the order of client updates. Does a client's work leave something for the next one?"


def same_without_capture(trial: Trial) -> Problems:
    """With every step made by autograd, the same bits as with captured steps."""
    if not trial.reference.captured:
        raise SkipTest("none of its steps are captured")
    with patch.object(UpdateSteps, "step", lambda self, moving, eager: eager()):
        found = trial.run()
    if found.digest != trial.reference.digest:
        yield "Captured steps differ from plain ones. Is the loss a pure function? Net(..., capture=False) is plain."


def resumes(trial: Trial) -> Problems:
    """A run that stopped half-way and went on ends as one that was not interrupted."""
    straight, log = trial.straight
    with TemporaryDirectory() as folder:
        whole = partial(run, trial.method, trial.federation, rounds=2 * trial.rounds, folder=Path(folder))
        for snapshot in whole(engine="local"):
            if snapshot.round == trial.rounds:
                break
        resumed = trial.run(rounds=2 * trial.rounds, folder=Path(folder))
        if clients_log(folder) != log:
            yield "The log of clients' scores differs from that of a run that was not interrupted."
    if len(resumed.digests) != trial.rounds:
        yield f"It went on with {len(resumed.digests)} rounds, where {trial.rounds} were left."
    if resumed.digest != straight.digest:
        yield "A run that stopped and went on differs from one that did not. Is all that it keeps in its states?"
    yield from _other_numbers(resumed, straight)


def _other_numbers(found: EndedRun, expected: EndedRun) -> Problems:
    for name in sorted(found.numbers.keys() | expected.numbers.keys()):
        if found.numbers.get(name) != expected.numbers.get(name):
            yield f"{name} is {found.numbers.get(name)} there, and {expected.numbers.get(name)} here."


# Records and pure functions


def survives_packing(trial: Trial) -> Problems:
    """Every state and message, packed and unpacked, has its type and its bits."""
    for trip in trial.play.trips:
        for value in trip.values:
            again = unpack(pack(value))
            pairs = list(zip(tensors_in(again), tensors_in(value), strict=True))
            same = type(again) is type(value) and pack(again) == pack(value)
            if not same or not all(a.shape == b.shape and torch.equal(a, b) for a, b in pairs):
                yield f"exchange '{trip.exchange.name}': a {type(value).__name__} is not itself after an exchange."


def changes_no_argument(trial: Trial) -> Problems:
    """States, messages and data are the same before and after every function; what is new is in new records."""
    yield from trial.play.changed
    first, last = trial.play.trips[0], trial.play.trips[-1]
    if pack(first.state) == pack(last.next) and pack(first.before) == pack(last.after):
        yield f"After {trial.rounds} rounds, neither the server's state nor that of a client has changed."


def questions_change_nothing(trial: Trial) -> Problems:
    """Models can be asked for and used, and the state can hear of scores: all states stay as they are."""
    method, trip = trial.method, trial.play.trips[0]
    given = [trip.next, trip.sent, trip.after]
    marks = [pack(value) for value in given]
    models = [method.personal_model(s, c) for s, c in zip(trip.sent, trip.after, strict=True)]
    whole = method.global_model(trip.next)
    for model in [*models, *([] if whole is None else [whole])]:
        yield from _predicts(trial, model)
    method.observe(trip.next, {"valid_accuracy": 0.5})
    if [pack(value) for value in given] != marks:
        yield "personal_model, global_model, predict or observe changes what it is given."


def _predicts(trial: Trial, model: Params) -> Problems:
    rows = trial.federation.site(trial.federation.ids[0], 0).train.whole()
    kept = pack(model)
    shape = tuple(trial.method.predict(model, rows).shape)
    expected = (len(rows),) if trial.guesses else (len(rows), trial.federation.classes)
    if shape != expected:
        yield f"predict gives a tensor of shape {shape}, not {expected}."
    if pack(model) != kept:
        yield "predict changes the model."


# Replies that do not come, or are wrong


def stays_without_replies(trial: Trial) -> Problems:
    """With no replies, ``up`` returns the state that it was given."""
    for trip in trial.play.trips:
        if pack(trip.exchange.up(trip.state, iter(()), Context(0, None, Seed(0)))) != pack(trip.state):
            yield f"exchange '{trip.exchange.name}': without replies, up must return the state that it was given."


def refuses_nan(trial: Trial) -> Problems:
    """A reply with NaN in it is left out: the run is that without the client."""
    bad = Corrupting(base=trial.method, client=trial.suspect, kind="nan")
    return _left_out(trial, lambda: trial.run(bad, score=None))


def refuses_other_shapes(trial: Trial) -> Problems:
    """A reply with a tensor of another shape is left out."""
    bad = Corrupting(base=trial.method, client=trial.suspect, kind="shape")
    return _left_out(trial, lambda: trial.run(bad, score=None))


def refuses_other_types(trial: Trial) -> Problems:
    """A reply that is no such record is left out."""
    engine = Tampering(
        trial.suspect, lambda frame: pack(replace(unpack(frame), upload="not what was asked for"), compact=True)
    )
    return _left_out(trial, lambda: trial.run(engine=engine, score=None))


def refuses_spoilt_fields(trial: Trial, step: int = 7) -> Problems:
    """Whatever is in one field of a reply, the run goes on, and at most its sender is left out."""
    if len(trial.source.ids) == 1:
        raise SkipTest("there is one client only")
    honest = Spoiling(None, {})
    trial.run(engine=honest, score=None)
    place = count(trial.offset)
    for exchange, fields in honest.seen.items():
        lost = trial.run(engine=Spoiling(Spoil(trial.suspect, exchange), honest.memo), score=None).digest
        for path, kind in product(sorted(fields, key=repr), KINDS):
            if next(place) % step == 0:
                yield from _spoilt(trial, honest, Spoil(trial.suspect, exchange, path, kind), lost)


def _spoilt(trial: Trial, honest: Spoiling, spoil: Spoil, lost: str) -> Problems:
    """What is wrong with a run with one spoilt field; ``lost`` is the digest of the run without these uploads."""
    engine = Spoiling(spoil, honest.memo)
    try:
        found = trial.run(engine=engine, score=None)
    except Exception as error:
        yield f"{spoil}: the run ended: {type(error).__name__}: {error}"
        return
    out = {one.client for one in found.left_out}
    declared = spoil.kind == "none" and (spoil.exchange, spoil.path) in honest.optional
    if not engine.hit:
        return
    if out - {trial.suspect}:
        yield f"{spoil}: honest clients were left out: {out - {trial.suspect}}."
    elif out and found.digest != lost:
        yield f"{spoil}: refused, but the run is not that without the upload."
    elif not out and spoil.kind in ALWAYS and not declared:
        yield f"{spoil}: accepted. Declare the field's type, or let the exchange's check refuse it."


def _left_out(trial: Trial, spoilt: Callable[[], EndedRun]) -> Problems:
    """What is wrong with a run in which one client's replies are spoilt."""
    advice = "Declare the types of the upload's fields, and let the exchange's check look at names and shapes."
    if len(trial.source.ids) == 1:
        try:
            spoilt()
        except RoundError:
            return
        yield f"The only client's wrong reply was taken. {advice}"
        return
    found, client = spoilt(), trial.suspect
    if found.digest != trial.without_suspect.digest:
        yield f"The run with wrong replies of client {client!r} differs from the run without that client. {advice}"
    if others := {one.client for one in found.left_out} - {client}:
        yield f"Honest clients were left out: {others}."
    asked = any(update.client == client for update in trial.reference.snapshot.log.updates)
    if asked and (found.digest == trial.reference.digest or len(found.snapshot.log.quarantined) != 1):
        yield f"Wrong replies of client {client!r} left no trace. {advice}"


PROPERTIES: tuple[Property, ...] = (
    stays_finite,
    learns,
    same_again,
    same_elsewhere,
    same_in_any_order,
    same_without_capture,
    resumes,
    survives_packing,
    changes_no_argument,
    questions_change_nothing,
    stays_without_replies,
    refuses_nan,
    refuses_other_shapes,
    refuses_other_types,
    refuses_spoilt_fields,
)


def checks_of(
    method: Method,
    federation: Federation | None = None,
    *,
    rounds: int = 2,
    engine: Engine | None = None,
    leave_out: Iterable[str] = (),
) -> list[Check]:
    """Every check of a method, for ``pytest.mark.parametrize("check", checks_of(method), ids=str)``.

    Checks share the runs that they compare, so that each run is made once.

    Args:
        method: The method, with settings under which it learns in so many rounds.
        federation: The data; by default the digits of :func:`fedquilt.testing.digits`. Small data are enough.
        rounds: How many rounds a run has: enough to make every exchange.
        engine: An engine with processes of its own, which stays open; by default two workers are started.
        leave_out: Names of checks that are not wanted.

    Example:
        >>> from fedquilt.testing import checks_of, fedavg
        >>> [check.name for check in checks_of(fedavg())][:2]
        ['stays_finite', 'learns']
    """
    trial = Trial(method, digits() if federation is None else federation, rounds, engine)
    return checks_on(trial, leave_out)


def checks_on(trial: Trial, leave_out: Iterable[str] = ()) -> list[Check]:
    """Every check, of the method on this trial."""
    return [Check(p.__name__, partial(p, trial)) for p in PROPERTIES if p.__name__ not in set(leave_out)]


def check_method(method: Method, federation: Federation | None = None, **options: Any) -> CheckReport:
    """Run every check of a method; options as in :func:`checks_of`.

    It gives a report of the checks that passed, and of those that do not apply, with the reason. If any fails, an
    AssertionError names each of them and says what to look at.
    """
    return report_of(checks_of(method, federation, **options), type(method).__name__)


def check(method: Method, federation: Federation, *, rounds: int = 2, workers: bool = True) -> list[str]:
    """What is wrong with a method on these data, in words: an empty list when nothing is.

    Every check of :func:`check_method` but that it learns: the data may be few.

    Args:
        method: The method to check.
        federation: Small data are enough.
        rounds: How many rounds each time; enough to reach every exchange.
        workers: Whether to start worker processes too.
    """
    left_out = ["learns", *([] if workers else ["same_elsewhere"])]
    results = map(result_of, checks_of(method, federation, rounds=rounds, leave_out=left_out))
    return list(dict.fromkeys(line for result in results if result.status == "failed" for line in result.words))
