"""What ``fedquilt methods NAME`` and its like show: every option, with its type, default and meaning, and the paper.

Meanings are read from docstrings: an option is written once, where it is a field or an argument.
"""

from __future__ import annotations

import importlib
import inspect
import re
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from fedquilt.config.config import apply
from fedquilt.config.options import options_of
from fedquilt.config.settings import Training
from fedquilt.config.training import KEYS, defaults_of
from fedquilt.core.plain import JSON, Row
from fedquilt.errors import ConfigError, InputError
from fedquilt.models.counts import count
from fedquilt.models.registry import bare, find, make
from fedquilt.registry import RegistryEntry, lookup

SECTIONS = {"method": "method", "codec": "codec", "partition": "data.partition", "model": "model"}


def detail(kind: str, name: str) -> Row:
    """One choice: its options and, of a method, its own settings for local work."""
    entry = lookup(kind, name)
    sources = _sources(kind, entry)[: 1 if kind == "method" else None]  # FedAvg's paper is not that of those on it
    told = next(filter(None, map(paper, sources)), entry.reference)
    found: Row = {"name": name, "about": entry.about, "reference": told, "options": options(kind, name)}
    if kind == "method":
        train = defaults_of(name)
        hints = {n: Training.model_fields[n].annotation for n in KEYS}
        meanings = meaning_of(_sources(kind, entry, trains=True))
        found["train"] = [_row("train", n, hints[n], False, train[n], meanings) for n in KEYS]
    return found


def options(kind: str, name: str) -> list[Row]:
    """The options of one choice."""
    entry = lookup(kind, name)
    sources = _sources(kind, entry)
    meanings, section = meaning_of(sources), SECTIONS[kind]
    if kind != "model":
        fields = options_of(kind, name).items()
        return [_row(section, n, f.annotation, f.is_required(), f.default, meanings) for n, f in fields]
    taken = {n: p for source in reversed(sources) for n, p in _taken(source).items()}
    none = inspect.Parameter.empty
    return [
        _row(section, n, taken[n].annotation, taken[n].default is none, taken[n].default, meanings)
        for n in find(name).known
    ]


def _row(section: str, name: str, hint: object, required: bool, default: object, meanings: Mapping[str, str]) -> Row:
    return {
        "setting": f"{section}.{name}",
        "type": in_words(hint),
        "required": required,
        "default": None if required else default,
        "meaning": meanings.get(name, ""),
    }


def _sources(kind: str, entry: RegistryEntry, trains: bool = False) -> tuple[Any, ...]:
    """Where options may be described, the nearest first."""
    maker = entry.load()
    if kind == "method":
        from fedquilt.core.train import Train
        from fedquilt.methods.fedavg import FedAvg

        return (Train, maker) if trains else (maker, FedAvg)
    if kind == "model":
        known = find(entry.name)
        return (*known.described, known.build, make)
    return (maker,)


def _taken(source: Any) -> dict[str, inspect.Parameter]:
    """The parameters of a class or a function, with their types."""
    plain = _bare(source)
    hints = typing.get_type_hints(vars(plain)["__init__"] if isinstance(plain, type) else plain)
    found = inspect.signature(source).parameters
    return {n: p.replace(annotation=hints.get(n, p.annotation)) for n, p in found.items()}


def _bare(source: object) -> Any:
    return source.func if isinstance(source, partial) else source


def _texts(sources: Iterable[Any]) -> list[str]:
    """The docstrings, those of a class before those of its bases."""
    bare = [_bare(source) for source in sources]
    found = [kind for one in bare for kind in (one.__mro__ if isinstance(one, type) else (one,))]
    return [inspect.cleandoc(one.__doc__) for one in found if one is not object and one.__doc__]


def meaning_of(sources: Iterable[Any]) -> dict[str, str]:
    """The meaning of each argument, by the sections ``Args`` of docstrings: of the nearest one that does not only point
    to another."""
    found: dict[str, str] = {}
    for text in reversed(_texts(sources)):
        block = re.search(r"^Args:\n((?:[ ]{4}.*\n?|\n(?=[ ]{4}))+)", text, re.M)
        for names, said in re.findall(r"^ {4}([\w, ]+): ((?:.*\n?)(?: {5,}.*\n?)*)", block[1] if block else "", re.M):
            pointing = said.startswith(("As ", "See "))
            shared = _at(said)
            new = {n: shared.get(n) or _plain(said) for n in re.split(r", +", names)}
            found |= {n: text for n, text in new.items() if n in shared or not (pointing and n in found)}
    return found


def _at(said: str) -> dict[str, str]:
    """The meanings in a docstring that is pointed to by 'See' and its whole name."""
    place = re.match(r"See :class:`(fedquilt[\w.]*)\.(\w+)`", said)
    return meaning_of([getattr(importlib.import_module(place[1]), place[2])]) if place else {}


def paper(maker: object) -> str:
    """The paper that a docstring refers to, that of a class before those of its bases; '' for none."""
    for text in _texts([maker]):
        if told := re.search(r"^Reference: ((?:.+\n?)+)", text, re.M):
            return _plain(told[1])
    return ""


def _plain(text: str) -> str:
    """A piece of a docstring without its marks."""
    text = re.sub(r":\w+:`~?(?:[\w.]+\.)?(\w+)`", r"\1", " ".join(text.split()))
    return text.replace("``", "").removesuffix(".")


def lines(found: Row) -> list[dict[str, str]]:
    """The same for people: a line for each setting."""
    return [
        {
            "setting": row["setting"],
            "type": row["type"],
            "default": "must be given" if row["required"] else said(row["default"]),
            "meaning": row["meaning"],
        }
        for row in (*found["options"], *found.get("train", ()))
    ]


def said(value: JSON) -> str:
    """A default as a recipe would have it."""
    if isinstance(value, dict):
        return f"{value['kind']}({', '.join(f'{k}={v}' for k, v in value.items() if k != 'kind')})"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(str, value))}]"
    return "none" if value is None else str(value)


_WORDS = {
    bool: "true or false",
    int: "whole number",
    float: "number",
    str: "text",
    dict: "table",
    type(None): "none",
    Path: "file",
}


def in_words(hint: Any) -> str:
    """A type as people say it."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return in_words(parts[0])
    if origin is Literal:
        return " | ".join(map(str, parts))
    if origin in (typing.Union, types.UnionType):
        return " | ".join(in_words(part) for part in parts)
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return f"list of {in_words(parts[0])}"
    return _WORDS.get(origin or hint, "name or table")


def model_detail(name: str, shape: str | None, classes: int | None, options: Sequence[str]) -> Row:
    """One model for this shape and these classes: counts, and the parameters of its two parts."""
    entry, told = find(name), detail("model", name)
    given, problems = apply({}, options)
    if problems:
        raise ConfigError(problems, "models")
    wanted = entry.reference if shape is None else _sizes(shape)
    many = entry.classes if classes is None else classes
    builder = make(name, wanted, many, **given)
    named = dict(bare(builder).named_parameters())
    head = sum(p.numel() for n, p in named.items() if n.startswith("head."))
    counts = count(builder, wanted)
    return {
        "name": name,
        "description": told["about"],
        "reference": told["reference"],
        "takes": entry.takes,
        "options": told["options"],
        "shape": list(wanted),
        "classes": many,
        **asdict(counts),
        "features": counts.parameters - head,
        "head": head,
    }


def model_words(found: list[Row] | Row) -> list[dict[str, str]]:
    """The same for people: a table for a list of models, one line for each number of a single one."""
    if isinstance(found, dict):
        return [{"what": key, "value": _shown(value)} for key, value in found.items() if key != "options"]
    return [
        {
            "name": row["name"],
            "takes": row["takes"],
            "parameters": "" if row["parameters"] is None else f"{row['parameters']:,}",
            "MFLOPs": "" if row["mflops"] is None else f"{row['mflops']:,}",
            "about": _about(row),
        }
        for row in found
    ]


def _about(row: Row) -> str:
    if row["parameters"] is None:
        return str(row["description"])
    return f"{row['description']}; counted for {_shown(row['input'])} and {row['classes']} classes"


def _shown(value: object) -> str:
    if isinstance(value, list):
        return "x".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) else str(value)


def _sizes(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.replace("x", ",").strip(",").split(","))
    except ValueError as error:
        raise InputError(f"--shape must be whole numbers with commas, like 3,32,32, got {text!r}.") from error
