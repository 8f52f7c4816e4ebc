"""A lock on an open file, which ends with the file or with the process: of POSIX systems, and of Windows."""

from __future__ import annotations

import os
import time
from importlib import import_module
from typing import IO, Any

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

KEEPS_OPEN_FILES = fcntl is None  # Windows does not remove a file that somebody has open
_FAR = 2**30  # the byte that is locked on Windows, where nobody could read it otherwise
_LOOK = 0.05  # seconds between two tries of one who waits


def lock(file: IO[Any], wait: bool = False, shared: bool = False) -> bool:
    """Lock a file, alone or ``shared`` with others who look; False if another one holds it and one does not ``wait``.

    Windows knows no shared locks here: there, two who look at the same time may each take the other for a holder.
    """
    if KEEPS_OPEN_FILES:
        while not (got := _on_windows(file)) and wait:
            time.sleep(_LOOK)
        return got
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


def _on_windows(file: IO[Any]) -> bool:
    msvcrt: Any = import_module("msvcrt")
    number = file.fileno()
    here = os.lseek(number, 0, os.SEEK_CUR)
    try:
        os.lseek(number, _FAR, os.SEEK_SET)
        msvcrt.locking(number, msvcrt.LK_NBLCK, 1)
    except PermissionError:
        return False
    finally:
        os.lseek(number, here, os.SEEK_SET)
    return True
