"""Data sets that installed packages bring, by the entry point group ``fedquilt.datasets``."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from fedquilt.core.errors import InputError
from fedquilt.data.catalogue import Entry

GROUP = "fedquilt.datasets"


def brought() -> dict[str, EntryPoint]:
    """Names of data sets and what brings them, in the order of names. Imports nothing."""
    return {point.name: point for point in sorted(entry_points(group=GROUP), key=lambda point: point.name)}


def entry(point: EntryPoint) -> Entry:
    """The catalogue entry behind an entry point: itself, or made of a function without arguments that reads."""
    try:
        found: Any = point.load()
    except Exception as error:  # whatever another package does while it is imported
        raise InputError(f"The data set {point.name!r} of {package(point)} cannot be imported: {error}.") from error
    if isinstance(found, Entry):
        return replace(found, name=point.name)
    if not callable(found):
        raise InputError(
            f"The data set {point.name!r} of {package(point)} is {type(found).__name__}. It must be a function that "
            "gives fedquilt.data.Arrays, or a fedquilt.data.Entry."
        )
    return Entry(point.name, "not stated", package(point), read=found, npz=None, needs=point.value.partition(":")[0])


def package(point: EntryPoint) -> str:
    """What to call the package that brings it."""
    return point.dist.name if point.dist is not None else point.value
