"""The one client app and the one server app for every method."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, MutableMapping
from importlib import metadata
from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord, Context, Message
from flwr.clientapp import ClientApp

from fedquilt.core.errors import InputError
from fedquilt.engines.flower.content import from_content, to_content
from fedquilt.engines.flower.errand import Parcel
from fedquilt.engines.flower.keep import InMemory, Keep, OnDisk, Shelf

MakeNode = Callable[[Context, Callable[[str], Keep]], Any]


class Client(ClientApp):  # type: ignore[misc]  # flwr has no types for mypy to follow here
    """Serves any method: every exchange is a message action of its own name, and none has to be registered.

    Args:
        node: Makes the site's :class:`fedquilt.engines.flower.node.Node` from Flower's context, once per process.
        folder: Where states are kept, from the context; None keeps them in Flower's context, in memory.
    """

    def __init__(self, node: MakeNode, folder: Callable[[Context], Path | None] = lambda context: None) -> None:
        super().__init__()
        self._make, self._folder, self._node = node, folder, None

    def __call__(self, message: Message, context: Context) -> Message:
        """Serve one message."""
        kind = message.metadata.message_type
        frames = from_content(message.content)
        folder = self._folder(context)
        if kind == "query.busy":  # answered without loading data or torch
            return _reply(Parcel().head("busy", _is_busy(folder, _text(frames, "number"))), message)
        node = self._node_of(context, folder)
        if kind == "query.here":
            return _reply(node.here(_text(frames, "run"), versions()), message)
        if not kind.startswith(("train.", "evaluate.")):
            raise InputError(f"unknown message type {kind!r}")
        with _busy(folder, frames):
            return _reply(node.work(frames), message)

    def _node_of(self, context: Context, folder: Path | None) -> Any:
        keep = _keeper(context, folder)
        if self._node is None:
            self._node = self._make(context, keep)
        self._node.keep = keep  # the context is a new one with every message
        return self._node


def _text(frames: Any, name: str) -> str:
    from fedquilt.engines.flower.errand import read

    return str(read(frames, name, str))


def _reply(parcel: Parcel, to: Message) -> Message:
    return Message(to_content(parcel.frames), reply_to=to)


def _keeper(context: Context, folder: Path | None) -> Callable[[str], Keep]:
    def keep(run: str) -> Keep:
        shelf: Shelf = InMemory(_Arrays(context, run)) if folder is None else OnDisk(folder / _safe(run))
        return Keep(shelf)

    return keep


def _safe(run: str) -> str:
    if not run.isalnum():
        raise InputError(f"a run's key must be letters and digits, got {run!r}")
    return run


class _Arrays(MutableMapping[str, bytes]):
    """Frames in the state that Flower hands from message to message."""

    def __init__(self, context: Context, run: str) -> None:
        self.context, self.name = context, f"fedquilt-{_safe(run)}"

    @property
    def _record(self) -> Any:
        if self.name not in self.context.state:
            self.context.state[self.name] = ArrayRecord()
        return self.context.state[self.name]

    def __getitem__(self, name: str) -> bytes:
        data: bytes = self._record[name].data
        return data

    def __setitem__(self, name: str, frame: bytes) -> None:
        self._record[name] = Array(dtype="uint8", shape=(len(frame),), stype="fedquilt.frame", data=frame)

    def __delitem__(self, name: str) -> None:
        del self._record[name]

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._record))

    def __len__(self) -> int:
        return len(self._record)


# A note on the disk says that an errand is being done, and by which process.


@contextlib.contextmanager
def _busy(folder: Path | None, frames: Any) -> Iterator[None]:
    if folder is None:
        yield
        return
    from fedquilt.engines.flower.errand import Errand, read

    note = _note(folder, read(frames, "errand", Errand).number)
    note.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    note.write_text(str(os.getpid()))
    try:
        yield
    finally:
        note.unlink(missing_ok=True)


def _note(folder: Path, number: str) -> Path:
    return folder / "busy" / _safe(number)


def _is_busy(folder: Path | None, number: str) -> bool:
    if folder is None:
        return False
    try:
        os.kill(int(_note(folder, number).read_text()), 0)
    except (OSError, ValueError):
        return False
    return True


def versions() -> dict[str, str]:
    """What this node runs."""
    return {name: _version(name) for name in ("fedquilt", "torch", "flwr")}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # run from its sources
        return "unknown"
