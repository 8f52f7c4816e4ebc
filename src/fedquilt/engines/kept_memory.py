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


_least: list[int] = []  # this process's resident size when holes were last given back, or less since, in bytes


def give_back() -> None:
    """Give freed memory back that lies in holes between what is still used: large batches no longer fit into those, so
    that a process would grow with every client. To be called now and then; it looks whether there may be enough."""
    if os.environ.get("FEDQUILT_MALLOC", "1") == "0":
        return
    with suppress(OSError, AttributeError, ValueError, IndexError):
        now = _resident()
        if _least and now > _least[0] + KEEP:
            ctypes.CDLL(None).malloc_trim(0)
            _least[:] = [_resident()]
        _least[:] = [min([now, *_least])]


def _resident() -> int:
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def settings() -> dict[str, str]:
    """The same for a process that is started anew."""
    if os.environ.get("FEDQUILT_MALLOC", "1") == "0":
        return {}
    return {"MALLOC_MMAP_THRESHOLD_": str(BLOCK), "MALLOC_TRIM_THRESHOLD_": str(KEEP)}
