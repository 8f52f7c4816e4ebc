"""Several runs at once, each in a process of its own, forked from this one: they share the data, and nothing else."""

from __future__ import annotations

import selectors
import signal
import socket
import subprocess
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from typing import Any, Generic, NoReturn, TypeVar

import torch

from fedquilt.core import errors
from fedquilt.core.errors import FedquiltError, FrameError, WorkerError
from fedquilt.engines.pipe import Pipe
from fedquilt.engines.process import Forked
from fedquilt.runs.listening import Listener

T = TypeVar("T")
Play = Callable[[T, Listener], str | None]  # plays one; what failed, in words
PATIENCE = 60.0  # seconds for a run that is stopped to save what it has
_PLAIN = (bool, int, float, str, type(None))


class Teller:
    """Hears of a run in its own process, and tells the one that waits for it."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe

    def step(self, round: int, phase: str, done: int, of: int) -> None:
        """Send it on; whether anybody is there shows at the end of the round."""
        with suppress(ConnectionError):
            self._pipe.send(("step", round, phase, done, of))

    def round(self, done: int, metrics: Mapping[str, Any], totals: Mapping[str, Any] | None = None) -> None:
        """Send it on; without anybody there, the run stops, to be resumed."""
        try:
            self._pipe.send(("round", done, _plain(metrics), _plain(totals or {})))
        except ConnectionError:
            raise KeyboardInterrupt from None

    def say(self, text: str) -> None:
        """Send it on."""
        with suppress(ConnectionError):
            self._pipe.send(("say", text))


def _plain(numbers: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in numbers.items() if isinstance(value, _PLAIN)}


class Apart(Generic[T]):
    """One of them: its process, our end of its pipe, and who listens."""

    def __init__(self, what: T, play: Play[T], listening: AbstractContextManager[Listener]) -> None:
        self.what = what
        self.ended = False
        self.failed: str | None = None
        self._held = ExitStack()
        self.listener = self._held.enter_context(listening)
        ours, theirs = socket.socketpair()
        self.process = Forked(lambda: _serve(theirs, what, play), theirs.fileno())
        theirs.close()
        self.pipe = Pipe(ours)

    def hear(self) -> bool:
        """Take in one message; whether more will come."""
        try:
            kind, *told = self.pipe.receive()
        except (EOFError, OSError, FrameError):
            self.ended, self.failed = True, f"its process {self._fate()}; started again, it goes on from its snapshot"
            return False
        if kind == "raised":
            raise _again(*told)
        if kind == "over":
            self.ended, self.failed = True, told[0]
            return False
        getattr(self.listener, kind)(*told)
        return True

    def _fate(self) -> str:
        code = self.process.wait()
        return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"

    def stop(self) -> None:
        """Have it save what it has, and end."""
        with suppress(ProcessLookupError):
            if self.process.poll() is None:
                self.process.terminate()

    def close(self) -> None:
        """Wait for its end."""
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.pipe.close()
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
                    what = waiting.popleft()
                    apart = Apart(what, play, listening(what))
                    running.append(apart)
                    selector.register(apart.pipe, selectors.EVENT_READ, apart)
                for key, _ in selector.select():
                    apart = key.data
                    if apart.hear():
                        continue
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


def _serve(door: socket.socket, what: T, play: Play[T]) -> None:
    """What the process of a run does."""
    signal.signal(signal.SIGTERM, _interrupt)
    torch.set_num_threads(1)
    pipe = Pipe(door)
    with suppress(KeyboardInterrupt, ConnectionError):  # stopped, or nobody is there any more
        try:
            pipe.send(("over", play(what, Teller(pipe))))
        except Exception as error:
            pipe.send(("raised", type(error).__name__, str(error), traceback.format_exc()))


def _again(name: str, text: str, trace: str) -> FedquiltError:
    """The error that a process told of: one of ours is what it was, another one comes with its trace."""
    kind = getattr(errors, name, None)
    if not isinstance(kind, type) or not issubclass(kind, FedquiltError):
        return WorkerError(f"The process of a run failed. {name}: {text}\n\n{trace}")
    made = kind.__new__(kind)
    made.args = (text,)
    return made


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt
