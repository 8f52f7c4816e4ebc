"""What a site works on at most, whatever a server asks for."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from fedquilt.core.memory import ALLOWED, Allowance
from fedquilt.errors import InputError


class TooLong(BaseException):
    """Raised inside a task whose time is over. No method's own ``except Exception`` can hold it up."""


@dataclass(frozen=True)
class Budget:
    """The limits of a site. Beside them, no client has two jobs in one message.

    Args:
        steps: Of all trainings of one task together.
        epochs: Passes over a client's samples in one training.
        jobs: In one message.
        seconds: Of one task. It ends between two operations, so a single long one may take longer.
    """

    steps: int = 100_000
    epochs: int = 1_000
    jobs: int = 10_000
    seconds: float = 3600.0

    def __post_init__(self) -> None:
        for name, limit in vars(self).items():
            if not limit > 0:
                raise InputError(f"A site's limit of {name} must be above 0, got {limit}.")

    def excess(self, jobs: Sequence[object]) -> str | None:
        """Why a message with these jobs is refused; None if it is not."""
        if len(jobs) > self.jobs:
            return f"the message has {len(jobs)} jobs, and this site allows {self.jobs}"
        return None

    @contextmanager
    def task(self) -> Iterator[None]:
        """One task, whose time begins now."""
        token = ALLOWED.set(Allowance(self.epochs, self.steps))
        try:
            with _within(self.seconds):
                yield
        finally:
            ALLOWED.reset(token)


@contextmanager
def _within(seconds: float) -> Iterator[None]:
    """Raise TooLong in this thread after so many seconds."""
    thread, lock, over = ctypes.c_ulong(threading.get_ident()), threading.Lock(), False
    interrupt = ctypes.pythonapi.PyThreadState_SetAsyncExc

    def stop() -> None:
        with lock:
            if not over:
                interrupt(thread, ctypes.py_object(TooLong))

    timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), stop)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        with lock:
            over = True
        interrupt(thread, None)  # should it have come too late
