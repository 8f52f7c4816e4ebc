"""Local work where a recipe is silent: each method has settings of its own, and ``[train]`` changes some of them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import TYPE_CHECKING

from fedquilt.core.plain import JSON, Row
from fedquilt.errors import InputError
from fedquilt.registry import entries, lookup

if TYPE_CHECKING:
    from fedquilt.config.settings import Training

KEYS = ("epochs", "epochs_first", "steps", "batch_size", "optimizer", "schedule", "clip")


def defaults_of(kind: str) -> Row:
    """A method's own settings for local work, in the words of ``[train]``.

    They are the defaults in the signature of what makes the method; what it does not name is as in FedAvg.

    Example:
        >>> defaults_of("podfcssv")["optimizer"]
        {'kind': 'adamw', 'lr': 0.0001, 'weight_decay': 0.05}
    """
    found: Row = {}
    for maker in (lookup("method", "fedavg").load(), lookup("method", kind).load()):
        made = {f.name: f.default_factory for f in fields(maker)} if is_dataclass(maker) else {}
        for name, parameter in inspect.signature(maker).parameters.items():
            if name in KEYS and parameter.default is not inspect.Parameter.empty:
                factory = made.get(name, MISSING)
                found[name] = parameter.default if factory is MISSING else factory()
    for name in ("optimizer", "schedule"):
        found[name] = _choice(name, found[name], kind)
    return found


def _choice(table: str, value: JSON, method: str) -> Row | None:
    """An optimiser or a schedule as a recipe names it, with the options that are not its own defaults."""
    from fedquilt.core.train import constant

    if value is None or value is constant:
        return None
    for name, entry in entries(table).items():
        if is_dataclass(value) and entry.load() is type(value):
            return {"kind": name, **_unusual(value)}
    raise InputError(
        f"The method {method!r} has the default {table} {value!r}, which no recipe could name. Give it a name by the "
        f"entry point group 'fedquilt.{table}s'."
    )


def _unusual(piece: JSON) -> Row:
    """The options of a piece that are not its own defaults."""
    options = ((f, getattr(piece, f.name)) for f in fields(piece) if f.init)
    return {f.name: value for f, value in options if f.default is MISSING or f.default != value}


def resolved(train: Training, kind: str) -> Training:
    """The settings that a method of this kind trains with: those that were given, and its own wherever nothing was.

    An optimiser without its kind changes options of the method's own one; one with its kind stands for itself. What
    was given is what ``model_fields_set`` says, before and after.
    """
    own, given = defaults_of(kind), train.model_fields_set
    if given & {"epochs", "epochs_first"}:
        own["steps"] = None
    if "steps" in given:
        own |= {"epochs": 1, "epochs_first": None}
    made = type(train).model_validate({k: v for k, v in own.items() if v is not None})
    values = {n: getattr(train if n in given or n not in own else made, n) for n in type(train).model_fields}
    asked = train.optimizer
    if "optimizer" in given and "kind" not in asked.model_fields_set:
        options = {k: v for k, v in asked.options.items() if k in asked.model_fields_set}
        filled: Mapping[str, JSON] = {**own["optimizer"], **options}
        values["optimizer"] = type(asked).model_construct(set(options), **filled)
    return type(train).model_construct(set(given), **values)
