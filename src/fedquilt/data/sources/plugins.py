"""Data sets that installed packages bring, by the entry point group ``fedquilt.datasets``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fedquilt import registry
from fedquilt.data.sources.catalogue import DatasetEntry
from fedquilt.errors import InputError


def brought() -> dict[str, registry.RegistryEntry]:
    """Names of data sets and what brings them, in the order of names. Imports nothing."""
    return dict(sorted(registry.entries("dataset").items()))


def entry(known: registry.RegistryEntry) -> DatasetEntry:
    """The catalogue entry that a package brings: itself, or made of a function without arguments that reads."""
    name, package = known.name, known.package
    try:
        found: Any = known.load()
    except Exception as error:  # whatever another package does while it is imported
        reason = error.__cause__ if isinstance(error, InputError) and error.__cause__ else error
        raise InputError(f"The data set {name!r} of {package} cannot be imported: {reason}.") from error
    if isinstance(found, DatasetEntry):
        return replace(found, name=name)
    if not callable(found):
        raise InputError(
            f"The data set {name!r} of {package} is {type(found).__name__}. It must be a function that "
            "gives fedquilt.data.Arrays, or a fedquilt.data.DatasetEntry."
        )
    return DatasetEntry(name, "not stated", package, read=found, npz=None, needs=known.where.partition(":")[0])
