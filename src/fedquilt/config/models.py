"""What the command ``fedquilt models`` shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from fedquilt.config import described
from fedquilt.config.config import apply
from fedquilt.core.plain import Row
from fedquilt.errors import ConfigError, InputError
from fedquilt.models.counts import count
from fedquilt.models.registry import available, bare, find, make


def overview() -> list[Row]:
    """Every model: what it takes, its size and cost for a reference input, and a description."""
    return available()


def detail(name: str, shape: str | None, classes: int | None, options: Sequence[str]) -> Row:
    """One model for this shape and these classes: counts, and the parameters of its two parts."""
    entry, told = find(name), described.detail("model", name)
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


def in_words(found: list[Row] | Row) -> list[dict[str, str]]:
    """The same for people: a table for a list of models, one line for each number of a single one."""
    if isinstance(found, dict):
        return [{"what": key, "value": _said(value)} for key, value in found.items() if key != "options"]
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
    return f"{row['description']}; counted for {_said(row['input'])} and {row['classes']} classes"


def _said(value: object) -> str:
    if isinstance(value, list):
        return "x".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) else str(value)


def _sizes(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.replace("x", ",").strip(",").split(","))
    except ValueError as error:
        raise InputError(f"--shape must be whole numbers with commas, like 3,32,32, got {text!r}.") from error
