"""Data that code of the user's own brings: a function without arguments, named ``my.py:function``."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from fedquilt import own_code, registry
from fedquilt.data.npz import Arrays, arrays_of
from fedquilt.errors import InputError


def arrays_of_own(name: str) -> Arrays:
    """The arrays that the function gives, to be divided over clients."""
    found = given(name)
    if isinstance(found, tuple) and len(found) in (2, 4):  # x and y, or those and a common test set
        keys = ("x", "y") if len(found) == 2 else ("x_train", "y_train", "x_test", "y_test")
        found = arrays_of(dict(zip(keys, map(np.asarray, found), strict=True)), own_code.short(name))
    if not isinstance(found, Arrays):
        raise InputError(
            f"{own_code.unpinned(name)} gave a {type(found).__name__}, but data.source needs the arrays x and y, or "
            "x_train, y_train, x_test and y_test, fedquilt.data.Arrays, or a Federation (from_datasets, from_frame, "
            "...). Return one of them."
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
