"""Describe an object as data, and build it again: how a method reaches another process without pickle.

A description is a record: a tree of plain values in which ``{"make": "module:Name", ...}`` is a call and
``{"name": "module:Name"}`` a function or class. Frozen dataclasses, importable functions and
``functools.partial`` describe themselves; anything else gives ``__describe__() -> (args, kwargs)``.

:func:`remembered` keeps the description of the call that made a federation, so that others can make it again.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import partial, wraps
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, cast

from torch import Tensor

from fedquilt.errors import InputError

_ROOMS = tuple(
    f"fedquilt.{room}"
    for room in (
        "core.net",
        "core.objective",
        "core.train",
        "core.exchange",
        "core.params",
        "core.columns",
        "pieces",
        "methods",
        "models",
        "metrics",
        "tasks",
    )
)
READING = tuple(  # modules that read files of this machine, or download
    f"fedquilt.{module}"
    for module in (
        "models.encoder",
        "models.masked.autoencoders",
        "models.masked.hf_mae",
        "models.registry",
        "models.weights",
        "metrics.energy",
        "metrics.memory",
        "metrics.table",  # which loads what packages bring
    )
)
_PLAIN = (bool, int, float, str, bytes, type(None), Tensor)


def describe(value: object, path: str = "method") -> Any:
    """The description of an object; raises with the path of the part that has none."""
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, tuple | list):
        return {"tuple" if isinstance(value, tuple) else "list": _described(value, path)}
    if isinstance(value, dict):
        return {"dict": [[describe(k, path), describe(v, f"{path}[{k!r}]")] for k, v in value.items()]}
    if isinstance(value, partial):
        given, named = _described(value.args, path), _by_name(value.keywords, path)
        return {"partial": describe(value.func, path), "args": given, "kwargs": named}
    if isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):
        return {"name": _name(value, path)}
    return _made_by(value, path)


def _made_by(value: object, path: str) -> dict[str, object]:
    """The call that makes an object."""
    maker = getattr(type(value), "__describe__", None)
    args: Sequence[object] = ()
    if maker is not None:
        args, kwargs = maker(value)
    elif is_dataclass(value):
        kwargs = {f.name: getattr(value, f.name) for f in fields(value) if f.init}
    else:
        raise InputError(
            f"{path} is a {type(value).__name__}, which another process cannot rebuild. Make it a frozen dataclass "
            "or a module-level function, or use engine='local'."
        )
    return {"make": _name(type(value), path), "args": _described(args, path), "kwargs": _by_name(kwargs, path)}


def _described(values: Sequence[object], path: str) -> list[object]:
    return [describe(value, f"{path}[{place}]") for place, value in enumerate(values)]


def _by_name(values: Mapping[str, object], path: str) -> dict[str, object]:
    return {name: describe(value, f"{path}.{name}") for name, value in values.items()}


def build(description: Any, trusted: Sequence[str] | None = None) -> Any:
    """The object of a description. It calls what the description names.

    Args:
        description: Made by :func:`describe`.
        trusted: None only for descriptions made by this very program. For those that came from elsewhere: the
            packages or modules, beside the rooms of this library that hold methods and their parts, whose names
            may be called. Modules that read this machine's files or download are not in those rooms: what another
            machine says must not open them unless they are named here.
    """
    if isinstance(description, _PLAIN):
        return description
    inner = partial(build, trusted=trusted)
    if "tuple" in description:
        return tuple(inner(v) for v in description["tuple"])
    if "list" in description:
        return [inner(v) for v in description["list"]]
    if "dict" in description:
        return {inner(k): inner(v) for k, v in description["dict"]}
    if "name" in description:
        return _allowed(description["name"], trusted)
    return _called(description, trusted)


def check_names(description: Any, trusted: Sequence[str]) -> None:
    """Raise unless :func:`build`, trusting these, would call all that the description names; nothing is called."""
    if not isinstance(description, dict):
        for inner in description if isinstance(description, list) else ():
            check_names(inner, trusted)
        return
    for key, inner in description.items():
        if key in ("make", "name"):
            _allowed(inner, trusted)
        check_names(list(inner.values()) if key == "kwargs" else inner, trusted)


def _called(description: Any, trusted: Sequence[str] | None) -> Any:
    """What a described call gives; of a partial one, the function that waits for the rest."""
    args = [build(a, trusted) for a in description["args"]]
    kwargs = {k: build(v, trusted) for k, v in description["kwargs"].items()}
    if "partial" in description:
        return partial(build(description["partial"], trusted), *args, **kwargs)
    return _allowed(description["make"], trusted)(*args, **kwargs)


def _allowed(name: str, trusted: Sequence[str] | None) -> Any:
    """What a name stands for. It must be defined in a trusted module itself: modules also know what they import."""
    if trusted is None:
        return find(name)
    places = (*_ROOMS, *trusted)
    module, _, path = name.partition(":") if isinstance(name, str) else ("", "", "")
    _refuse_files(module, name, trusted)
    hidden = any(part.startswith("__") for part in path.split("."))
    found = _found(name) if _within(module, places) and not hidden else None
    own = getattr(found, "__module__", None)
    if not callable(found) or not isinstance(own, str) or not _within(own, places):
        raise InputError(
            f"{name!r} is not among the trusted packages ({', '.join(places)}). If you trust the package that "
            "defines it, name it when you join."
        )
    _refuse_files(own, name, trusted)
    return found


def _refuse_files(module: str, name: str, trusted: Sequence[str]) -> None:
    if _within(module, READING) and not _within(module, trusted):
        raise InputError(
            f"{name!r} reads files of this machine, or downloads them, and the server named which. If you agree, "
            f"trust {module} when you join."
        )


def _found(name: str) -> Any:
    try:
        return find(name)
    except (ImportError, AttributeError) as error:
        raise InputError(f"{name!r} is not here. Is the same version installed as at the server?") from error


def _within(module: str, places: Sequence[str]) -> bool:
    return any(module == place or module.startswith(place + ".") for place in places)


def _name(value: Any, path: str) -> str:
    module = "__main__" if value.__module__ == "__mp_main__" else value.__module__
    owner = getattr(value, "__self__", None)
    if isinstance(owner, type):  # a classmethod such as Model.from_pretrained
        module = owner.__module__
        name = f"{module}:{owner.__qualname__}.{value.__name__}"
    else:
        name = f"{module}:{value.__qualname__}"
    try:
        found = find(name)
    except (ImportError, AttributeError, InputError):
        found = None
    if found is not value and found != value:
        raise InputError(
            f"{path} is {value.__qualname__!r} of {value.__module__}, which another process cannot import by name. "
            "Define it at the top of a module (not as a lambda or inside a function), or use engine='local'."
        )
    return name


def find(name: str) -> Any:
    """The object called 'module:qualified.name'."""
    module_name, _, path = name.partition(":")
    value: Any = _module(module_name)
    for part in path.split("."):
        value = getattr(value, part)
    return value


def _module(name: str) -> ModuleType:
    loaded = sys.modules.get(name)
    return loaded if loaded is not None else importlib.import_module(name)


M = TypeVar("M", bound=Callable[..., Any])


def remembered(make: M) -> M:
    """A classmethod whose federations have the description of the call as their ``origin``, if it has one."""

    first = list(inspect.signature(make).parameters)[1]
    reads = first in ("path", "folder")

    @wraps(make)
    def made(cls: type[Any], *args: Any, **options: Any) -> Any:
        found = make(cls, *args, **options)
        if reads:  # a file or folder, as it is from anywhere
            given = str(Path(args[0] if args else options[first]).resolve())
            args, options = ((given, *args[1:]), options) if args else ((), {**options, first: given})
        try:
            told = {"args": [describe(arg) for arg in args], "kwargs": {n: describe(v) for n, v in options.items()}}
        except InputError:  # an array, or something of the user's own
            return found
        name = f"{cls.__module__}:{cls.__qualname__}.{make.__name__}"
        object.__setattr__(found, "origin", {"make": name, **told})
        return found

    return cast(M, made)
