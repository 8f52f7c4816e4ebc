"""A run as a configuration: TOML in, checked settings out, every problem reported at once."""

from __future__ import annotations

import json
import logging
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fedquilt.config.metrics import use_metrics
from fedquilt.config.options import check_options as check_options
from fedquilt.config.options import explain_all, piece
from fedquilt.config.recipes import find
from fedquilt.config.settings import Config as Config
from fedquilt.config.settings import Data as Data
from fedquilt.config.settings import EvaluationSettings as EvaluationSettings
from fedquilt.config.settings import Kinded as Kinded
from fedquilt.config.settings import MethodChoice as MethodChoice
from fedquilt.config.settings import Snapshots as Snapshots
from fedquilt.config.settings import Stop as Stop
from fedquilt.config.settings import named
from fedquilt.config.tasks import use_task_of
from fedquilt.config.training import defaults_of
from fedquilt.core.plain import JSON, Row
from fedquilt.errors import ConfigError, InputError, did_you_mean
from fedquilt.own_code import is_reference, looking_in, pinned
from fedquilt.registry import lookup

log = logging.getLogger("fedquilt")


def load(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read a TOML file, or a recipe of the package by its name, apply ``key=value`` overrides, and check everything."""
    file, where = find(path), str(path)
    try:
        raw = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"'{where}' cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:  # no TOML, no UTF-8, a number of thousands of digits, ...
        raise ConfigError([f"not valid TOML: {error}{_line(file, error)}"], where) from error
    if _depth(raw) > _DEEPEST:
        raise ConfigError([f"sections and lists inside one another more than {_DEEPEST} times"], where)
    settings, problems = apply(raw, overrides)
    return parse(settings, where, problems, file.parent)


def _line(file: Path, error: Exception) -> str:
    """The line that an error is about, as it is in the file."""
    number = re.search(r"at line (\d+)", str(error))
    lines = file.read_text(encoding="utf-8").splitlines() if number else []
    told = lines[int(number[1]) - 1].strip()[:100] if number and int(number[1]) <= len(lines) else ""
    return f": {told}" if told else ""


_DEEPEST = 20


def _depth(raw: object) -> int:
    """How many sections and lists are inside one another, at the most; without recursion."""
    found, level = 0, [raw]
    while level := [v for v in level if isinstance(v, Mapping | list)]:
        found += 1
        level = [v for outer in level for v in (outer.values() if isinstance(outer, Mapping) else outer)]
    return found


def apply(raw: Mapping[str, JSON], overrides: Sequence[str]) -> tuple[Row, list[str]]:
    """The settings with dotted overrides, for example ``train.optimizer.lr=0.1``; and the overrides that are wrong."""
    settings: Row = json.loads(json.dumps(raw, default=str))
    problems = []
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            problems.append(f"{text!r} changes no setting: write KEY=VALUE, for example rounds=5")
            continue
        *parents, leaf = key.strip().split(".")
        try:
            place = section(settings, parents)
        except InputError as error:
            problems.append(f"override {text!r}: {error}")
            continue
        place[leaf] = _value(value.strip())
        if key.strip() in _TYPED_LISTS and not isinstance(place[leaf], list):
            if key.strip() == "compare.seeds":
                _tell_one_seed(place[leaf])
            place[leaf] = [_value(part.strip()) for part in value.strip(" []").split(",")]
        if key.strip() in _INSTEAD:
            place.pop(_INSTEAD[key.strip()], None)
    return settings, problems


def section(settings: Row, names: Sequence[str]) -> Row:
    """The section of a dotted name, made if it is not there; a choice that is a bare name becomes one of its kind."""
    place = settings
    for depth, name in enumerate(names, start=1):
        if isinstance(place.get(name), str) and tuple(names[:depth]) in _CHOSEN:
            place[name] = {"kind": place[name]}
        place = place.setdefault(name, {})
        if not isinstance(place, dict):
            raise InputError(f"'{name}' is not a section")
    return place


def _tell_one_seed(seed: JSON) -> None:
    """A lone number is a seed; who types one may mean how many."""
    if isinstance(seed, int) and seed > 1:
        every = ",".join(map(str, range(seed))) if seed < 6 else f"0,1,...,{seed - 1}"
        log.warning(
            "note: compare.seeds=%d is the one seed %d; %d seeds are compare.seeds=%s.", seed, seed, seed, every
        )


_TYPED_LISTS = ("compare.methods", "compare.seeds")  # compare.methods=fedavg,ditto: shells take quotes away
_INSTEAD = {"data.path": "source", "data.source": "path"}  # what the recipe has of these makes way for the other


def _value(text: str) -> JSON:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def parse(
    raw: Mapping[str, JSON], where: str = "configuration", known: Sequence[str] = (), folder: Path | None = None
) -> Config:
    """Check settings; raises one error that lists every problem, after those already known. Files of one's own code are
    looked for in the folder first."""
    with looking_in(folder):
        return _parsed(with_code(_with_kinds(raw)), where, list(known))


def _parsed(raw: Row, where: str, problems: list[str]) -> Config:
    if raw.get("script") is None:  # which made its own known
        problems += use_metrics(_inner(raw, "metrics"))  # before anything asks for one by its id
        problems += [] if any(_check_choice("task", raw.get("task"))) else use_task_of(raw)
    try:
        config = Config.model_validate(raw)
    except ValidationError as error:
        problems += explain_all(error.errors())
        config = None
    if raw.get("script") is None:
        problems += _check_choices(raw) + _check_model(_inner(raw, "model"))
        problems += _check_source(_inner(raw, "data", "source")) + _check_loop(_inner(raw, "train", "loop"))
    else:
        problems += [f"{name}: a script gave the objects of this run; change it there" for name in _in_objects(raw)]
    if config is not None and config.script is None and not problems:
        try:
            defaults_of(config.method.kind)
        except InputError as error:
            problems.append(f"method.kind: {error}")
    if problems or config is None:
        raise ConfigError(problems, where)
    return config


_NAMES = {"kind", "aggregate", "codec", "download_codec", "chain", "source", "loop", "metrics"}
# the settings in which something is named, beside those of _KINDS, _SINGLE and _LISTS


def with_code(value: Any, name: str = "") -> Any:
    """The settings, with the hash of its files in every reference to code of one's own; what cannot be found is told
    where it is looked up."""
    if isinstance(value, Mapping):
        return {inner: with_code(v, inner.rpartition(".")[2]) for inner, v in value.items()}
    if isinstance(value, list):
        return [with_code(v, name) for v in value]
    if isinstance(value, str) and name in {*_NAMES, *(keys[-1] for keys in (*_KINDS, *_SINGLE, *_LISTS))}:
        with suppress(InputError):
            return pinned(value)
    return value


_KINDS = {
    ("method",): "fedavg",
    ("model",): "mlp",
    ("data", "partition"): "dirichlet",
    ("data", "long_tail"): "exponential",
}


def _with_kinds(raw: Mapping[str, JSON]) -> Row:
    """The settings, with the default kind where a choice has options only."""
    filled = dict(raw)
    for (*parents, leaf), kind in _KINDS.items():
        place = filled
        for name in parents:
            inner = place.get(name)
            if isinstance(inner, Mapping):
                place[name] = inner = dict(inner)
            place = inner if isinstance(inner, dict) else {}
        if isinstance(place.get(leaf), Mapping):
            place[leaf] = {"kind": kind, **place[leaf]}
    return filled


def _check_choice(table: str, asked: JSON) -> list[str]:
    """Problems of a choice whose section has the name of its table."""
    given = named(asked)
    if not isinstance(given, Mapping) or not isinstance(given.get("kind"), str):
        return []
    return check_options(table, given["kind"], {k: v for k, v in given.items() if k != "kind"}, table)[1]


def _check_choices(raw: Mapping[str, JSON]) -> list[str]:
    """Problems of the sections that are chosen by kind."""
    problems: list[str] = []
    for table, path, asked in _choices(raw):
        given = named(asked)
        if isinstance(given, Mapping) and isinstance(given.get("kind"), str):
            apart = _APART.get(table, ())
            options = {k: v for k, v in given.items() if k != "kind" and k not in apart}
            problems += check_options(table, given["kind"], options, path)[1]
    return problems


def _choices(raw: Mapping[str, JSON]) -> Iterator[tuple[str, str, JSON]]:
    """What is chosen by kind: from which table, at which path, and what is asked for."""
    for table, *keys in _SINGLE:
        yield table, ".".join(keys), _optimizer(raw) if table == "optimizer" else _inner(raw, *keys)
    for table, *keys in _LISTS:
        listed = _inner(raw, *keys)
        for i, item in enumerate(listed if isinstance(listed, list) else []):
            yield table, f"{'.'.join(keys)}.{i}", item
    for section in ("codec", "download_codec"):
        yield from _codecs(section, _inner(raw, section))


_SINGLE = (
    ("method", "method"),
    ("task", "task"),
    ("optimizer", "train", "optimizer"),
    ("schedule", "train", "schedule"),
    ("partition", "data", "partition"),
    ("long_tail", "data", "long_tail"),
    ("shift", "data", "shift"),
    ("stream", "stream"),
    ("shift", "stream", "shift"),
    ("attack", "attack"),
    ("loss", "train", "loss"),
)
_LISTS = (
    ("transform", "data", "transforms"),
    ("tracker", "output", "trackers"),
    ("method", "compare", "methods"),
    ("callback", "callbacks"),
)
_CHOSEN = {tuple(keys) for _, *keys in _SINGLE} | {
    *(("model",), ("codec",), ("download_codec",), ("data", "source"), ("train", "loop"))
}  # the settings that may be a bare name, to which an override may add options
_APART = {  # settings of their own
    "method": ("label",),
    "stream": ("shift",),
    "codec": ("field", "chain", "error_feedback", "exchange"),
    "attack": ("clients", "samples"),
}


def _codecs(section: str, asked: JSON) -> list[tuple[str, str, JSON]]:
    """The codecs of a section, and those chained behind them."""
    listed = isinstance(asked, list)
    found: list[tuple[str, str, JSON]] = []
    for i, item in enumerate(asked if listed else [asked]):
        path = f"{section}.{i}" if listed else section
        found.append(("codec", path, item))
        behind = item.get("chain") if isinstance(item, Mapping) else None
        found += [("codec", f"{path}.chain.{j}", c) for j, c in enumerate(behind if isinstance(behind, list) else [])]
    return found


def _optimizer(raw: Mapping[str, JSON]) -> JSON:
    """The optimiser that is asked for; with options only, it is the method's own."""
    asked = _inner(raw, "train", "optimizer")
    if not isinstance(asked, Mapping) or "kind" in asked:
        return asked
    method = named(_inner(raw, "method") or "fedavg")
    try:
        return {**defaults_of(method["kind"])["optimizer"], **asked}
    except (InputError, KeyError, TypeError):  # whatever the method should be is told where methods are checked
        return None


def _check_model(asked: JSON) -> list[str]:
    """Problems of the model's name and options; whether it fits the data is seen when both are there."""
    given = named(asked)
    if not isinstance(given, Mapping) or not isinstance(given.get("kind"), str):
        return []
    from fedquilt.models.registry import COMMON, ModelEntry, find

    kind = given["kind"]
    try:
        takes, entry = find(kind).known, lookup("model", kind)
    except InputError as error:
        return [f"model.kind: {error}"]
    if entry.own and not isinstance(entry.load(), ModelEntry):
        options = {k: v for k, v in given.items() if k not in ("kind", *COMMON)}
        return check_options("model", kind, options, "model")[1]
    odd = [name for name in given if name != "kind" and name not in takes]
    return [f"model.{name}: unknown key for {kind!r}{did_you_mean(name, takes)}" for name in odd]


def _check_source(asked: JSON) -> list[str]:
    """Problems of the arguments of a function of the user's own that gives data; without any, it is not read yet."""
    if not isinstance(asked, Mapping) or not isinstance(asked.get("kind"), str):
        return []
    options = {k: v for k, v in asked.items() if k != "kind"}
    if is_reference(asked["kind"]):
        return check_options("dataset", asked["kind"], options, "data.source")[1]
    return [f"data.source.{name}: a data set that has a name takes no options" for name in options]


def _check_loop(asked: JSON) -> list[str]:
    """Problems of a training loop of the user's own, and of its options."""
    given = named(asked)
    if not isinstance(given, Mapping) or not isinstance(given.get("kind"), str):
        return []
    from fedquilt.core.own_loop import check_loop

    kind, given = given["kind"], {k: v for k, v in given.items() if k != "kind"}
    options, problems = check_options("loop", kind, given, "train.loop")
    if not problems:
        try:
            check_loop(piece("loop", lookup("loop", kind), options))
        except InputError as error:
            problems = [f"train.loop: {error}"]
    return problems


def _inner(raw: Mapping[str, JSON], *keys: str) -> JSON:
    inner: JSON = raw
    for key in keys:
        inner = inner.get(key) if isinstance(inner, Mapping) else None
    return inner


def dump(config: Config) -> str:
    """The resolved settings as TOML; of a run that a script began, those that its objects leave."""
    lines: list[str] = []
    told = config.model_dump(mode="json", exclude_none=True)
    if config.script is not None:
        for name in _IN_OBJECTS:
            section, _, leaf = name.partition(".")
            (told[section] if leaf else told).pop(leaf or section, None)
    _write_table(told, "", lines)
    return "\n".join(lines) + "\n"


_IN_OBJECTS = (  # what of a run is in its objects, where a script gave them; ``kind`` is what people call them
    *("data", "stream", "train", "codec", "download_codec", "cohort.fraction", "cohort.count"),
    *("checks", "attack", "compare", "sweep", "robustness", "flower"),
)


def _in_objects(raw: Mapping[str, JSON]) -> list[str]:
    """Settings that would say again, and perhaps otherwise, what the objects of a script say."""
    tables = {name: found for name in ("method", "model") if isinstance(found := raw.get(name), Mapping)}
    odd = [f"{table}.{name}" for table, found in tables.items() for name in found if name != "kind"]
    return [name for name in _IN_OBJECTS if _inner(raw, *name.split(".")) is not None] + odd


def _write_table(table: Mapping[str, JSON], path: str, lines: list[str]) -> None:
    inner = {k: v for k, v in table.items() if isinstance(v, dict)}
    if path:
        lines += ["", f"[{path}]"]
    lines += [f"{_key(k)} = {_toml(v)}" for k, v in table.items() if k not in inner]
    for name, value in inner.items():
        _write_table(value, f"{path}.{_key(name)}" if path else _key(name), lines)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _toml(name)


def _toml(value: JSON) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(k)} = {_toml(v)}" for k, v in value.items() if v is not None) + " }"
    return repr(value)


def flat(config: Mapping[str, JSON], path: str = "") -> dict[str, str]:
    """Settings as dotted names and JSON values."""
    found: dict[str, str] = {}
    for name, value in config.items():
        here = f"{path}.{name}" if path else name
        if isinstance(value, Mapping):
            found |= flat(value, here)
        else:
            found[here] = value if isinstance(value, str) else json.dumps(value)
    return found
