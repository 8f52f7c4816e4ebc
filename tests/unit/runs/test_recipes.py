"""Every recipe in the repository can be read, and says what it is for."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedquilt.runs.build import method_of
from fedquilt.runs.config import parse

ROOT = Path(__file__).parents[3] / "recipes"
RECIPES = sorted(ROOT.rglob("*.toml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_recipe_is_sound(path: Path) -> None:
    text = path.read_text()
    config = parse(tomllib.loads(text), str(path))
    assert config.name == path.stem
    assert f"recipes/{path.relative_to(ROOT)}" in text  # how it is run


def test_the_settings_of_the_published_groups() -> None:
    config = parse(tomllib.loads((ROOT / "clustered" / "mnist_groups.toml").read_text()))
    assert (config.train.epochs, config.train.batch_size, config.train.optimizer.options) == (3, 32, {"lr": 0.01})
    assert (config.cohort.fraction, config.data.clients, config.evaluate.every) == (0.2, 50, 10)
    assert config.data.test == 0.8  # a fifth is for training
    assert sum(config.data.partition.options["clients_per_group"]) == 50


HGLS = sorted((ROOT / "personalised").glob("hgls_*.toml"))


@dataclass(frozen=True)
class Elsewhere:
    """A federation whose data need not be here."""

    shape: tuple[int, ...]
    classes: int = 10


@pytest.mark.parametrize("path", HGLS, ids=lambda p: p.stem)
def test_the_recipes_of_hgls_have_their_controls_and_fitting_models(path: Path) -> None:
    config = parse(tomllib.loads(path.read_text()))
    shape = {"fashion_mnist": (1, 28, 28), "cifar10": (3, 32, 32)}[config.data.source]
    options = [(choice.kind, dict(choice.options)) for choice in config.compare.methods]
    for control in ("fedavg", "fedper", "fedper_finetune"):
        assert (control, {}) in options
    assert ("hgls", {"own_only": True}) in options
    for choice in config.compare.methods:
        assert method_of(config.model_copy(update={"method": choice}), Elsewhere(shape)) is not None
    assert len(HGLS) == 4
