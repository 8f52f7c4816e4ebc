"""Memory that a process keeps for its next step instead of giving it back to the system."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from functools import cache

_TRIM, _MMAP = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc's mallopt
BLOCK = 2**25  # bytes of a block that are given back at once; larger ones are rare, and older systems take no more
KEEP = 2**28  # bytes that are kept at most


@cache
def keep_memory() -> None:
    """Keep the memory of steps in this process. About 5 % of a step of a small CNN goes into asking anew otherwise.

    ``FEDQUILT_MALLOC=0`` leaves everything as it is; so do systems without glibc.
    """
    if os.environ.get("FEDQUILT_MALLOC", "1") != "0":
        with suppress(OSError, AttributeError, TypeError):
            library = ctypes.CDLL(None)
            library.mallopt(_MMAP, BLOCK)
            library.mallopt(_TRIM, KEEP)


def settings() -> dict[str, str]:
    """The same for a process that is started anew."""
    if os.environ.get("FEDQUILT_MALLOC", "1") == "0":
        return {}
    return {"MALLOC_MMAP_THRESHOLD_": str(BLOCK), "MALLOC_TRIM_THRESHOLD_": str(KEEP)}
