"""Data that code of the user's own brings: a function, named ``my.py:function``, and what it is called with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fedquilt import own_code, registry
from fedquilt.core.plain import JSON
from fedquilt.data.npz import Arrays, arrays_of
from fedquilt.errors import InputError

_last: dict[str, object] = {}  # what was given last, by its name and options: one looks at it several times


def arrays_of_own(name: str, options: Mapping[str, JSON] | None = None) -> Arrays:
    """The arrays that the function gives, to be divided over clients."""
    found = given(name, options)
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


def given(name: str, options: Mapping[str, JSON] | None = None) -> object:
    """What the function gives. It is called once, though one looks at its result several times."""
    asked = repr((name, options or {}))
    if asked not in _last:
        made = _called(name, options or {})
        _last.clear()
        _last[asked] = made
    return _last[asked]


def _called(name: str, options: Mapping[str, JSON]) -> object:
    found: Any = registry.lookup("dataset", name).load()
    if not callable(found):
        raise InputError(f"{own_code.unpinned(name)} is a {type(found).__name__}. Name a function that gives data.")
    try:
        return found(**options)
    except InputError:
        raise
    except Exception as error:  # whatever somebody else's code does
        raise InputError(f"{own_code.unpinned(name)} failed: {own_code.told(error)}") from error
