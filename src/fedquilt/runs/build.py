"""From checked settings to the objects of a run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedquilt.core.errors import ConfigError, InputError
from fedquilt.core.exchange import Cohort, Method, at_random, everyone, fraction
from fedquilt.core.net import Net
from fedquilt.core.seed import Seed
from fedquilt.core.train import constant
from fedquilt.data import Federation, Pixels, imports, long_tailed, read
from fedquilt.engines.engine import Engine
from fedquilt.models.registry import net as net_called
from fedquilt.runs.config import Config, Data, Kinded, check_options, dump
from fedquilt.runs.files import write_atomic
from fedquilt.runs.registry import lookup
from fedquilt.runs.runner import Run, make_engine
from fedquilt.runs.storage import RunFolder


def federation_of(config: Config) -> Federation:
    """The clients and their data."""
    data = config.data
    split = data.path is not None and imports.is_split(Path(data.path))
    federation = _already_divided(data) if split else _divided(data)
    if data.shift is not None:
        federation = _made("shift", data.shift, "data.shift")(federation, data.seed)
    return federation


def _already_divided(data: Data) -> Federation:
    """A PFLlib folder: who has what is settled, so nothing else may settle it."""
    other = [
        name for name in ("clients", "limit", "long_tail", "label", "user", "size") if getattr(data, name) is not None
    ]
    if not data.by_user or other:
        wrong = f"data.{other[0]} cannot be had there: leave it out" if data.by_user else "set data.by_user = true"
        raise InputError(f"{data.path} is divided over clients already, by PFLlib; {wrong}.")
    return Federation.from_pfllib(str(data.path), data.valid, data.seed, drop_empty=data.drop_empty)


def _divided(data: Data) -> Federation:
    """One data set, divided as the settings say."""
    if data.path is None:
        own = [name for name in ("label", "user", "size") if getattr(data, name) is not None]
        if own:
            raise InputError(f"data.{own[0]} goes with data.path: it says how your own file or folder is read.")
        arrays = read(data.source or "digits")
    else:
        arrays = imports.open(Path(data.path), data.label, data.user, data.size)
    if data.limit is not None and data.limit < len(arrays.y):
        rows = np.sort(Seed(data.seed).fold("limit").numpy().choice(len(arrays.y), data.limit, replace=False))
        arrays = replace(arrays, x=arrays.x[rows], y=arrays.y[rows],
                         user=None if arrays.user is None else arrays.user[rows])  # fmt: skip
    if data.long_tail is not None:
        arrays = long_tailed(arrays, _made("long_tail", data.long_tail, "data.long_tail"), data.seed)
    mean, std = (tuple(v) if isinstance(v, list) else v for v in (data.mean, data.std))
    prepare = Pixels(mean, std) if arrays.x.dtype.name == "uint8" else None
    if prepare is None and (mean, std) != (0.0, 1.0):
        raise InputError(
            f"data.mean and data.std are for images stored as bytes; {data.source or data.path} holds {arrays.x.dtype}."
        )
    options: dict[str, Any] = {"prepare": prepare} if prepare is not None else {}
    who = {"natural": True} if data.by_user else {"partition": _made("partition", data.partition, "data.partition")}
    return Federation.from_source(
        arrays, clients=data.clients, test=data.test, valid=data.valid, seed=data.seed, drop_empty=data.drop_empty,
        **who, **options,
    )  # fmt: skip


def method_of(config: Config, federation: Federation) -> Method:
    """The method, with its network for this federation's data."""
    first = federation.site(federation.ids[0], 0).train
    shape = tuple(first.rows(first.all_rows()[:1]).x.shape[1:])
    if federation.classes is None:
        raise InputError("The data have no class labels; this version trains classifiers only.")
    net = net_called(config.model.kind, shape, federation.classes, **config.model.options)
    train = config.train
    given, problems = check_options("method", config.method.kind, config.method.options, "method")
    if problems:
        raise ConfigError(problems)
    if "aggregate" in given:
        given["aggregate"] = lookup("aggregate", given["aggregate"]).load()
    method: Method = lookup("method", config.method.kind).load()(
        objective=net,
        optimizer=_made("optimizer", train.optimizer, "train.optimizer"),
        schedule=constant if train.schedule is None else _made("schedule", train.schedule, "train.schedule"),
        epochs=train.epochs, steps=train.steps, batch_size=train.batch_size, clip=train.clip,
        cohort=_cohort(config), **given,
    )  # fmt: skip
    return method


def _cohort(config: Config) -> Cohort:
    if config.cohort.count is not None:
        return at_random(config.cohort.count)
    return everyone if config.cohort.fraction == 1.0 else fraction(config.cohort.fraction)


def _made(table: str, choice: Kinded, path: str) -> Any:
    given, problems = check_options(table, choice.kind, choice.options, path)
    if problems:
        raise ConfigError(problems)
    return lookup(table, choice.kind).load()(**given)


def engine_of(config: Config) -> Engine:
    """The engine the settings ask for."""
    return make_engine(config.engine.kind, config.engine.processes, config.engine.devices)


def run_of(
    config: Config, engine: Engine, folder: Path, federation: Federation | None = None, fresh: bool = False
) -> Run:
    """The run of these settings in this folder; everything is checked before the folder is made, or made ``fresh``."""
    data = federation if federation is not None else federation_of(config)
    method = method_of(config, data)
    _check_first_step(method, data)
    if fresh and folder.exists():
        RunFolder(folder).remove()
    if config.data.path is not None:  # the folder must be readable from anywhere
        place = config.data.model_copy(update={"path": str(Path(config.data.path).resolve())})
        config = config.model_copy(update={"data": place})
    config = config.model_copy(update={"model": config.model.model_copy(update=_full_paths(config))})
    write_atomic(folder / "config.toml", f"# fedquilt run {folder.name}/config.toml\n{dump(config)}".encode())
    return Run(
        method, data, rounds=config.rounds, seed=config.seed, engine=engine, evaluation=config.evaluate,
        stop=config.stop, snapshots=config.snapshot, folder=RunFolder(folder), identity=config.identity(),
        personal_models=config.output.personal_models,
    )  # fmt: skip


def _full_paths(config: Config) -> dict[str, str]:
    return {name: str(Path(value).resolve()) for name, value in config.weight_files().items()}


def _check_first_step(method: Any, data: Federation) -> None:
    """One forward pass on one row, so that a model that does not fit the data is refused before anything starts."""
    net: Net | None = getattr(method, "net", None)
    if net is not None:
        first = data.site(data.ids[0], 0).train
        net(net.own(net.init(Seed(0))), first.rows(first.all_rows()[:1]))


def result_for(folder: Path, data: Federation) -> dict[str, Any] | None:
    """The result of a finished run, refused if it was made with other data."""
    found = result_of(folder)
    if found is not None and found.get("data") != data.fingerprint():
        raise InputError(
            f"'{folder}' holds a finished run with these settings, but on other data. "
            "Give the new run another name (name=...), or start it with --fresh, or delete the folder."
        )
    return found


def result_of(folder: Path) -> dict[str, Any] | None:
    """What a finished run wrote about itself, or None if it is not finished."""
    try:
        found: dict[str, Any] = json.loads((folder / "result.json").read_text())
    except (OSError, ValueError):  # missing or damaged: the last snapshot can tell it again
        return None
    return found
