"""Messages between a process and its workers: records over a socket, and file descriptors beside them."""

from __future__ import annotations

import mmap
import os
import socket
import struct
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedquilt.core.errors import FrameError
from fedquilt.core.record import pack, record, unpack

_ALIGN = 64
_MOST = 2**20  # parts of a message
_LONG = 4096  # bytes that travel beside the record, as they are
_APART = 2**25  # bytes that go through a file in memory, which keeps the room they took
_AT_ONCE = 2**15  # bytes that a socket takes though nobody reads them yet, if it has the usual room


@record
class Following:
    """Stands in a record for bytes that follow it."""

    place: int


@dataclass
class Files:
    """The files in memory of one direction, which take turns."""

    descriptors: tuple[int, int]
    used: int = 0

    @staticmethod
    def made() -> Files:
        """Two new ones."""
        return Files((_anonymous(), _anonymous()))

    def next(self) -> int:
        """The one whose turn it is."""
        self.used += 1
        return self.descriptors[self.used % 2]


class Pipe:
    """Whole records in order over a stream socket. Only records: nothing is ever executed by receiving.

    Long bytes inside a record do not go through the socket, where each side would wait for the other, but through
    files in memory, two in turn for each direction, once both sides have them (:meth:`offer`, :meth:`accept`). So the
    last message but one must have been received before the next one is sent the same way: of the jobs of a worker, one
    at most may wait.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._out: Files | None = None
        self._in: Files | None = None

    def offer(self) -> None:
        """Make the files, and hand them over."""
        self._out, self._in = Files.made(), Files.made()
        for descriptor in (*self._out.descriptors, *self._in.descriptors):
            self.send_descriptor(descriptor)

    def accept(self) -> None:
        """Take the files of the other side."""
        one, two, three, four = (self.receive_descriptor() for _ in range(4))
        self._in, self._out = Files((one, two)), Files((three, four))

    def send(self, message: Any) -> None:
        """Send one record. Long frames inside it follow it and are not copied into another one."""
        self._send(*self._ready(message))

    def send_ahead(self, message: Any) -> bool:
        """Send one record to a side that is busy, unless that would mean waiting for it; whether it was sent."""
        frame, after = self._ready(message)
        room = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) // 4
        if len(frame) > min(_AT_ONCE, room) or (after and not self._apart(after)):
            return False
        self._send(frame, after)
        return True

    def _ready(self, message: Any) -> tuple[bytes, list[bytes]]:
        after: list[bytes] = []
        return pack(_lifted(message, after)), after

    def _apart(self, after: list[bytes]) -> bool:
        return self._out is not None and 0 < sum(map(len, after)) <= _APART

    def _send(self, frame: bytes, after: list[bytes]) -> None:
        sizes, apart = (len(frame), *map(len, after)), self._apart(after)
        if apart and self._out is not None:
            descriptor, end = self._out.next(), 0
            for part in after:
                end = _written(descriptor, part, end)
        self.sock.sendall(struct.pack(f"<BQ{len(sizes)}Q", apart, len(sizes), *sizes) + frame)
        for part in () if apart else after:
            self.sock.sendall(part)

    def receive(self) -> Any:
        """The next record; EOFError when the other side is gone."""
        apart, count = struct.unpack("<BQ", self._exactly(9))
        if count > _MOST or not count or apart > (self._in is not None):
            raise FrameError(f"out of step: a message of {count} parts.")
        first, *sizes = struct.unpack(f"<{count}Q", self._exactly(8 * count))
        frame, after, end = self._exactly(first), [], 0
        descriptor = self._in.next() if apart and self._in is not None else None
        for size in sizes:
            after.append(self._exactly(size) if descriptor is None else _read(descriptor, size, end))
            end += size
        return _lowered(unpack(frame), after)

    def _exactly(self, count: int) -> bytes:
        found = self.sock.recv(count, socket.MSG_WAITALL) if count else b""
        while len(found) < count:  # a signal came in between
            more = self.sock.recv(count - len(found), socket.MSG_WAITALL)
            if not more:
                raise EOFError("the other process is gone")
            found += more
        return found

    def send_descriptor(self, descriptor: int) -> None:
        """Hand over an open file."""
        socket.send_fds(self.sock, [b"d"], [descriptor])

    def receive_descriptor(self) -> int:
        """Take an open file."""
        message, descriptors, _, _ = socket.recv_fds(self.sock, 1, 1)
        if not message or not descriptors:
            raise EOFError("the other process is gone")
        return descriptors[0]

    def fileno(self) -> int:
        """For waiting on several pipes at once."""
        return self.sock.fileno()

    def close(self) -> None:
        """Close this end."""
        self.sock.close()
        for files in (self._out, self._in):
            for descriptor in files.descriptors if files is not None else ():
                os.close(descriptor)
        self._out = self._in = None


def _written(descriptor: int, part: bytes, start: int) -> int:
    """Write it all there; returns where it ends."""
    view = memoryview(part)
    while view:
        done = os.pwrite(descriptor, view, start)
        view, start = view[done:], start + done
    return start


def _read(descriptor: int, size: int, start: int) -> bytes:
    found = os.pread(descriptor, size, start)
    while len(found) < size:
        more = os.pread(descriptor, size - len(found), start + len(found))
        if not more:
            raise FrameError(f"out of step: {size} bytes were announced, {len(found)} are there.")
        found += more
    return found


def _lifted(value: Any, after: list[bytes]) -> Any:
    """The same tree with its long bytes set aside."""
    if isinstance(value, bytes):
        if len(value) < _LONG:
            return value
        after.append(value)
        return Following(len(after) - 1)
    return _through(value, lambda part: _lifted(part, after))


def _lowered(value: Any, after: list[bytes]) -> Any:
    """The same tree with its long bytes back in their places."""
    if isinstance(value, Following):
        return after[value.place]
    return _through(value, lambda part: _lowered(part, after))


def _through(value: Any, change: Callable[[Any], Any]) -> Any:
    """A tree with its parts changed; what has none is itself."""
    if is_dataclass(value) and not isinstance(value, type):
        parts = {f.name: getattr(value, f.name) for f in fields(value)}
        changed = {n: c for n, p in parts.items() if (c := change(p)) is not p}
        return replace(value, **changed) if changed else value
    if isinstance(value, tuple | list):
        changed_items = [change(part) for part in value]
        same = all(a is b for a, b in zip(changed_items, value, strict=True))
        return value if same else type(value)(changed_items)
    return value


class SharedTensors:
    """Tensors in one anonymous file that several processes map: kept once, gone when the last process is.

    The file has no name (an in-memory file where the system has them), so a killed run leaves nothing behind.
    """

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.descriptor = -1
        self.index: dict[str, Any] = {}
        end = 0
        for name, tensor in tensors.items():
            self.index[name] = (end, list(tensor.shape), tensor.new_empty(0))
            end += -(-tensor.numel() * tensor.element_size() // _ALIGN) * _ALIGN
        self.descriptor = _anonymous()
        os.ftruncate(self.descriptor, max(end, 1))
        with mmap.mmap(self.descriptor, max(end, 1)) as place:
            for name, tensor in tensors.items():
                if tensor.numel() == 0:
                    continue  # no bytes, and perhaps strides that no view takes
                raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
                place[self.index[name][0] : self.index[name][0] + raw.nbytes] = raw.data
        self.size = end

    def close(self) -> None:
        """Let go of the file; processes that mapped it keep their view."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def __del__(self) -> None:
        self.close()


def _anonymous() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("fedquilt")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def mapped(descriptor: int, index: dict[str, Any]) -> dict[str, Tensor]:
    """The tensors of a shared file: no copy, and a write here would stay here."""
    place = mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY)
    os.close(descriptor)
    found = {}
    for name, (offset, shape, kind) in index.items():
        count = int(torch.Size(shape).numel())
        flat = torch.frombuffer(place, dtype=kind.dtype, count=count, offset=offset) if count else kind
        found[name] = flat.view(shape)
    return found
