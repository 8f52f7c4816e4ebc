"""What the command ``fedquilt methods NAME`` shows."""

from __future__ import annotations

import types
import typing
from typing import Annotated, Any, Literal

from fedquilt.registry import lookup
from fedquilt.runs.options import options_of
from fedquilt.runs.settings import Training
from fedquilt.runs.training import KEYS, defaults_of


def detail(name: str) -> dict[str, Any]:
    """One method: its options, and its own settings for local work, each with its type and default."""
    entry, train = lookup("method", name), defaults_of(name)
    options = [
        {"setting": f"method.{n}", "type": in_words(f.annotation), "required": f.is_required(),
         "default": None if f.is_required() else f.default}
        for n, f in options_of("method", name).items()
    ]  # fmt: skip
    work = [
        {"setting": f"train.{n}", "type": in_words(Training.model_fields[n].annotation), "required": False,
         "default": train[n]}
        for n in KEYS
    ]  # fmt: skip
    return {"name": name, "about": entry.about, "reference": entry.reference, "options": options, "train": work}


def lines(found: dict[str, Any]) -> list[dict[str, str]]:
    """The same for people: a line for each setting."""
    return [
        {"setting": row["setting"], "type": row["type"], "default": "must be given" if row["required"] else _said(row)}
        for row in (*found["options"], *found["train"])
    ]


def _said(row: dict[str, Any]) -> str:
    value = row["default"]
    if isinstance(value, dict):
        return f"{value['kind']}({', '.join(f'{k}={v}' for k, v in value.items() if k != 'kind')})"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(str, value))}]"
    return "none" if value is None else str(value)


_WORDS = {bool: "true or false", int: "whole number", float: "number", str: "text", dict: "table", type(None): "none"}


def in_words(hint: Any) -> str:
    """A type as people say it."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return in_words(parts[0])
    if origin is Literal:
        return " | ".join(map(str, parts))
    if origin in (typing.Union, types.UnionType):
        return " | ".join(in_words(part) for part in parts)
    if origin in (tuple, list):
        return f"list of {in_words(parts[0])}"
    return _WORDS.get(origin or hint, "name or table")
