"""A method's own training applies wherever ``[train]`` is silent, key by key, and is shown where one looks for it."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fedquilt import registry
from fedquilt.config.config import dump, parse
from fedquilt.config.settings import MethodChoice, Training
from fedquilt.config.training import defaults_of
from fedquilt.core.describe import describe
from fedquilt.core.params import Params
from fedquilt.core.train import Optimizer
from fedquilt.data import Federation
from fedquilt.errors import ConfigError
from fedquilt.methods.fedavg import FedAvg
from fedquilt.models.registry import net
from fedquilt.pieces.optimizers import SGD, Adam, AdamW
from fedquilt.pieces.schedules import cosine
from fedquilt.records.record import pack
from fedquilt.registry import METHODS, RegistryEntry
from fedquilt.runs.build import federation_of, method_of, run_of
from fedquilt.runs.engines import make_engine
from fedquilt.studies.compare import cells
from fedquilt.studies.sweep import at
from helpers.command import fedquilt
from helpers.guessing import GUESSING, RECIPE, SIZES, fitting

SMALL: dict[str, Any] = {"data": {"clients": 3, "limit": 150}, "model": {"kind": "mlp", "hidden": [12]}}
MAE = {"data": SMALL["data"], "model": {"kind": "mae", **SIZES}}
PUBLISHED = AdamW(1e-4, weight_decay=0.05)


def silent(kind: str, **train: Any) -> Any:
    return parse({**MAE, "method": kind, "train": train})


def federation() -> Federation:
    return federation_of(parse(MAE))


@pytest.mark.parametrize("kind", GUESSING)
def test_the_published_optimiser_of_podfcssv_without_a_word_in_the_recipe(kind: str):
    config = silent(kind)
    assert (config.train.optimizer.kind, config.train.optimizer.options) == (
        "adamw",
        {"lr": 1e-4, "weight_decay": 0.05},
    )
    assert method_of(config, federation()).base.optimizer == PUBLISHED


def test_settings_are_filled_key_by_key():
    """What is given counts, the rest is the method's; an optimiser that names its kind stands for itself."""
    given = {"batch_size": 8, "epochs": 3}
    base = method_of(silent("podfcssv", **given), federation()).base
    assert (base.batch_size, base.epochs, base.optimizer) == (8, 3, PUBLISHED)
    found = {
        "own": method_of(silent("podfcssv", optimizer={"lr": 0.01}), federation()).base.optimizer,
        "other": method_of(silent("podfcssv", optimizer={"kind": "sgd", "lr": 0.01}), federation()).base.optimizer,
        "named": method_of(silent("podfcssv", optimizer={"kind": "adamw", "lr": 0.01}), federation()).base.optimizer,
    }
    assert found == {"own": AdamW(0.01, weight_decay=0.05), "other": SGD(0.01), "named": AdamW(0.01)}
    with pytest.raises(ConfigError, match=r"train\.optimizer\.momentum: unknown key for 'adamw'"):
        silent("podfcssv", optimizer={"momentum": 0.9})


@pytest.mark.parametrize("kind", sorted(METHODS.keys() - {"fedbn"}))
def test_a_silent_recipe_is_the_method_s_own_training_and_its_file_says_so(kind: str):
    """The method made with the network alone, that of the recipe, and that of the resolved file are the same."""
    config = parse({**fitting(SMALL, kind), "method": kind})
    data = federation_of(config)
    again = parse(tomllib.loads(dump(config)))
    assert again == config
    assert again.identity() == config.identity()
    made = method_of(config, data)
    assert pack(describe(made)) == pack(describe(method_of(again, data)))
    alone = METHODS[kind].load()(objective=net(config.model.kind, (1, 8, 8), 10, **config.model.options))
    assert pack(describe(made)) == pack(describe(alone))


def test_the_file_of_a_run_shows_what_was_resolved_and_older_ones_stay(tmp_path: Path):
    config = silent("fedmae")
    run_of(config, make_engine("local"), tmp_path / "new", federation())
    written = tomllib.loads((tmp_path / "new" / "config.toml").read_text())
    assert written["train"] == {
        "epochs": 1,
        "batch_size": 32,
        "precision": "float32",
        "optimizer": {"kind": "adamw", "lr": 0.0001, "weight_decay": 0.05},
    }
    old = {**written, "train": {**written["train"], "optimizer": {"kind": "sgd", "lr": 0.05}}}
    assert method_of(parse(old), federation()).base.optimizer == SGD(0.05)
    assert parse(old).identity() != config.identity()


def test_methods_of_a_comparison_and_points_of_a_sweep_have_their_own():
    listed = parse({**MAE, "train": {"batch_size": 8}, "compare": {"methods": ["fedavg", "fedmae"], "seeds": [0]}})
    _, found = cells(listed)
    assert [(c.config.train.optimizer.kind, c.config.train.batch_size) for c in found] == [("sgd", 8), ("adamw", 8)]
    back = found[1].config.with_method(MethodChoice(kind="fedavg"))
    assert back == found[0].config
    point = at(parse({**MAE, "train": {"optimizer": {"lr": 0.5}}}), {"method": "podfcssv", "train.epochs": 2})
    assert (point.train.optimizer.kind, point.train.epochs) == ("adamw", 2)
    assert point.train.optimizer.options == {"lr": 0.5, "weight_decay": 0.05}


FALLING = cosine(rounds=9)


def stepping(objective: Any, steps: int = 4, schedule: Any = FALLING, clip: float = 2.0, **rest: Any) -> FedAvg:
    """A method of somebody's own, with defaults of its own."""
    return FedAvg(objective=objective, steps=steps, schedule=schedule, clip=clip, **rest)


@dataclass(frozen=True)
class Slow:
    """An optimiser that no recipe knows."""

    lr: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Factory:
    """A method whose default is made for each."""

    objective: Any
    optimizer: Optimizer = field(default_factory=lambda: Adam(0.3))


SLOW = Slow()


def strange(objective: Any, optimizer: Any = Slow(), **rest: Any) -> Params:
    """Never made."""
    raise AssertionError


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch):
    """Methods of somebody's own, as a package would bring them."""
    for name, made in (("stepping", stepping), ("factory", Factory), ("strange", strange)):
        entry = RegistryEntry(name, "", "")
        object.__setattr__(entry, "load", lambda made=made: made)
        monkeypatch.setitem(registry.METHODS, name, entry)


def test_methods_of_other_packages_have_their_own_too(own):
    config = parse({**SMALL, "method": "stepping"})
    assert (config.train.steps, config.train.clip, config.train.schedule.options) == (4, 2.0, {"rounds": 9})
    made = method_of(config, federation_of(config))
    assert (made.steps, made.clip, made.schedule) == (4, 2.0, FALLING)
    config = parse({**SMALL, "method": "stepping", "train": {"epochs": 2}})  # which excludes steps
    assert (config.train.steps, config.train.epochs, config.train.clip) == (None, 2, 2.0)
    assert defaults_of("factory")["optimizer"] == {"kind": "adam", "lr": 0.3}
    with pytest.raises(ConfigError, match=r"'strange' has the default optimizer Slow.*'fedquilt\.optimizers'"):
        parse({**SMALL, "method": "strange"})


def test_the_defaults_of_the_section_are_fedavg_s():
    assert Training() == parse({}).train


def test_the_command_shows_options_and_training():
    found = fedquilt("methods", "podfcssv", "--json").json
    row = next(row for row in found["options"] if row["setting"] == "method.lambda_proto")
    assert (row["type"], row["required"], row["default"]) == ("number", False, 1.0)
    train = {row["setting"]: row["default"] for row in found["train"]}
    assert train["train.optimizer"] == {"kind": "adamw", "lr": 0.0001, "weight_decay": 0.05}
    assert (train["train.epochs"], train["train.clip"]) == (1, None)
    said = fedquilt("methods", "fedrep").out
    assert "method.head_epochs" in said
    assert "sgd(lr=0.05)" in said
    assert RECIPE["method"]["kind"] in fedquilt("methods").out
