"""Everything that a recipe can name may be one's own: by file or by module, with arguments, on every engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedquilt.config.config import load
from fedquilt.errors import ConfigError
from helpers.command import fedquilt

CODE = """
from dataclasses import dataclass, replace

import numpy as np
from torch import nn
from torch.nn import functional as F

from fedquilt import SGD, Callback, FedAvg, OnBase


class MyNet(nn.Module):
    def __init__(self, features, classes, width: int = 8):
        super().__init__()
        self.features, self.head = nn.Linear(features, width), nn.Linear(width, classes)

    def forward(self, x):
        return self.head(self.features(x).relu())


@dataclass(frozen=True, kw_only=True)
class Same(OnBase):
    base: FedAvg
    factor: float = 1.0


def averaged(current, replies, context, factor: float = 1.0):
    deltas = [reply.upload.delta for reply in replies]
    return {n: w + factor * sum(d[n] for d in deltas) / len(deltas) for n, w in current.items()}


def smooth(scores, labels, by: float = 0.0):
    return F.cross_entropy(scores, labels, label_smoothing=by)


def train(model, data_loader, context, rate: float = 0.0):
    for x, y in data_loader:
        model.zero_grad()
        context.loss(model, x, y).backward()
        for p in model.parameters():
            p.data -= rate * p.grad


class Steps(SGD):
    pass


def falling(round, by: float = 1.0):
    return by**round


@dataclass(frozen=True)
class Rounded:
    digits: int = 7

    def encode(self, upload, sent, memory, seed):
        return replace(upload, delta={n: t.round(decimals=self.digits) for n, t in upload.delta.items()}), memory

    def decode(self, wire, sent):
        return wire


def in_turn(labels, clients, seed, first: int = 0):
    return [np.arange(len(labels))[(first + c) % clients :: clients] for c in range(clients)]


def grown(x, by: float = 1.0):
    return x * by


def turned(federation, seed, by: float = 1.0):
    return federation


def sure(scores, labels, of: int = 1):
    return scores.softmax(1).topk(of, 1).values.sum(1).mean()


def rows(count: int = 90, wide: float = 1.0):
    rng, y = np.random.default_rng(0), np.arange(count) % 3
    return (wide * rng.normal(size=(count, 4)) + y[:, None]).astype(np.float32), y


class Told(Callback):
    def __init__(self, every: int = 1):
        self.every = every

    def on_evaluate(self, snapshot):
        return {"told": float(self.every)}


@dataclass
class Written:
    file: str = "x"

    def start(self, run):
        self.path = run.folder / self.file
        return run.name

    def log(self, round, numbers):
        self.path.write_text(str(numbers["told"]))

    def finish(self, result):
        pass
"""
KINDS = {  # the setting, what it names, and one of its arguments
    "model": ("MyNet", "width", 6),
    "method": ("Same", "factor", 2.0),
    "method.aggregate": ("averaged", "factor", 0.5),
    "train.loss": ("smooth", "by", 0.1),
    "train.loop": ("train", "rate", 0.2),
    "train.optimizer": ("Steps", "lr", 0.2),
    "train.schedule": ("falling", "by", 0.9),
    "codec": ("Rounded", "digits", 3),
    "data.source": ("rows", "count", 120),
    "data.partition": ("in_turn", "first", 1),
    "data.transforms": ("grown", "by", 0.5),
    "data.shift": ("turned", "by", 0.5),
    "metrics": ("sure", "of", 2),
    "callbacks": ("Told", "every", 3),
    "output.trackers": ("Written", "file", "told.txt"),
}
LISTED = ("data.transforms", "metrics", "callbacks", "output.trackers")
BASE = ("rounds=2", "data.clients=3", "engine.kind=local", "--json", "--fresh")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "my.py").write_text(CODE)
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "mine.py").write_text(CODE)
    (tmp_path / "recipe.toml").write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def overrides(place: str, odd: str = "") -> list[str]:
    """All of them at once, named in ``place``; with an ``odd`` end, arguments that nobody takes."""
    found = []
    for setting, (name, argument, value) in KINDS.items():
        told = f"'{value}'" if isinstance(value, str) else value
        choice = f"{{ kind = '{place}:{name}', {argument}{odd} = {told} }}"
        found.append(f"{setting}={f'[{choice}]' if setting in LISTED else choice}")
    return found


@pytest.mark.parametrize("place", ["my.py", "parts.mine"])
def test_all_at_once_with_arguments(folder: Path, place: str) -> None:
    said = fedquilt("run", "recipe.toml", *overrides(place), *BASE)
    assert said.code == 0, said.out
    run = Path(said.json["folder"])
    assert said.json["last"]["told"] == 3.0
    assert (run / "told.txt").read_text() == "3.0"
    assert 0 < said.json["last"]["test_sure"] <= 1
    again = fedquilt("resume", run, "--json")
    assert again.json["digest"] == said.json["digest"]
    played = fedquilt("run", run / "config.toml", "engine.kind=workers", "engine.processes=1", *BASE[-2:])
    assert played.json["digest"] == said.json["digest"]  # from the copy, and in another process


def test_each_argument_counts(folder: Path) -> None:
    """A run without one of the arguments is another run, and where it says something to the training, another model."""
    whole = overrides("my.py")
    identity = load("recipe.toml", whole).identity()
    for number, (setting, (_, argument, value)) in enumerate(KINDS.items()):
        told = f"'{value}'" if isinstance(value, str) else value
        less = [text.replace(f", {argument} = {told}", "") if n == number else text for n, text in enumerate(whole)]
        if setting != "train.optimizer":  # whose rate must be given
            same = load("recipe.toml", less).identity() == identity
            assert same is (setting == "output.trackers"), setting  # who is told changes no number


@pytest.mark.parametrize("place", ["my.py", "parts.mine"])
def test_what_nobody_takes_is_told_at_once(folder: Path, place: str) -> None:
    with pytest.raises(ConfigError) as error:
        load("recipe.toml", overrides(place, "x"))
    for setting, (name, argument, _) in KINDS.items():
        path = f"{setting}.0" if setting in LISTED else setting
        told = f"{path}.{argument}x: unknown key for '{place}:{name}'; did you mean '{argument}'?"
        assert told in error.value.problems, setting


def test_a_name_alone_takes_arguments_from_the_command_line(folder: Path) -> None:
    (folder / "recipe.toml").write_text(
        'model = "my.py:MyNet"\nmethod = "my.py:Same"\ncodec = "my.py:Rounded"\n'
        '[data]\nsource = "my.py:rows"\npartition = "my.py:in_turn"\n[train]\nloop = "my.py:train"\n'
    )
    given = ("model.width=6", "method.factor=2", "codec.digits=3", "data.source.count=60", "data.partition.first=1")
    config = load("recipe.toml", [*given, "train.loop.rate=0.3"])
    assert config.model.options == {"width": 6}
    assert config.data.source is not None
    assert config.data.source.options == {"count": 60}
    assert config.train.loop is not None
    assert config.train.loop.options == {"rate": 0.3}
    said = fedquilt("sweep", "recipe.toml", "--set", "train.loop.rate=0.1,0.2", *BASE[:-1])
    assert said.code == 0, said.out
    assert [point["values"] for point in said.json["points"]] == [{"train.loop.rate": 0.1}, {"train.loop.rate": 0.2}]


def test_data_of_a_package_take_its_arguments(folder: Path) -> None:
    name = "sklearn.datasets:load_wine"
    wine = f"data.source={{ kind = '{name}', return_X_y = true }}"
    said = fedquilt("run", "recipe.toml", wine, "model=logistic", *BASE)
    assert said.code == 0, said.out
    said = fedquilt("run", "recipe.toml", wine.replace("_y", "_z"), *BASE[:-2])
    assert f"data.source.return_X_z: unknown key for '{name}'; did you mean 'return_X_y'?" in said.err


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("{ kind = 'digits', count = 3 }", "data.source.count: a data set that has a name takes no options"),
        ("{ kind = 'my.py:rows', count = 'many' }", "data.source.count: should be a whole number, got 'many'"),
        ("{ kind = 'my.py:rws' }", "data.source.kind: 'my.py' has no 'rws'; did you mean 'rows'?"),
        ("3", "data.source: should be a section, got 3"),
    ],
)
def test_what_is_wrong_with_data_is_told(folder: Path, source: str, told: str) -> None:
    with pytest.raises(ConfigError) as error:
        load("recipe.toml", [f"data.source={source}"])
    assert told in "\n".join(error.value.problems)
