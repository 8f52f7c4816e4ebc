"""What people read for a method of a recipe: its label, or its display name with the options that are not usual."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedquilt.config.options import options_of
from fedquilt.config.settings import MethodChoice
from fedquilt.core.plain import JSON, Row
from fedquilt.errors import InputError
from fedquilt.registry import shown_as


def shown(method: MethodChoice) -> str:
    """Its label; without one its display name, and in brackets the options that differ from their defaults.

    Example:
        >>> shown(MethodChoice(kind="fedprox", mu=0.5))
        'FedProx (mu 0.5)'
        >>> shown(MethodChoice(kind="localize_stitch"))
        'Localize-and-Stitch'
    """
    return method.label or with_options(shown_as("method", method.kind), _unusual(method))


def shown_apart(methods: Sequence[MethodChoice]) -> list[str]:
    """The same of several methods; those that would read the same have all options that they were given, or a
    number."""
    names = [shown(method) for method in methods]
    names = [
        with_options(shown_as("method", method.kind), method.options)
        if names.count(name) > 1 and not method.label
        else name
        for method, name in zip(methods, names, strict=True)
    ]
    return [name if names.count(name) == 1 else f"{name} #{i}" for i, name in enumerate(names, 1)]


def shown_of(label: str) -> str:
    """What people read for the label of a run's folder, such as ``fedprox,mu=0.1``, where nothing else is known."""
    kind, comma, options = label.partition(",")
    kind, number, place = kind.partition("#")
    name = shown_as("method", kind)
    if name == kind:
        return label
    told = f" ({options.replace('=', ' ').replace(',', ', ')})" if comma else ""
    return f"{name}{told}" + (f" #{place}" if number else "")


def _unusual(method: MethodChoice) -> Row:
    """The options that differ from their defaults; all of a method that is not installed here."""
    try:
        usual = {name: field.default for name, field in options_of("method", method.kind).items()}
    except InputError:
        usual = {}
    given = {name: value for name, value in method.options.items() if name not in _OF_THE_NETWORK}
    return {name: value for name, value in given.items() if name not in usual or usual[name] != value}


_OF_THE_NETWORK = ("head",)  # options that say what the parts of a network are called, not what a method does


def with_options(name: str, options: Mapping[str, JSON]) -> str:
    """A name with options in brackets behind it."""
    told = ", ".join(name if value is True else f"{name} {_plain(value)}" for name, value in options.items())
    return f"{name} ({told})" if told else name


def _plain(value: JSON) -> str:
    """A value as people write it."""
    if isinstance(value, Mapping):
        return " ".join(f"{name} {_plain(inner)}" if name != "kind" else str(inner) for name, inner in value.items())
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_plain, value)) + "]"
    return f"{value:g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)
