"""How a federation was made, where names, numbers and files say all of it: so that others can make it again."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast

from fedquilt.core.describe import describe
from fedquilt.errors import InputError

M = TypeVar("M", bound=Callable[..., Any])


def remembered(make: M) -> M:
    """A classmethod whose federations have the description of the call as their ``origin``, if it has one."""

    first = list(inspect.signature(make).parameters)[1]
    reads = first in ("path", "folder")

    @wraps(make)
    def made(cls: type[Any], *args: Any, **options: Any) -> Any:
        found = make(cls, *args, **options)
        if reads:  # a file or folder, as it is from anywhere
            given = str(Path(args[0] if args else options[first]).resolve())
            args, options = ((given, *args[1:]), options) if args else ((), {**options, first: given})
        try:
            told = {"args": [describe(arg) for arg in args], "kwargs": {n: describe(v) for n, v in options.items()}}
        except InputError:  # an array, or something of the user's own
            return found
        name = f"{cls.__module__}:{cls.__qualname__}.{make.__name__}"
        object.__setattr__(found, "origin", {"make": name, **told})
        return found

    return cast(M, made)
