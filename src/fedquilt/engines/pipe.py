"""Messages between a process and its workers: records over a socket, and file descriptors beside them."""

from __future__ import annotations

import mmap
import os
import socket
import struct
import tempfile
import weakref
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedquilt.core.lazy import LazyColumn, built, inherited, told
from fedquilt.errors import FrameError
from fedquilt.records.record import Frame, pack, record, unpack

Array = npt.NDArray[np.uint8]
Index = dict[str, Any]  # of each: its place, its shape, an empty one of its type; or how its rows are read

POSIX = hasattr(socket, "send_fds")
UNIX_ONLY = (
    "The engine 'workers' needs Linux or macOS: its processes speak over Unix sockets, which this system does not "
    "have. Use engine.kind = 'local' or 'lanes', or work in Linux inside Windows (WSL)."
)
_ALIGN = 64
_MOST = 2**20  # parts of a message
_HUGE = 2**40  # bytes that no message has
_LONG = 4096  # bytes that travel beside the record, as they are
_APART = 2**25  # bytes that go through shared memory, which keeps the room they took
_ROOM = 2**27  # bytes of shared memory for one direction, which the system gives as they are first written
_SOCKET = -1  # the place of bytes that go through the socket
_HEAD = struct.Struct("<5q")  # bytes of the record, parts after it, blocks given back; place and size of the first part
_NO_PART = (0, 0)
_AT_ONCE = 2**15  # bytes that a socket takes though nobody reads them yet, if it has the usual room


@record(name="fedquilt.engines.pipe:Following")
class FollowingBytes:
    """Stands in a record for bytes that follow it; ``taken``: whoever gets them may have the memory they are in."""

    place: int
    taken: bool = False


class _Lender:
    """Shared memory that this side fills, block by block. The other side reads a block in place, and gives it back."""

    def __init__(self, descriptor: int) -> None:
        self._map = mmap.mmap(descriptor, _ROOM)
        self.sizes: dict[int, int] = {}  # of all blocks, by where they begin
        self._end = 0
        self._free: list[int] = []
        self._filling: dict[int, int] = {}  # blocks by the identity of the array they are filled through

    def take(self, size: int) -> Array | None:
        """The bytes of a block, unless all the room there may be is taken."""
        fits = [at for at in self._free if self.sizes[at] >= size]
        if not fits and len(self._free) == len(self.sizes):  # nobody reads anything: small blocks make room for longer
            self.sizes, self._free, self._end = {}, [], 0
        if fits:
            at = fits[-1]  # the last that came back is still in a cache
            self._free.remove(at)
        elif self._end + size <= _ROOM:
            at = self._end
            self.sizes[at] = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
            self._end += self.sizes[at]
        else:
            return None
        array = np.frombuffer(self._map, np.uint8, size, at)
        self._filling[id(array)] = at
        weakref.finalize(array, self._dropped, id(array)).atexit = False
        return array

    def _dropped(self, array: int) -> None:
        """Nobody has this array any more: if it was not sent, its block is free."""
        at = self._filling.pop(array, None)
        if at is not None:
            self._free.append(at)

    def holds(self, part: Frame) -> bool:
        """Whether these are the bytes of a block that was not sent yet."""
        return isinstance(part, memoryview) and id(part.obj) in self._filling and len(part) == len(_array(part))

    def lent(self, part: Frame) -> int:
        """Where these bytes are, if they are those of a block; from now on it is the other side's."""
        return self._filling.pop(id(_array(part))) if self.holds(part) else _SOCKET

    def returned(self, blocks: Sequence[int]) -> None:
        """These blocks may be filled again."""
        if not all(at in self.sizes for at in blocks):
            raise FrameError(f"out of step: blocks {list(blocks)[:3]} were given back.")
        self._free += blocks


class _Borrower:
    """The memory that the other side fills."""

    def __init__(self, descriptor: int) -> None:
        self._map = mmap.mmap(descriptor, _ROOM)
        self.read: list[int] = []  # blocks to give back

    def bytes_at(self, at: int, size: int) -> memoryview:
        """What was written there; it is given back when nobody has these bytes, or a part of them, any more."""
        if not 0 <= at <= _ROOM - size:
            raise FrameError(f"out of step: {size} bytes at {at}.")
        array = np.frombuffer(self._map, np.uint8, size, at)
        weakref.finalize(array, self.read.append, at).atexit = False
        return memoryview(cast(Any, array))


def _array(part: Frame) -> Any:
    return part.obj if isinstance(part, memoryview) else part


class Pipe:
    """Whole records in order over a stream socket of this machine. Only records: nothing is ever executed by receiving.

    Long bytes inside a record do not go through the socket, where each side would wait for the other, but through
    blocks of shared memory, as long as there is room. What was packed into :meth:`room` is not copied at all, and who
    receives it may keep it, and write into it.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._lender: _Lender | None = None
        self._borrower: _Borrower | None = None

    def offer(self) -> None:
        """Make the shared memory, and hand it over."""
        made = (_anonymous(), _anonymous())
        for descriptor in made:
            os.ftruncate(descriptor, _ROOM)
            self.send_descriptor(descriptor)
        self._share(*made)

    def accept(self) -> None:
        """Take the shared memory of the other side."""
        theirs, ours = self.receive_descriptor(), self.receive_descriptor()
        self._share(ours, theirs)

    def _share(self, ours: int, theirs: int) -> None:
        self._lender, self._borrower = _Lender(ours), _Borrower(theirs)
        os.close(ours)
        os.close(theirs)

    def room(self, size: int) -> bytearray | memoryview:
        """Memory for bytes that will be sent."""
        block = self._taken(size) if size >= _LONG else None
        return bytearray(size) if block is None else memoryview(cast(Any, block))

    def _taken(self, size: int) -> Array | None:
        return self._lender.take(size) if self._lender is not None and size <= _APART else None

    def send(self, message: object) -> None:
        """Send one record. Long frames inside it follow it and are not copied into another one."""
        self._send(*self._ready(message))

    def send_ahead(self, message: object) -> bool:
        """Send one record to a side that is busy, unless that would mean waiting for it; whether it was sent."""
        frame, after = self._ready(message)
        room = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) // 4
        if len(frame) > min(_AT_ONCE, room) or not all(self._holds(part) for part in after):
            return False
        self._send(frame, after)
        return True

    def _holds(self, part: Frame) -> bool:
        return self._lender is not None and self._lender.holds(part)

    def _ready(self, message: object) -> tuple[bytes, list[Frame]]:
        """The frame, and what follows it, in blocks where there are some."""
        after: list[Frame] = []
        frame = _packed(message, after)
        for place, part in enumerate(after):
            block = None if self._holds(part) else self._taken(len(part))
            if block is not None:
                block[:] = np.frombuffer(part, np.uint8)
                after[place] = memoryview(cast(Any, block))
        return frame, after

    def _send(self, frame: bytes, after: list[Frame]) -> None:
        places = [_SOCKET if self._lender is None else self._lender.lent(part) for part in after]
        parts = [number for place, part in zip(places, after, strict=True) for number in (place, len(part))]
        back = [] if self._borrower is None else self._borrower.read
        read = [back.pop() for _ in range(len(back))]
        numbers = (*(parts[:2] or _NO_PART), *read, *parts[2:])
        head = struct.pack(f"<{3 + len(numbers)}q", len(frame), len(after), len(read), *numbers)
        self.sock.sendall(head + frame)
        for place, part in zip(places, after, strict=True):
            if place == _SOCKET:
                self.sock.sendall(part)

    def receive(self) -> Any:
        """The next record; EOFError when the other side is gone."""
        length, count, read, *first = _HEAD.unpack(self._exactly(_HEAD.size))
        if not 0 <= count <= _MOST or not 0 <= read <= _MOST or not 0 <= length <= _HUGE:
            raise FrameError(f"out of step: a message of {length} bytes and {count} parts.")
        more = read + 2 * max(count - 1, 0)
        body = self._exactly(8 * more + length)
        numbers = struct.unpack_from(f"<{more}q", body)
        if self._lender is not None:
            self._lender.returned(numbers[:read])
        parts = [*first, *numbers[read:]] if count else []
        after: list[Frame] = []
        for place, size in zip(parts[::2], parts[1::2], strict=True):
            if not 0 <= size <= _HUGE:
                raise FrameError(f"out of step: a part of {size} bytes.")
            if place == _SOCKET:
                after.append(self._exactly(size))
            elif self._borrower is not None:
                after.append(self._borrower.bytes_at(place, size))
            else:
                raise FrameError(f"out of step: {size} bytes at {place}, where nothing is shared.")
        return _unpacked(body[8 * more :], after)

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
        self._lender = self._borrower = None  # the memory is there as long as somebody has bytes of it


def _packed(message: object, after: list[Frame]) -> bytes:
    """The frame of a message, whose long bytes are set aside."""

    def lift(part: Frame) -> Any:
        if len(part) < _LONG:
            return part
        after.append(part)
        return FollowingBytes(len(after) - 1, isinstance(part, memoryview))

    return pack(message, compact=True, lift=lift)


def _unpacked(frame: Frame, after: list[Frame]) -> Any:
    """The message, with its long bytes back in their places."""

    left = dict(enumerate(after))

    def lower(stands: FollowingBytes) -> Frame:
        found = left.pop(stands.place)  # each once: it may be written into
        return found if stands.taken or isinstance(found, bytes) else bytes(found)

    message = unpack(frame, (FollowingBytes, lower))
    if left:
        raise FrameError(f"out of step: {len(left)} parts that belong to nothing.")
    return message


class SharedTensors:
    """Tensors in one anonymous file that several processes map: kept once, gone when the last process is.

    The file has no name (an in-memory file where the system has them), so a killed run leaves nothing behind. Lazy
    columns are not in it: the index says how their rows are read; ``inherited``: only by processes forked after this.
    """

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.descriptor = -1
        self.index: Index
        lazy = {name: tensor for name, tensor in tensors.items() if isinstance(tensor, LazyColumn)}
        tensors = {name: tensor for name, tensor in tensors.items() if name not in lazy}
        self.index = {name: told(column) for name, column in lazy.items()}
        self.inherited = any(inherited(column.reader) for column in lazy.values())
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


def mapped(descriptor: int, index: Index) -> dict[str, Tensor]:
    """The tensors of a shared file: no copy, and a write here would stay here."""
    place = mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY)
    os.close(descriptor)
    found: dict[str, Tensor] = {}
    for name, entry in index.items():
        if isinstance(entry, dict):
            found[name] = built(entry)
            continue
        offset, shape, kind = entry
        count = int(torch.Size(shape).numel())
        flat = torch.frombuffer(place, dtype=kind.dtype, count=count, offset=offset) if count else kind
        found[name] = flat.view(shape)
    return found
