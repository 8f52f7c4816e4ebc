"""Mutated recipes: each is refused with one of our own errors, or gives everything that comes before the data."""

from __future__ import annotations

import datetime
import json
import random
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedquilt.config.config import dump, load, parse
from fedquilt.config.data import federation_of
from fedquilt.config.options import _schema
from fedquilt.config.settings import Config, Kinded
from fedquilt.data.sources.sources import read
from fedquilt.errors import InputError
from fedquilt.models.registry import MODELS, net
from fedquilt.registry import entries
from fedquilt.runs.build import engine_of, method_of, trackers_of
from fedquilt.studies import sweep
from fedquilt.studies.compare import cells

RECIPES = Path(__file__).parents[2] / "recipes"
_NAMES = (
    "method",
    "optimizer",
    "schedule",
    "partition",
    "aggregate",
    "long_tail",
    "shift",
    "transform",
    "stream",
    "codec",
    "tracker",
)
TABLES: dict[str, Any] = {**{name: entries(name) for name in _NAMES}, "model": MODELS}
_DEEP: Any = 0
for _ in range(60):
    _DEEP = [_DEEP]
ODD: tuple[Any, ...] = (
    "",
    " ",
    "nan",
    "\u202eß🙂",
    "x" * 10_000,
    "a.b.c",
    "../..",
    "/",
    "\t\n",
    "-1",
    "1e999",
    "0x",
    "fedavg",
    "{}",
    0,
    1,
    -1,
    2,
    7,
    255,
    3,
    4,
    16,
    1000,
    2**31,
    2**63 - 1,
    2**63,
    2**64,
    -(2**63) - 1,
    10**30,
    -(10**30),
    10**400,
    0.0,
    -0.0,
    0.5,
    0.1,
    0.9,
    1.0,
    1.5,
    1e-320,
    1e30,
    1e308,
    float("inf"),
    float("-inf"),
    float("nan"),
    True,
    False,
    [],
    {},
    [[]],
    [{}],
    [""],
    [0],
    [1, "a"],
    [None],
    [1, [2, {"a": [3]}]],
    [float("nan")] * 3,
    list(range(500)),
    _DEEP,
    {"": ""},
    {"kind": ""},
    {"kind": []},
    {"kind": "fedavg", "": 1},
    {"kind": 0},
    {"low": 0, "high": 10**400},
    {"low": 0, "high": 1e308, "log": True},
    {"a": {"b": {"c": {"d": {}}}}},
    datetime.date(1, 1, 1),
    datetime.time(1),
    datetime.datetime(2020, 1, 1),
)


@dataclass
class Elsewhere:
    """A federation whose data nobody reads: it knows the shape of a row and the number of classes."""

    shape: tuple[int, ...] = (1, 28, 28)
    classes: int | None = 2
    ids: tuple[int, ...] = (0, 1)


@dataclass
class Seeds:
    """All recipes there are, as trees; and the names that settings may have."""

    trees: list[dict[str, Any]] = field(default_factory=list)
    names: dict[str, list[str]] = field(default_factory=dict)
    kinds: list[str] = field(default_factory=list)

    @classmethod
    def found(cls) -> Seeds:
        """From the recipes and the registry."""
        trees = [tomllib.loads(path.read_text()) for path in sorted(RECIPES.rglob("*.toml"))]
        sections = {n: getattr(i.annotation, "model_fields", {}) for n, i in Config.model_fields.items()}
        names = {"": list(Config.model_fields), **{n: list(fields) for n, fields in sections.items() if fields}}
        return cls(trees, names, [name for table in TABLES.values() for name in table])


def warm() -> None:
    """Make a network and read data once: torch and scikit-learn import much when that is done for the first time."""
    net("resnet10", (1, 28, 28), 2)
    read("digits")


def mutated(draw: random.Random, seeds: Seeds) -> str:
    """The text of a recipe that was changed in one to six places."""
    tree = json.loads(json.dumps(draw.choice(seeds.trees), default=str))
    for _ in range(draw.choice((1, 1, 1, 1, 1, 2, 4))):
        draw.choice(_CHANGES)(draw, seeds, tree)
    text = _text(tree)
    return _spoilt(draw, text) if draw.random() < 0.1 else text


def _places(tree: Any, found: list[tuple[Any, Any]] | None = None) -> list[tuple[Any, Any]]:
    """Every (container, key) of a tree."""
    found = [] if found is None else found
    for key in list(tree) if isinstance(tree, dict) else range(len(tree)):
        found.append((tree, key))
        if isinstance(tree[key], dict | list) and len(found) < 500:
            _places(tree[key], found)
    return found


def _odd(draw: random.Random, seeds: Seeds) -> Any:
    return draw.choice(seeds.kinds) if draw.random() < 0.15 else _fresh(draw.choice(ODD))


def _fresh(value: Any) -> Any:
    """A copy, so that later changes leave the list of odd values as it is."""
    if isinstance(value, dict):
        return {k: _fresh(v) for k, v in value.items()}
    return [_fresh(v) for v in value] if isinstance(value, list) else value


def _replace(draw: random.Random, seeds: Seeds, tree: Any) -> None:
    if places := _places(tree):
        container, key = draw.choice(places)
        container[key] = _odd(draw, seeds)


def _delete(draw: random.Random, seeds: Seeds, tree: Any) -> None:
    if places := _places(tree):
        container, key = draw.choice(places)
        del container[key]


def _add(draw: random.Random, seeds: Seeds, tree: Any) -> None:
    """A setting that exists, with a value that is odd."""
    section = draw.choice(list(seeds.names))
    place = tree if not section else tree.setdefault(section, {})
    if isinstance(place, dict):
        place[draw.choice([*seeds.names[section], "kind"])] = _odd(draw, seeds)


def _options(draw: random.Random, seeds: Seeds, tree: Any) -> None:
    """Another choice, with an odd value for one of its options."""
    table, path = draw.choice(_CHOICES)
    kind = draw.choice(list(TABLES[table]))
    takes = list(_schema(table, kind).model_fields) if table != "model" else list(TABLES["model"][kind].known)
    made = {"kind": kind, **({draw.choice(takes): _odd(draw, seeds)} if takes else {})}
    place = tree
    for name in path[:-1]:
        place = place.setdefault(name, {}) if isinstance(place, dict) else {}
    if isinstance(place, dict):
        place[path[-1]] = [made] if path[-1] in ("transforms", "trackers", "methods") else made


def _move(draw: random.Random, seeds: Seeds, tree: Any) -> None:
    """A part of another recipe, at a place where it may not belong."""
    places, others = _places(tree), _places(draw.choice(seeds.trees))
    if places and others:
        container, key = draw.choice(places)
        other, its = draw.choice(others)
        container[key] = json.loads(json.dumps(other[its], default=str))


_CHANGES = (_replace, _replace, _delete, _add, _add, _options, _options, _move)
_CHOICES = [
    (table, path)
    for table, path in (
        ("method", ("method",)),
        ("optimizer", ("train", "optimizer")),
        ("schedule", ("train", "schedule")),
        ("partition", ("data", "partition")),
        ("long_tail", ("data", "long_tail")),
        ("shift", ("data", "shift")),
        ("stream", ("stream",)),
        ("codec", ("codec",)),
        ("codec", ("download_codec",)),
        ("transform", ("data", "transforms")),
        ("tracker", ("output", "trackers")),
        ("model", ("model",)),
        ("method", ("compare", "methods")),
    )
]


def _spoilt(draw: random.Random, text: str) -> str:
    """The text with a few characters changed, or lines taken out, doubled or nested."""
    how, lines = draw.randrange(5), text.split("\n")
    at = draw.randrange(len(text) + 1)
    if how == 0:
        return text[:at] + draw.choice('[]{}"=.,\n\0\x7f#é-_0') + text[at:]
    if how == 1:
        return text[:at] + text[at + draw.randrange(1, 20) :]
    if how == 2:
        lines.insert(draw.randrange(len(lines)), draw.choice(lines))
        return "\n".join(lines)
    if how == 3:
        return text + "\ndeep = " + "[" * draw.choice((10, 200, 5000)) + "]" * draw.choice((10, 200, 5000))
    return text + "\n[" + ".".join(["deep"] * draw.choice((10, 200, 5000))) + "]\nx = 1\n"


def _text(tree: Any) -> str:
    return "\n".join(f"{_key(k)} = {_value(v)}" for k, v in tree.items())


def _key(name: Any) -> str:
    return json.dumps(str(name), ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _key(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return '"None"' if value is None else repr(value)


def tried(text: str, file: Path, data: bool = False) -> str:
    """What became of a recipe: 'built', or the kind of error it was refused with. Anything else is raised. With
    ``data``, its clients get their rows, too."""
    file.write_text(text, encoding="utf-8", errors="surrogatepass")
    try:
        config = load(file)
        config.folder_name  # noqa: B018  # its hash is made
        assert parse_again(config) == config
        build(config)
        if data:
            federation_of(small(config))
    except InputError as error:
        said = str(error)
        assert said.strip(), "a refusal without a reason"
        assert len(said) < 200_000, "a refusal of endless length"
        return type(error).__name__
    return "built with data" if data else "built"


def small(config: Config) -> Config:
    """The same partition, tail, shift and stream of 200 little pictures."""
    limit = min(config.data.limit or 200, 200)
    data = config.data.model_copy(update={"source": Kinded(kind="digits"), "path": None, "limit": limit})
    return config.model_copy(update={"data": data})


def parse_again(config: Config) -> Config:
    """The settings after they were written into a run's folder and read back."""
    return parse(tomllib.loads(dump(config)))


def build(config: Config) -> None:
    """Everything that comes before the data: the method with its network and codecs, the engine, the trackers, the runs
    of a comparison."""
    for shape in ((1, 28, 28), (64,)):
        try:
            method_of(config, Elsewhere(shape))
            break
        except InputError:
            if shape == (64,):
                raise
    engine_of(config).close()
    trackers_of(config, Path("runs") / config.folder_name)
    cells(config)
    if config.sweep.space:
        sweep._check(config)
        sweep.planned(config)
        sweep.folder_of(config)
