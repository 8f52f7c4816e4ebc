"""From checked settings to the objects of a run."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from fedquilt.config.codecs import check_codecs, with_codecs
from fedquilt.config.config import Config, Kinded, check_options, dump, flat
from fedquilt.config.data import federation_of as federation_of
from fedquilt.config.options import is_term, made
from fedquilt.config.tasks import task_of
from fedquilt.core.columns import PerColumn
from fedquilt.core.exchange import Cohort, Method, at_random, everyone, fraction
from fedquilt.core.net import Net, logits_of
from fedquilt.core.objective import Objective, Term
from fedquilt.core.plain import Row
from fedquilt.core.seed import Seed
from fedquilt.core.table import Divided
from fedquilt.core.task import Task
from fedquilt.core.train import InTurn, constant
from fedquilt.errors import ConfigError, FedquiltError, InputError
from fedquilt.methods.fedavg import FedAvg
from fedquilt.metrics.classify import classify
from fedquilt.metrics.energy import Meter
from fedquilt.models.registry import net as net_called
from fedquilt.own_code import own_errors, short, told
from fedquilt.pieces.objectives import cross_entropy, own_loss
from fedquilt.pieces.robust.attackers import Attackers
from fedquilt.pieces.robust.cohort import CohortChecks
from fedquilt.registry import lookup
from fedquilt.rounds.engine import Engine
from fedquilt.runs.callbacks import Callback
from fedquilt.runs.energy import OFF
from fedquilt.runs.engines import make_engine
from fedquilt.runs.given import Given
from fedquilt.runs.play import Run
from fedquilt.runs.preparation import agreed, tell_whole_numbers
from fedquilt.runs.trackers import RunInfo, Trackers
from fedquilt.storage.code import write_code
from fedquilt.storage.files import write_atomic
from fedquilt.storage.finished import result_of
from fedquilt.storage.folder import RunFolder


def method_of(config: Config, federation: Divided) -> Method:
    """The method, with its network for this federation's data."""
    if config.script is not None:
        found: Method = config.script.made("method")
        return found
    net = _network(config, federation)
    given, problems = check_options("method", config.method.kind, config.method.options, "method")
    if problems:
        raise ConfigError(problems)
    loss = None if config.train.loss is None else _loss(config.train.loss)
    objective = net if loss is None else Objective(net, (loss,))
    method = _made(config, {"objective": objective, **_training(config)}, given)
    if loss is not None and any(loss not in terms for terms in _terms(method)):
        raise InputError(
            f"train.loss: {short(config.method.kind)} has its own loss, which would replace yours. "
            "Remove train.loss, or use another method."
        )
    if federation.classes is None and not getattr(method, "reconstructs", False):
        raise InputError(
            f"The data have no labels, and {config.method.kind} learns from labels. Give y, or use a method that "
            "learns without: podfcssv, fedmae, mae_alone, mae_pooled."
        )
    check_task(method, federation)
    return with_codecs(method, config)


def _network(config: Config, federation: Divided) -> Net:
    """The network for rows of this shape, which computes as the settings say."""
    net = net_called(config.model.kind, row_shape(federation), federation.classes or 2, **config.model.options)
    precision, capture = config.train.precision, config.engine.capture
    task = fitted_task(config, federation)
    if task is not None:
        refuse_classes(lookup("method", config.method.kind).load(), short(config.method.kind), task)
    same = (precision, capture, task) == (net.precision, net.capture, None)
    return net if same else replace(net, precision=precision, capture=capture, task=task)


def _training(config: Config) -> Row:
    """How clients train, and which, by the names of FedAvg's arguments."""
    train = config.train
    return {
        "optimizer": made("optimizer", train.optimizer, "train.optimizer"),
        "schedule": constant if train.schedule is None else made("schedule", train.schedule, "train.schedule"),
        "epochs": train.epochs,
        "steps": train.steps,
        "batch_size": train.batch_size,
        "clip": train.clip,
        "cohort": _cohort(config),
        **({} if train.epochs_first is None else {"epochs_first": train.epochs_first}),
        **({} if train.loop is None else {"client_update": made("loop", train.loop, "train.loop")}),
    }


def fitted_task(config: Config, federation: Divided) -> Task | None:
    """The task with the numbers that training targets gave it; None for one class label for each row."""
    known: Any = federation
    found: Task | None = getattr(known, "task", None)
    if found is not None:
        return found
    asked = task_of(config.task)
    told: Row = getattr(known, "task_numbers", None) or {}
    given: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in told.items()}
    found = asked if asked is None or not given else replace(asked, **given)
    lacking = [] if found is None else [f"task.{name}" for name, value in found.numbers().items() if value is None]
    if lacking:
        raise InputError(
            f"{' and '.join(lacking)}: the rows are at sites of their own, so nobody knows their targets. Give the "
            "numbers in the recipe: [task] centre = 50.0, scale = 10.0."
        )
    return found


def check_task(method: Method, federation: Divided) -> None:
    """Raise unless the method can learn the task of these data, and its network is for that task."""
    net, known = getattr(method, "net", None), getattr(federation, "task", None)
    task: Task | None = getattr(net, "task", None)
    if known is not None and task is None:
        raise InputError(
            f"The data are for {known.name}, and the network makes scores of classes. Give it the task of the data: "
            "Net.of(...).for_task(federation.task)."
        )
    if task is None or task.kind == "classification":
        return
    name = type(method).__name__
    refuse_classes(method, name, task)
    if any(cross_entropy in terms for terms in _terms(method)):
        raise InputError(
            f"{name} has the loss cross_entropy, and the task is {task.name}. Give it the network alone, or its "
            "task as the term: Objective(net, (net.task,))."
        )


def refuse_classes(method: object, name: str, task: Task) -> None:
    """Raise if a method, or its class, says that it learns nothing but one class label for each row."""
    needs = getattr(method, "needs_classes", "")
    if getattr(method, "reconstructs", False) is True:
        needs = "learns features without targets"
    if needs and isinstance(needs, str) and task.kind != "classification":
        raise InputError(f"{name} {needs}, so it cannot be used for {task.name}. Take another method.")


def _loss(choice: Kinded) -> Term:
    """A loss of the user's own: a term of an objective, or as plain PyTorch has it."""
    entry, path = lookup("loss", choice.kind), "train.loss"
    given, problems = check_options("loss", choice.kind, choice.options, path)
    if problems:
        raise ConfigError(problems)
    maker = entry.load()
    if isinstance(maker, type):
        return own_loss(partial(maker, **given) if given else maker, makes=True)
    function: Term = partial(maker, **given) if given else maker
    return function if is_term(inspect.signature(maker).parameters) else own_loss(function)


def _terms(method: Method) -> Iterator[tuple[Term, ...]]:
    """Of each training that the method is known to make, the terms of its loss."""
    for exchange in method.exchanges():
        for work in exchange.work.works if isinstance(exchange.work, InTurn) else (exchange.work,):
            objective = getattr(work, "objective", None)
            objective = getattr(objective, "loss", objective)
            if isinstance(objective, Objective):
                yield objective.terms


def _made(config: Config, settings: Row, given: Row) -> Method:
    """The method from its maker."""
    entry = lookup("method", config.method.kind)
    maker = entry.load()
    name, takes = short(config.method.kind), inspect.signature(maker).parameters
    if "client_update" in settings and not (_takes_anything(takes) or takes.keys() & {"client_update", "base"}):
        raise InputError(f"train.loop: {name} does not support a custom training loop. Use another method.")
    method: Method
    if not entry.own:
        method = maker(**settings, **given)
        return method
    settings, given = _for_own(name, takes, config, settings, given)
    with own_errors(f"The method {name}"):
        method = maker(**settings, **given)
    if not hasattr(method, "exchanges"):
        raise InputError(f"{name} gave a {type(method).__name__}, which is not a method: it has no exchanges().")
    return method


def _takes_anything(takes: Mapping[str, inspect.Parameter]) -> bool:
    return any(p.kind is p.VAR_KEYWORD for p in takes.values())


def _for_own(
    name: str, takes: Mapping[str, inspect.Parameter], config: Config, settings: Row, given: Row
) -> tuple[Row, Row]:
    """Settings and options for a method of the user's own: what it takes by name, or FedAvg as its ``base``."""
    if "base" in takes and "objective" not in takes:
        common = {n: given[n] for n in ("aggregate", "shared_start") if n in given}
        return {"base": FedAvg(**settings, **common)}, {n: v for n, v in given.items() if n not in common}
    if _takes_anything(takes):
        return settings, given
    lost = [n for n in _asked_for(config, settings) if n.removeprefix("train.") not in takes]
    if lost or "objective" not in takes:
        missing = ", ".join(lost) or "the network"
        raise InputError(
            f"{name} has no place for {missing}. A method takes objective (the network) and what it should get of "
            "[train] and [cohort] by name, **settings for all of it, or base, which is FedAvg with all of it."
        )
    return {n: value for n, value in settings.items() if n in takes}, given


def _asked_for(config: Config, settings: Row) -> list[str]:
    """What the recipe itself says of local training and the cohort."""
    train = [f"train.{n}" for n in settings if n in config.train.model_fields_set]
    return train + (["cohort"] if config.cohort != type(config.cohort)() else [])


def row_shape(federation: Divided) -> tuple[int, ...]:
    """The shape of one prepared row; a federation whose data are elsewhere knows it by heart."""
    known: tuple[int, ...] | None = getattr(federation, "shape", None)
    if known is not None:
        return known
    first = federation.site(federation.ids[0], 0).train
    return tuple(first.rows(first.all_rows()[:1]).x.shape[1:])


def _cohort(config: Config) -> Cohort:
    if config.cohort.count is not None:
        return at_random(config.cohort.count)
    return everyone if config.cohort.fraction == 1.0 else fraction(config.cohort.fraction)


def engine_of(config: Config) -> Engine:
    """The engine the settings ask for."""
    chosen = config.engine
    return make_engine(chosen.kind, chosen.processes, chosen.devices, chosen.nodes, chosen.width, chosen.exact)


def run_of(
    config: Config,
    engine: Engine,
    folder: Path | None,
    federation: Divided | None = None,
    fresh: bool = False,
    meter: Meter | None = None,
    given: Given | None = None,
) -> Run:
    """The run of these settings in this folder; everything is checked before the folder is made, or made ``fresh``.

    What is ``given`` is not made from the settings; with it, a run needs no folder.
    """
    if given is None and config.script is not None:
        config.script.refuse()
    data = federation if federation is not None else federation_of(config)
    if given is not None:
        check_task(given.method, data)
    data = agreed(data, engine, config.data.standardise, Seed(config.seed), None if fresh else folder)
    objects = _objects(config, data, engine) if given is None else given
    method = objects.method
    tell_whole_numbers(method, data)
    if not engine.keeps_states:
        check_fits(method, data, getattr(method, "batch_size", config.train.batch_size), objects.score is classify)
        check_codecs(method, data, Seed(config.seed))
    if folder is not None:
        config = from_anywhere(config) if given is None else given.told(config, data)
        _lay_out(folder, config, fresh)
    return Run(
        method,
        data,
        rounds=config.rounds,
        seed=config.seed,
        engine=engine,
        evaluation=config.evaluate,
        stop=config.stop,
        snapshots=config.snapshot,
        folder=None if folder is None else RunFolder(folder, states_elsewhere=engine.keeps_states),
        identity="" if folder is None else config.identity(),
        score=objects.score,
        personal_models=config.output.personal_models,
        checkpoints=config.output.checkpoints,
        stages=config.output.stages,
        min_replies=config.cohort.min_replies,
        max_growth=config.cohort.max_growth,
        checks=objects.checks,
        attackers=objects.attackers,
        network=config.network,
        callbacks=(*callbacks_of(config), *trackers_of(config, folder), *objects.callbacks),
        meter=meter if config.meters.energy else Meter(why=OFF),
        withhold_test=config.output.withhold_test,
    )


def _objects(config: Config, data: Divided, engine: Engine) -> Given:
    """What the settings make of a run that a script may give instead."""
    return Given(method_of(config, data), checks=_checks(config), attackers=_attackers(config, engine))


def _lay_out(folder: Path, config: Config, fresh: bool) -> None:
    """The run's folder, with its settings and the user's own code; what was there is removed for a ``fresh`` run."""
    if fresh and folder.exists():
        RunFolder(folder).remove()
    write_code(folder, config.model_dump(exclude={"script"}))
    write_atomic(folder / "config.toml", f"# fedquilt run {folder.name}/config.toml\n{dump(config)}".encode())


def from_anywhere(config: Config) -> Config:
    """The settings with full paths, so that a folder they are in can be read from anywhere."""
    if config.data.path is not None:
        place = config.data.model_copy(update={"path": str(Path(config.data.path).resolve())})
        config = config.model_copy(update={"data": place})
    return config.model_copy(update={"model": config.model.model_copy(update=_full_paths(config))})


def _checks(config: Config) -> CohortChecks | None:
    if config.script is not None:
        found: CohortChecks | None = config.script.made("checks")
        return found
    return None if config.checks is None else CohortChecks(**config.checks.model_dump())


def _attackers(config: Config, engine: Engine) -> Attackers | None:
    """Who is malicious, in a simulation."""
    if config.script is not None:
        found: Attackers | None = config.script.made("attackers")
        return found
    if config.attack is None:
        return None
    if engine.keeps_states:
        raise InputError("attack: real clients are not made to attack. Leave the section out, or simulate.")
    asked = config.attack
    clients = asked.clients if isinstance(asked.clients, float) else tuple(asked.clients)
    return Attackers(made("attack", asked, "attack"), clients, asked.samples)


def callbacks_of(config: Config) -> list[Callback]:
    """The callbacks of the user's own that the settings name."""
    found = [made("callback", choice, f"callbacks.{i}") for i, choice in enumerate(config.callbacks)]
    for choice, callback in zip(config.callbacks, found, strict=True):
        if not isinstance(callback, Callback):
            raise InputError(
                f"callbacks: {short(choice.kind)} gave a {type(callback).__name__}. Make it a subclass of "
                "fedquilt.Callback."
            )
    return found


def trackers_of(config: Config, folder: Path | None) -> tuple[Trackers, ...]:
    """The trackers that the settings ask for, as one callback."""
    if folder is None or not config.output.trackers:
        return ()
    kinds = [short(choice.kind) for choice in config.output.trackers]
    made_ = {
        kind if kinds.count(kind) == 1 else f"{kind}#{i}": made("tracker", choice, f"output.trackers.{i}")
        for i, (kind, choice) in enumerate(zip(kinds, config.output.trackers, strict=True))
    }
    return (Trackers(made_, RunInfo(folder.name, folder, flat(config.model_dump(exclude_none=True)))),)


def _full_paths(config: Config) -> dict[str, str]:
    return {name: str(Path(value).resolve()) for name, value in config.weight_files().items()}


def check_fits(method: Method, data: Divided, batch_size: int, scored: bool = True) -> None:
    """Raise unless the network can take and learn from these rows, and makes scores of their classes if it is
    ``scored`` by them."""
    _check_first_step(method, data, scored)
    _check_lone_rows(method, data, batch_size)


def _check_first_step(method: Method, data: Divided, scored: bool) -> None:
    """One forward pass on one row, so that a model that does not fit the data is refused before anything starts."""
    net = getattr(method, "net", None)
    if isinstance(net, Net):
        first = data.site(data.ids[0], 0).train
        row = first.rows(first.all_rows()[:1])
        try:
            out = net(net.own(net.init(Seed(0))), row)
        except FedquiltError:
            raise
        except Exception as error:
            where = _row_told(tuple(row.x.shape[1:]), data)
            raise InputError(f"The model cannot take a row of these data{where} It failed: {told(error)}") from error
        if scored and data.classes is not None and not getattr(method, "reconstructs", False):
            _check_scores(tuple(logits_of(out).shape), data.classes, net.task)


def _row_told(shape: tuple[int, ...], data: Divided) -> str:
    """What a row is made of, and how a network of the user's own gets to know it."""
    table = getattr(data, "preparation", None)
    made = f" ({table.describe()})" if isinstance(table, PerColumn) else ""
    told = "'features' of a model gets their number" if len(shape) == 1 else "'shape' of a model gets it"
    size = f"of {shape[0]} inputs" if len(shape) == 1 else f"of the shape {shape}"
    return f", {size}{made}; an argument {told}."


def _check_scores(shape: tuple[int, ...], classes: int, task: Task | None) -> None:
    """A network of the user's own has a last layer of its own."""
    if task is not None and task.kind != "classification":
        if shape != (1, classes):
            raise InputError(
                f"For {task.name} of these data a model makes {classes} numbers of a row, and this one makes "
                f"the shape {shape} instead of (1, {classes}). An argument 'classes' of a model gets their number."
            )
        return
    if len(shape) != 2 or shape[0] != 1 or shape[1] < classes:
        raise InputError(
            f"The data have {classes} classes, and of one row the model makes scores of the shape {shape} instead of "
            f"(1, {classes}). Its last layer needs as many outputs; an argument 'classes' of a model gets their number."
        )


def _check_lone_rows(method: Method, data: Divided, batch_size: int) -> None:
    """BatchNorm cannot learn from a batch of one value per channel: said before anything starts, not in some round."""
    net: Net | None = getattr(method, "net", None)
    if net is None or not net.normalises:
        return
    sizes = [
        (task.size(c), repr(c), task.site(c, 0).train) for task in getattr(data, "tasks", (data,)) for c in task.ids
    ]
    count, client, rows = min(sizes, key=lambda size: size[0])
    if min(count, batch_size) > 1:
        return
    try:
        net(net.own(net.init(Seed(0))), rows.rows(rows.all_rows()[:1]), train=True)
    except ValueError as error:
        cause = f"client {client} has 1 training sample" if count == 1 else "train.batch_size is 1"
        raise InputError(
            f"This network has BatchNorm, which cannot learn from a batch of one row, and {cause}. Use another norm "
            "(norm = 'group'), give every client at least 2 rows (data.partition.minimum), or larger batches."
        ) from error


def result_for(folder: Path, data: Divided, rounds: int) -> Row | None:
    """The result of a run that is finished, after so many rounds; refused if it was made with other data."""
    found = result_of(folder)
    if found is not None and found.get("rounds", rounds) < rounds and not found.get("stopped_early"):
        return None  # a script asks for more rounds than it did before
    if found is not None and found.get("data") != data.fingerprint():
        raise InputError(
            f"'{folder}' holds a finished run with these settings, but on other data. "
            "Give the new run another name (name=...), or start it with --fresh, or delete the folder."
        )
    return found
