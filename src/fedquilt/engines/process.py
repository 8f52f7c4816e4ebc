"""A worker process: forked from this one where that is safe, and otherwise started anew."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import NoReturn

import torch

from fedquilt.engines.kept_memory import keep_memory, settings
from fedquilt.engines.pipe import Pipe
from fedquilt.engines.worker import Begin, Several, Work, WorkerJob, main
from fedquilt.rounds.client import Evaluation


class Forked:
    """A child of this process, with the words of ``subprocess.Popen``.

    It has all modules at once and shares their memory, so it is there in a moment and takes little. It lets go of every
    file of its parent's but the standard ones and its own socket.
    """

    def __init__(self, serve: Callable[[], None], keep: int) -> None:
        self.returncode: int | None = None
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        gc.freeze()  # so that looking for garbage does not touch, and so copy, every object
        try:
            with warnings.catch_warnings(), uninterrupted():
                warnings.simplefilter("ignore", DeprecationWarning)  # threads: only numerical libraries have any
                self.pid = os.fork()
                if self.pid == 0:
                    _child(serve, keep)
        finally:
            gc.unfreeze()

    def poll(self) -> int | None:
        """The exit code, or None while it runs; negative: the signal that ended it."""
        return self._look(os.WNOHANG)

    def _look(self, how: int) -> int | None:
        if self.returncode is None:
            try:
                found, status = os.waitpid(self.pid, how)
            except ChildProcessError:  # it ended, and whoever ignores SIGCHLD does not learn how
                found, status = self.pid, 0
            if found:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once it has ended."""
        end = None if timeout is None else time.monotonic() + timeout
        while self._look(0 if end is None else os.WNOHANG) is None:
            if end is not None and time.monotonic() > end:
                raise subprocess.TimeoutExpired("a worker", timeout or 0.0)
            time.sleep(0.005)
        assert self.returncode is not None
        return self.returncode

    def terminate(self) -> None:
        """Ask it to end."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """End it at once."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def _child(serve: Callable[[], None], keep: int) -> NoReturn:
    """What a forked process does, to its end. Nothing of the parent's is cleaned up here: it is the parent's."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to stop
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as below nohup
                signal.signal(number, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _INTERRUPTS)
        nothing = os.open(os.devnull, os.O_RDWR)
        for held in _open_files():  # numbers stay taken, lest an object of the parent's close a file of ours
            if held not in (1, 2, keep, nothing):
                os.dup2(nothing, held)
        keep_memory()
        serve()
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        os._exit(code)


_INTERRUPTS = {signal.SIGINT, signal.SIGTERM}


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Signals that would end the block wait for its end."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_with_parent(sign: int = signal.SIGTERM) -> None:
    """To be called in a new process: on Linux it ends when the process that started it does, however that ends."""
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).prctl(1, sign)  # PR_SET_PDEATHSIG


def _open_files() -> list[int]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            os.fstat(int(name))  # the listing's own number is gone by now
            found.append(int(name))
    return found


def forks(device: str | None) -> bool:
    """Whether a fork is safe here: Linux, no CUDA, and no thread of Python's own but this one."""
    alone = threading.active_count() == 1 and threading.current_thread() is threading.main_thread()
    wanted = os.environ.get("FEDQUILT_START", "fork") == "fork" and hasattr(os, "fork")
    return wanted and sys.platform == "linux" and device is None and alone and not torch.cuda.is_initialized()


def _spawned(theirs: socket.socket) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "FEDQUILT_WORKER": "1",  # known before the user's script is imported
        **settings(),
    }
    command = [sys.executable, "-m", "fedquilt.engines.worker", str(theirs.fileno())]
    return subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment, stdin=subprocess.DEVNULL)


class Worker:
    """One process and our end of its socket."""

    def __init__(self, device: str | None) -> None:
        self.device = device
        ours, theirs = socket.socketpair()
        self.process: Forked | subprocess.Popen[bytes]
        if forks(device):
            self.process = Forked(lambda: main(theirs), theirs.fileno())
        else:
            self.process = _spawned(theirs)
        theirs.close()
        self.pipe = Pipe(ours)
        self.pipe.offer()
        self.down: bytes | None = None
        self.whole: bytes | None = None
        self.jobs: deque[int] = deque()  # the numbers of those it has; the first one is under way
        self.patient = False  # whether the next job was too long to be given ahead

    def begin(self, message: Begin, descriptor: int) -> None:
        """Tell it what this run is."""
        self.pipe.send(replace(message, device=self.device))
        self.pipe.send_descriptor(descriptor)
        self.down = self.whole = None
        self.jobs.clear()

    def give(self, number: int, what: Work) -> None:
        """Send a job, leaving out the parts this worker already has. If it is dead, its socket will report that."""
        job, down, whole = self._job(number, what)
        with self._sent_or_ended(), suppress(ConnectionError):
            self.pipe.send(job)
        self.jobs.append(number)
        self.down, self.whole, self.patient = down, whole, False

    def give_ahead(self, number: int, what: Work) -> bool:
        """The same while it still works on another one, unless that would mean waiting for it; whether it was given."""
        job, down, whole = self._job(number, what)
        self.patient = True
        with self._sent_or_ended(), suppress(ConnectionError):
            self.patient = not self.pipe.send_ahead(job)
        if not self.patient:
            self.jobs.append(number)
            self.down, self.whole = down, whole
        return not self.patient

    @contextmanager
    def _sent_or_ended(self) -> Iterator[None]:
        """Whoever got half a message, or nobody knows what, cannot go on."""
        try:
            yield
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        """End it at once, with all that it was given."""
        self.process.kill()
        self.process.wait()
        self.jobs.clear()

    def _job(self, number: int, what: Work) -> tuple[WorkerJob, bytes | None, bytes | None]:
        """The message, and the parts that the worker has after it."""
        down, whole = what.down, self.whole
        if isinstance(what, Evaluation | Several) and what.whole is not None:
            whole = what.whole
            what = replace(what, whole=b"") if whole is self.whole else what
        return WorkerJob(number, replace(what, down=None) if down is self.down else what), down, whole

    def end(self) -> None:
        """Wait for its end; its socket is closed."""
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def fate(self) -> str:
        """Why the process ended, in words; one that lives but is out of step is ended."""
        return fate(self.process)


def fate(process: Forked | subprocess.Popen[bytes]) -> str:
    """Why a process ended, in words; one that lives but says nothing is ended."""
    try:
        code = process.wait(timeout=1)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return "was out of step"
    return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
