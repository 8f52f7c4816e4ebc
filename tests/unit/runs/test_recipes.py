"""Every recipe in the repository can be read, and says what it is for."""

from __future__ import annotations

import inspect
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedquilt.config.config import parse
from fedquilt.core.params import is_weight
from fedquilt.core.seed import Seed
from fedquilt.methods.long_tailed.fedloge import FedLoGe
from fedquilt.methods.self_supervised.podfcssv import PODFCSSV
from fedquilt.runs.build import method_of

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
    shape = {"fashion_mnist": (1, 28, 28), "cifar10": (3, 32, 32)}[config.data.source.kind]
    options = [(choice.kind, dict(choice.options)) for choice in config.compare.methods]
    for control in ("fedavg", "fedper", "fedper_finetune"):
        assert (control, {}) in options
    assert ("hgls", {"own_only": True}) in options
    for choice in config.compare.methods:
        assert method_of(config.model_copy(update={"method": choice}), Elsewhere(shape)) is not None
    assert len(HGLS) == 4


SETTINGS = {
    "a": (10, 0.02, 0.5),
    "b": (10, 0.01, 0.5),
    "c": (10, 0.02, 1.0),
    "d": (10, 0.01, 1.0),
    "e": (100, 0.02, 0.5),
    "f": (100, 0.01, 0.5),
    "g": (100, 0.02, 1.0),
    "h": (100, 0.01, 1.0),
}


@pytest.mark.parametrize("letter", SETTINGS)
def test_the_published_long_tails(letter: str) -> None:
    """500 rounds of 5 epochs with batches of 8; 40 clients of CIFAR-10, 20 of CIFAR-100."""
    classes, factor, alpha = SETTINGS[letter]
    config = parse(tomllib.loads((ROOT / "long_tail" / f"cifar{classes}_lt_{letter}.toml").read_text()))
    assert config.data.source.kind == f"cifar{classes}"
    assert config.data.long_tail is not None
    assert config.data.long_tail.options["factor"] == factor
    assert config.data.partition.options == {"alpha": alpha, "random_state": 3407}
    assert (config.data.clients, config.cohort.fraction) == (40 if classes == 10 else 20, 0.2)
    assert (config.rounds, config.train.epochs, config.train.batch_size, config.seed) == (500, 5, 8, 3407)
    assert config.train.optimizer.options == {"lr": 0.03, "momentum": 0.5}
    assert (config.method.options["norm"], config.model.kind) == (0.1, "resnet18" if classes == 10 else "resnet34")
    method = method_of(config, Elsewhere((3, 32, 32), classes))
    heads = method.heads(method.init_server(Seed(0)), method.init_client(Seed(0)))  # type: ignore[attr-defined]
    assert heads.fixed.weight.shape == heads.general.weight.shape == (classes, 512)
    sizes = {n: t.numel() for n, t in heads.body.items() if is_weight(n)}
    assert sum(sizes.values()) == (11_168_832 if classes == 10 else 21_276_992)


PUBLISHED = {
    "cifar100_lt": (3, 32, 32),
    "cifar10_lt": (3, 32, 32),
    "image_net_lt": (3, 64, 64),
    "inaturalist": (3, 64, 64),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_recipes_of_fedloge_can_be_played(name: str) -> None:
    """Every method fits the model, with fewer classes, whose frame is quick to build; the published one is among
    them, beside the balanced one and FedAvg with balanced softmax."""
    config = parse(tomllib.loads((ROOT / "published" / f"fedloge_{name}.toml").read_text()))
    assert config.data.source.kind == name.removesuffix("_lt" if "cifar" in name else "")
    made = [method_of(config.with_method(c), Elsewhere(PUBLISHED[name], 10)) for c in config.compare.methods]
    losses = [m.frame_loss for m in made if isinstance(m, FedLoGe)]
    assert losses == ["cross_entropy", "balanced"]
    assert {"fedavg", "fedavg_balanced"} <= {c.kind for c in config.compare.methods}
    assert len(config.compare.seeds) == 3


def test_the_command_of_fedloges_readme() -> None:
    """40 clients, three tenths of them in each of 500 rounds, ResNet-34."""
    config = parse(tomllib.loads((ROOT / "published" / "fedloge_cifar100_lt.toml").read_text()))
    setting_f = parse(tomllib.loads((ROOT / "long_tail" / "cifar100_lt_f.toml").read_text()))
    assert (config.data.clients, config.cohort.fraction, config.rounds) == (40, 0.3, 500)
    assert (config.model.kind, config.seed, config.method.options["norm"]) == ("resnet34", 3407, 0.1)
    for part in ("long_tail", "partition", "transforms"):
        assert getattr(config.data, part) == getattr(setting_f.data, part)
    assert config.train == setting_f.train


def test_the_published_settings_of_podfcssv() -> None:
    """Two clients with 50 images each, batches of 8, 3 rounds; adapters of 64; AdamW(1e-4, weight decay 0.05)."""
    config = parse(tomllib.loads((ROOT / "podfcssv" / "vit_mae_base.toml").read_text()))
    assert config.model.options == {"folder": "facebook/vit-mae-base", "bottleneck": 64}
    assert (config.rounds, config.data.clients, config.data.limit, config.data.test, config.data.valid) == (
        3,
        2,
        100,
        0,
        0,
    )
    assert (config.train.epochs, config.train.batch_size) == (1, 8)
    optimizer = config.train.optimizer
    assert (optimizer.kind, optimizer.options) == ("adamw", {"lr": 1e-4, "weight_decay": 0.05})
    given = config.method.options
    defaults = {name: p.default for name, p in inspect.signature(PODFCSSV).parameters.items() if name in given}
    assert given == defaults  # ours are the published ones, and the recipe says them
    assert given["lambda_proto"] == 1.0
    assert "center" not in given
