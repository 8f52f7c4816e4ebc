"""Data that code of the user's own brings: a function without arguments, named ``my.py:function``."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from fedquilt import own_code, registry
from fedquilt.data.npz import Arrays
from fedquilt.errors import InputError


def arrays_of_own(name: str) -> Arrays:
    """The arrays that the function gives, to be divided over clients."""
    found = given(name)
    if not isinstance(found, Arrays):
        raise InputError(
            f"{own_code.unpinned(name)} gave a {type(found).__name__}, but data.source needs fedquilt.data.Arrays or "
            "a Federation (from_datasets, from_frame, ...). Return one of them."
        )
    return replace(found, name=found.name or own_code.short(name))


@lru_cache(maxsize=1)
def given(name: str) -> object:
    """What the function gives. It is called once, though one looks at its result several times."""
    found = registry.lookup("dataset", name).load()
    if not callable(found):
        raise InputError(f"{own_code.unpinned(name)} is a {type(found).__name__}. Name a function that gives data.")
    try:
        return found()
    except InputError:
        raise
    except Exception as error:  # whatever somebody else's code does
        raise InputError(f"{own_code.unpinned(name)} failed: {own_code.told(error)}") from error
