"""Processes that outlive a command: told apart by number and start, so that no new client is ever taken for one."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedquilt.core.locks import lock
from fedquilt.errors import InputError
from fedquilt.storage.files import write_atomic


def write_down(place: Path, number: int) -> None:
    """Remember a process in a file."""
    write_atomic(place, f"{number} {_stat(number)[1]}".encode())


def alive(place: Path) -> bool | None:
    """Whether the process of a file runs; None if there is no such file."""
    try:
        number, *began = place.read_text(encoding="utf-8").split()
        state, start = _stat(int(number))
    except (OSError, ValueError):
        return None
    if not state:  # it is gone, or this system does not tell
        return not Path("/proc/self/stat").exists() and _answers(int(number))
    return state != "Z" and began in ([], [start])


def wait_gone(place: Path, seconds: float = 30.0) -> bool:
    """Wait for the process of a file to end; whether it has."""
    end = time.monotonic() + seconds
    while alive(place):
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def clear(place: Path, grace: float = 15.0) -> bool:
    """End the process of a file, if it still runs; whether there was one."""
    if not alive(place):
        return False
    number = int(place.read_text(encoding="utf-8").split()[0])
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, sign)
        if wait_gone(place, grace):
            break
    return True


@contextmanager
def held(place: Path, taken: str) -> Iterator[None]:
    """Hold a file as long as this lasts, at most until this process ends; ``taken`` is said if another one holds it."""
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with place.open("wb") as file:
        if not lock(file):
            raise InputError(taken)
        yield


def _stat(number: int) -> tuple[str, str]:
    """A process's state and when it began; nothing if there is none."""
    try:
        fields = Path(f"/proc/{number}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return "", ""
    return fields[0], fields[19]


def _answers(number: int) -> bool:
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
