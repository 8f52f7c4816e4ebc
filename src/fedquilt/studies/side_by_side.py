"""Several runs at once, each in a process of its own, forked from this one: they share the data, and nothing else."""

from __future__ import annotations

import errno
import io
import selectors
import signal
import socket
import subprocess
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from typing import Generic, NoReturn, TypeVar

import torch
from rich.file_proxy import FileProxy

from fedquilt.core.describe import find
from fedquilt.core.plain import JSON, Row
from fedquilt.engines.pipe import Pipe
from fedquilt.engines.process import Forked, end_with_parent, fate, uninterrupted
from fedquilt.errors import FedquiltError, FrameError, InputError, WorkerError
from fedquilt.studies.listening import Listener

T = TypeVar("T")
Play = Callable[[T, Listener], str | None]  # plays one; what failed, in words
PATIENCE = 60.0  # seconds for a run that is stopped to save what it has
SILENCE = 1.0  # seconds after which one looks whether all are alive
_NO_ROOM = {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE}  # for another process
_PLAIN = (bool, int, float, str, type(None))


class Teller:
    """Hears of a run in its own process, and tells the one that waits for it. Without anybody there the run stops, to
    be resumed."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe

    def step(self, round: int, phase: str, done: int, of: int) -> None:
        """Send it on."""
        self._send("step", round, phase, done, of)

    def round(self, done: int, metrics: Mapping[str, JSON], totals: Mapping[str, JSON] | None = None) -> None:
        """Send it on."""
        self._send("round", done, _plain(metrics), _plain(totals or {}))

    def say(self, text: str) -> None:
        """Send it on."""
        self._send("say", text)

    def _send(self, *message: object) -> None:
        try:
            self._pipe.send(message)
        except ConnectionError:
            raise KeyboardInterrupt from None


class Lines(io.TextIOBase):
    """What is written into it is said line by line."""

    def __init__(self, listener: Listener) -> None:
        self._listener, self._begun = listener, ""

    def write(self, text: str) -> int:
        """Say what ends with a new line."""
        *whole, self._begun = (self._begun + text).split("\n")
        for line in whole:
            if line.strip():
                self._listener.say(line.rstrip())
        return len(text)

    def writable(self) -> bool:
        """It is."""
        return True


def _plain(numbers: Mapping[str, JSON]) -> Row:
    return {name: value for name, value in numbers.items() if isinstance(value, _PLAIN)}


class Apart(Generic[T]):
    """One of them: its process, our end of its pipe, and who listens."""

    def __init__(self, what: T, play: Play[T], listening: AbstractContextManager[Listener]) -> None:
        self.what = what
        self.failed: str | None = None
        with ExitStack() as held:
            self.listener = held.enter_context(listening)
            ours, theirs = socket.socketpair()
            held.callback(ours.close)
            with theirs:
                self.process = Forked(lambda: _serve(theirs, what, play), theirs.fileno())
            self.pipe = Pipe(ours)
            self._held = held.pop_all()

    def hear(self) -> bool:
        """Take in one message; whether more will come."""
        try:
            kind, *told = self.pipe.receive()
        except (EOFError, OSError, FrameError):
            self.gone()
            return False
        if kind == "raised":
            raise _again(*told)
        if kind == "over":
            (self.failed,) = told
            return False
        getattr(self.listener, kind)(*told)
        return True

    def gone(self) -> None:
        """It ended without a word."""
        self.failed = f"its process {fate(self.process)}; started again, it goes on from its snapshot"

    def stop(self) -> None:
        """Have it save what it has, and end: by a signal, and by nobody listening any more."""
        with suppress(OSError):
            self.process.terminate()
        with suppress(OSError):
            self.pipe.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Wait for its end."""
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._held.close()


def side_by_side(
    those: Sequence[T], count: int, play: Play[T], listening: Callable[[T], AbstractContextManager[Listener]]
) -> list[tuple[T, str]]:
    """Play all of them, so many at once, in their order; which failed, and why, in their order.

    Whatever stops this process in between stops them too, and each saves what it has. An error that is no trouble of
    one alone, such as wrong settings, is raised here.
    """
    waiting, running = deque(those), list[Apart[T]]()
    failed: dict[int, str] = {}
    with selectors.DefaultSelector() as selector:
        try:
            while waiting or running:
                while waiting and len(running) < count:
                    try:
                        with uninterrupted():
                            running.append(Apart(waiting[0], play, listening(waiting[0])))
                    except OSError as error:
                        count = _room(error, len(running))
                        break
                    waiting.popleft()
                    selector.register(running[-1].pipe, selectors.EVENT_READ, running[-1])
                for apart in _ended(selector, running):
                    selector.unregister(apart.pipe)
                    running.remove(apart)
                    apart.close()
                    if apart.failed is not None:
                        failed[id(apart.what)] = apart.failed
        finally:
            for apart in running:
                apart.stop()
            for apart in running:
                apart.close()
    return [(what, failed[id(what)]) for what in those if id(what) in failed]


def _room(error: OSError, running: int) -> int:
    """How many may run where no process more could be started: so many as there are, and no more."""
    if error.errno not in _NO_ROOM:
        raise error
    if not running:
        raise WorkerError(f"The process of a run could not be started: {error}.") from error
    return running


def _ended(selector: selectors.BaseSelector, running: Sequence[Apart[T]]) -> Iterator[Apart[T]]:
    """Hear what there is to hear, and tell which have ended."""
    events = selector.select(SILENCE)
    for key, _ in events:
        if not key.data.hear():
            yield key.data
    for apart in () if events else tuple(running):
        if apart.process.poll() is not None:  # one of its own may hold its pipe, so that its end does not show there
            apart.gone()
            yield apart


def _serve(door: socket.socket, what: T, play: Play[T]) -> None:
    """What the process of a run does."""
    with suppress(KeyboardInterrupt, ConnectionError):  # stopped, or nobody is there any more
        try:
            signal.signal(signal.SIGTERM, _interrupt)
            _played(Pipe(door), what, play)
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it ends anyway


def _played(pipe: Pipe, what: T, play: Play[T]) -> None:
    end_with_parent()
    torch.set_num_threads(1)
    teller = Teller(pipe)
    if isinstance(sys.stdout, FileProxy):  # lines of progress that the parent draws: nobody else may move them
        sys.stdout, sys.stderr = Lines(teller), Lines(teller)
    try:
        pipe.send(("over", play(what, teller)))
    except Exception as error:
        pipe.send(("raised", *_facts(error), traceback.format_exc()))


def _facts(error: Exception) -> tuple[str, str, Row | None]:
    """The name of an error's class, what it says, and, of one of ours, what it knows."""
    kind = type(error)
    known = {"exit_code": error.exit_code, **vars(error)} if isinstance(error, FedquiltError) else None
    plain = None if known is None else {name: value for name, value in known.items() if _told(value)}
    return f"{kind.__module__}:{kind.__qualname__}", str(error), plain


def _told(value: object) -> bool:
    return isinstance(value, _PLAIN) or (isinstance(value, list | tuple) and all(map(_told, value)))


def _again(name: str, text: str, known: Row | None, trace: str) -> FedquiltError:
    """The error that a process told of: one of ours is what it was, another one comes with its trace."""
    if known is None:
        return FedquiltError(f"The process of a run failed. {name.rpartition(':')[2]}: {text}\n\n{trace}")
    try:
        kind = find(name)
    except (ImportError, AttributeError, InputError):  # a class that has no place of its own
        kind = FedquiltError
    made: FedquiltError = kind.__new__(kind)
    made.args = (text,)
    vars(made).update(known)
    return made


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt
