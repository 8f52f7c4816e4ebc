"""Choices by name: the options each takes, from its signature, and what is wrong with those given."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from fedquilt.config.settings import Config, Kinded
from fedquilt.core.plain import JSON, Row
from fedquilt.errors import ConfigError, InputError, did_you_mean
from fedquilt.own_code import place, unpinned
from fedquilt.registry import RegistryEntry, entries, lookup


def check_options(table: str, kind: str, options: Mapping[str, JSON], path: str) -> tuple[Row, list[str]]:
    """The options of a choice, converted to the types it takes, and every problem with them."""
    try:
        takes = _schema(table, kind)
    except InputError as error:
        return {}, [f"{path}.kind: {error}"]
    try:
        made = takes.model_validate(dict(options))
    except ValidationError as error:
        problems = [_wrong(e, table, lookup(table, kind), takes, path) for e in error.errors()]
        if all(e["type"] == "extra_forbidden" for e in error.errors()):  # the others may be wrong in other ways
            known = {k: v for k, v in options.items() if k in takes.model_fields}
            problems += check_options(table, kind, known, path)[1]
        return {}, problems
    given = {name: getattr(made, name) for name in made.model_fields_set}
    if table == "method":
        return _with_aggregator(given, path)
    if table in ("model", "loss", "dataset"):  # which are made when they are needed
        return given, []
    try:
        piece(table, lookup(table, kind), given)  # pieces check their own ranges when they are made
    except (InputError, ValueError, TypeError) as error:
        return {}, [f"{path}: {error}{place(error)}"]
    return given, []


def piece(table: str, entry: RegistryEntry, given: Mapping[str, JSON]) -> Any:
    """The object of a choice. A class or function makes it; a function of the user's own is the thing itself, with the
    options as further arguments, where what is wanted can be called."""
    maker = entry.load()
    if not _is_itself(table, entry, maker):
        return maker(**given)
    return partial(maker, **given) if given else maker


def _is_itself(table: str, entry: RegistryEntry, maker: Any) -> bool:
    return entry.own and table in CALLED and not isinstance(maker, type) and callable(maker)


def made(table: str, choice: Kinded, path: str) -> Any:
    """The object of a choice, with its options."""
    given, problems = check_options(table, choice.kind, choice.options, path)
    if problems:
        raise ConfigError(problems)
    return piece(table, lookup(table, choice.kind), given)


def _with_aggregator(given: Row, path: str) -> tuple[Row, list[str]]:
    """A method's options, with the aggregator that they name."""
    if "aggregate" not in given:
        return given, []
    aggregate, problems = _aggregator(given["aggregate"], f"{path}.aggregate")
    return ({}, problems) if problems else ({**given, "aggregate": aggregate}, [])


def _wrong(error: ErrorDetails, table: str, entry: RegistryEntry, takes: type[BaseModel], path: str) -> str:
    """A problem with an option, in our words."""
    if error["type"] != "extra_forbidden":
        return f"{path}.{explain(error)}"
    leaf = str(error["loc"][0]) if error["loc"] else ""
    if leaf == "aggregate" and entry.own_average:
        return f"{path}.aggregate: {entry.name!r} takes none: {entry.own_average}. Leave it out, or use another method"
    there = _elsewhere(leaf, path) or _of_another_kind(table, leaf, path) or _meant(leaf, takes.model_fields)
    return f"{path}.{leaf}: unknown key for {unpinned(entry.name)!r}{there}"


def _of_another_kind(table: str, option: str, path: str) -> str:
    """The first other choice that takes this option, or nothing."""
    for name in entries(table):
        try:
            taken = options_of(table, name)
        except (ImportError, InputError):  # what cannot be loaded takes nothing
            continue
        if option in taken:
            return f"; {name} has it: {path}.kind={name}"
    return ""


def _aggregator(asked: str | Row, path: str) -> tuple[Any, list[str]]:
    """The aggregator of a name, or of a name with options."""
    given = {"kind": asked} if isinstance(asked, str) else asked
    kind, options = given.get("kind"), {k: v for k, v in given.items() if k != "kind"}
    if not isinstance(kind, str):
        return None, [f"{path}.kind: missing"]
    try:
        entry = lookup("aggregate", kind)
    except InputError as error:
        return None, [f"{path}: {error}"]
    if entry.ready or (_is_itself("aggregate", entry, entry.load()) and not options):
        return entry.load(), [f"{path}.{name}: {kind!r} has no options" for name in options]
    inner: Row = {}
    if "then" in options and "then" in inspect.signature(entry.load()).parameters:
        inner["then"], problems = _behind(kind, options.pop("then"), f"{path}.then")
        if problems:
            return None, problems
    made, problems = check_options("aggregate", kind, options, path)
    return (None, problems) if problems else (piece("aggregate", entry, {**made, **inner}), [])


def _behind(kind: str, asked: str | Row, path: str) -> tuple[Any, list[str]]:
    """The aggregator that one of this kind goes on with."""
    then, problems = _aggregator(asked, path)
    if not problems and not hasattr(then, "merge"):
        problems = [f"{path}: only robust aggregators go behind {kind!r}, such as 'median'"]
    return then, problems


def options_of(table: str, kind: str) -> Mapping[str, FieldInfo]:
    """The options that a choice takes, with their types and defaults."""
    return _schema(table, kind).model_fields


_PLAIN = (bool, int, float, str, list, tuple, dict)


def _schema(table: str, kind: str) -> type[BaseModel]:
    """A model of the plain options that a choice takes, from its signature."""
    entry = lookup(table, kind)
    maker = entry.load()
    if not callable(maker):
        raise InputError(f"{kind!r} is a {type(maker).__name__}; a {table} is made by a class or a function.")
    return _schema_of(table, entry, maker)


@cache
def _schema_of(table: str, entry: RegistryEntry, maker: Any) -> type[BaseModel]:
    hints = _hints(maker)
    taken: dict[str, Any] = {}
    parameters = inspect.signature(maker).parameters
    passed = list(parameters)[: _count(table, parameters)] if _is_itself(table, entry, maker) else []
    for name, parameter in parameters.items():
        if name in passed or parameter.kind in _MANY:
            continue
        kind = _option_type(table, name, hints.get(name, parameter.annotation))
        if kind is not None:
            taken[name] = (kind, ... if parameter.default is inspect.Parameter.empty else parameter.default)
    shared = taken.pop("shared_start", None) is not None
    if table == "method":
        taken |= _of_fedavg(entry, parameters, shared)
    settings = ConfigDict(extra="forbid", allow_inf_nan=False)
    return create_model(f"{entry.name} options", __config__=settings, **taken)


def _of_fedavg(entry: RegistryEntry, parameters: Mapping[str, inspect.Parameter], shared: bool) -> dict[str, Any]:
    """FedAvg's options that a method takes, or hands down to it."""
    found: dict[str, Any] = {}
    if not entry.own_average and _hands_down(entry, parameters):
        usual = parameters["aggregate"].default if "aggregate" in parameters else None
        found["aggregate"] = (str | dict[str, Any], getattr(usual, "__name__", "mean"))
    if shared or any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        found["shared_start"] = (bool, False)
    return found


def _option_type(table: str, name: str, hint: Any) -> Any:
    """The type of a plain option; None for an argument that is none, an object or what comes from elsewhere."""
    kind = _named(hint)
    if kind is inspect.Parameter.empty or isinstance(kind, str):
        kind = Any  # somebody's own, without types
    elsewhere = name in GIVEN.get(table, ()) or (table == "method" and name in _OBJECTS and kind is Any)
    return kind if not elsewhere and (kind is Any or _is_plain(kind)) else None


COMMON = ("optimizer", "epochs", "epochs_first", "steps", "batch_size", "schedule", "clip", "cohort")
GIVEN = {"method": COMMON, "model": ("shape", "features", "channels", "size", "length", "classes")}
# arguments that come from elsewhere than the options of a choice
CALLED = {  # what can be called is called with
    "aggregate": ("current", "replies", "context"),
    "loop": ("model", "data_loader", "context"),
    "loss": ("scores", "labels"),
    "metric": ("scores", "labels"),
    "partition": ("labels", "clients", "seed"),
    "schedule": ("round",),
    "shift": ("federation", "seed"),
    "transform": ("x",),
}
TERM = ("out", "params", "fixed", "batch")  # with which a loss can be called instead


def is_term(parameters: Mapping[str, inspect.Parameter]) -> bool:
    """Whether a loss is a term of an objective, by what it must be called with."""
    return sum(p.default is p.empty for p in parameters.values()) == len(TERM)


def _count(table: str, parameters: Mapping[str, inspect.Parameter]) -> int:
    return len(TERM if table == "loss" and is_term(parameters) else CALLED[table])


_OBJECTS = ("objective", "base", "client_update")  # those of methods
_MANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _hints(maker: Any) -> dict[str, Any]:
    """The types of what it takes; of a dataclass its fields, each in its own module's words."""
    plain = isinstance(maker, type) and not dataclasses.is_dataclass(maker)
    try:
        return typing.get_type_hints(maker.__init__ if plain else maker, include_extras=True)
    except NameError:  # types that are imported for checkers only
        return {}


def _hands_down(entry: RegistryEntry, parameters: Mapping[str, inspect.Parameter]) -> bool:
    """Whether a method takes FedAvg's aggregator: all of the library's and of packages do, or say that they do not."""
    many = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    return not entry.own or many or bool(parameters.keys() & {"aggregate", "base"})


def _named(hint: object) -> Any:
    """What a recipe may give: of an option that takes any object, the names that are annotated."""
    parts = typing.get_args(hint)
    return parts[1] if typing.get_origin(hint) is Annotated and parts[0] is Any else hint


def _is_plain(hint: object) -> bool:
    if hint in _PLAIN or hint is type(None):
        return True
    parts = typing.get_args(hint)
    if typing.get_origin(hint) is Literal:
        return True
    if typing.get_origin(hint) is Annotated:
        return _is_plain(parts[0])
    return bool(parts) and all(p is Ellipsis or _is_plain(p) for p in parts)


_BRANCHES = ("float", "list[float]", "bool", "literal['auto']", "constrained-int", "constrained-float")
# what pydantic adds to the path of a setting that takes several types


def of_other_branch(error: ErrorDetails) -> bool:
    """Whether a problem is of the form of a setting that was not meant: a list, say, where a number was given."""
    return bool(error["loc"][-1:] == (("float" if isinstance(error["input"], list) else "list[float]"),))


def explain_all(errors: Iterable[ErrorDetails]) -> list[str]:
    """Problems in our words, one for each setting: of one that takes several types, what each of them wants."""
    found: dict[str, list[ErrorDetails]] = {}
    for error in errors:
        if not of_other_branch(error):
            tagged = error["loc"][-1:] and error["loc"][-1] in _BRANCHES[2:]
            found.setdefault(str(error["loc"][:-1] if tagged else error["loc"]), []).append(error)
    return [explain(group[0]) if len(group) == 1 else _either(group) for group in found.values()]


def _either(errors: Sequence[ErrorDetails]) -> str:
    wanted = dict.fromkeys(_should(e).removeprefix("should be ") for e in errors)
    return explain({**errors[0], "type": "", "msg": f"should be {' or '.join(wanted)}"})


def explain(error: ErrorDetails) -> str:
    """A problem that pydantic found, in our words."""
    path = ".".join(str(p) for p in error["loc"] if p not in _BRANCHES)
    if error["type"] == "extra_forbidden":
        *parents, leaf = error["loc"]
        above = ".".join(map(str, parents))
        return f"{path}: unknown key{_elsewhere(str(leaf), above) or _meant(str(leaf), _known(parents))}"
    if error["type"] == "missing":
        return f"{path}: missing"
    if error["type"] == "value_error":
        told = str(error["ctx"]["error"])
        shown = isinstance(error["input"], dict) or "got " in told or repr(error["input"]) in told
        return f"{path}: {told}" if shown else f"{path}: {told}, got {error['input']!r}"
    return f"{path}: {_should(error)}, got {error['input']!r}"


_SHOULD = {  # pydantic's kinds of errors, in the words of recipes
    "model_type": "should be a section",
    "int_parsing": "should be a whole number",
    "int_type": "should be a whole number",
    "int_from_float": "should be a whole number",
    "float_parsing": "should be a number",
    "float_type": "should be a number",
    "bool_parsing": "should be true or false",
    "bool_type": "should be true or false",
    "string_type": "should be text",
    "list_type": "should be a list, like [1, 2]",
    "greater_than_equal": "should be at least {ge:g}",
    "greater_than": "should be more than {gt:g}",
    "less_than_equal": "should be at most {le:g}",
    "less_than": "should be less than {lt:g}",
}


def _should(error: ErrorDetails) -> str:
    """What a value should be."""
    if error["type"] in _SHOULD:
        return _SHOULD[error["type"]].format(**error.get("ctx", {}))
    told = error["msg"].removeprefix("Input ")
    return told[0].lower() + told[1:]


def _meant(name: str, known: Iterable[str]) -> str:
    """What was perhaps meant, or else everything there is."""
    names = list(known)
    return did_you_mean(name, names) or (f"; known: {', '.join(names)}" if names else "; it has no options")


def _elsewhere(name: str, path: str) -> str:
    """The whole name of the setting that alone ends so, unless it is the one that was given."""
    found = _places().get(name)
    return f"; did you mean {found!r}?" if found not in (None, f"{path}.{name}".removeprefix(".")) else ""


@cache
def _places() -> dict[str, str]:
    """The whole names of settings whose last part tells which is meant: of lr, train.optimizer.lr."""
    found: dict[str, list[str]] = {}
    for name in (
        *_settings(Config, ""),
        "train.optimizer.lr",
        "train.optimizer.momentum",
        "data.partition.alpha",
        "method.mu",
    ):
        if not name.startswith("robustness."):  # of a command of its own
            found.setdefault(name.rpartition(".")[2], []).append(name)
    return {leaf: names[0] for leaf, names in found.items() if len(names) == 1}


def _settings(model: Any, path: str) -> Iterator[str]:
    for name, info in model.model_fields.items():
        inner = info.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from _settings(inner, f"{path}{name}.")
        else:
            yield f"{path}{name}"


def _known(parents: Sequence[int | str]) -> list[str]:
    model: Any = Config
    for name in parents:
        info = getattr(model, "model_fields", {}).get(name)
        model = info.annotation if info is not None else None
        inner = [a for a in typing.get_args(model) if isinstance(a, type) and issubclass(a, BaseModel)]
        model = inner[0] if inner else model
    return list(getattr(model, "model_fields", {}))
