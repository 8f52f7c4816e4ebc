"""Messages between a process and its workers: records over a socket, and file descriptors beside them."""

from __future__ import annotations

import mmap
import os
import socket
import struct
import tempfile
import weakref
from collections.abc import Callable, Sequence
from dataclasses import is_dataclass, replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedquilt.core.errors import FrameError
from fedquilt.core.record import Frame, pack, record, unpack
from fedquilt.core.registered import names

Array = npt.NDArray[np.uint8]

_ALIGN = 64
_MOST = 2**20  # parts of a message
_LONG = 4096  # bytes that travel beside the record, as they are
_APART = 2**25  # bytes that go through shared memory, which keeps the room they took
_ROOM = 2**27  # bytes of all blocks of one direction
_BLOCKS = 16  # of one direction: each is an open file on both sides
_SOCKET = -1  # the place of bytes that go through the socket
_SCALARS = {type(None), bool, int, float, str}
_HEAD = struct.Struct("<6q")  # bytes of the record, parts after it, blocks given back; place, newness, size of a part
_NO_PART = (0, 0, 0)
_AT_ONCE = 2**15  # bytes that a socket takes though nobody reads them yet, if it has the usual room


@record
class Following:
    """Stands in a record for bytes that follow it; ``taken``: whoever gets them may have the memory they are in."""

    place: int
    taken: bool = False


class _Lender:
    """Blocks of shared memory that this side fills. The other side reads a block where it is, and gives it back."""

    def __init__(self) -> None:
        self.maps: list[mmap.mmap] = []
        self.descriptors: dict[int, int] = {}  # of blocks that the other side has not seen yet
        self._free: list[int] = []
        self._filling: dict[int, int] = {}  # blocks by the identity of the array they are filled through

    def take(self, size: int) -> tuple[int, Array] | None:
        """A block and its bytes, unless all the room there may be is taken."""
        fits = [number for number in self._free if len(self.maps[number]) >= size]
        if fits:
            number = fits[-1]  # the last that came back is still in a cache
            self._free.remove(number)
        elif self._free and self._may(size - len(self.maps[self._free[0]])):
            number = self._free.pop(0)  # too small: another in its place
            self.maps[number] = self._new(number, size)
        elif len(self.maps) < _BLOCKS and self._may(size):
            number = len(self.maps)
            self.maps.append(self._new(number, size))
        else:
            return None
        array = np.frombuffer(self.maps[number], np.uint8, size)
        self._filling[id(array)] = number
        weakref.finalize(array, self._dropped, id(array)).atexit = False
        return number, array

    def _may(self, more: int) -> bool:
        return sum(map(len, self.maps)) + more <= _ROOM

    def _new(self, number: int, size: int) -> mmap.mmap:
        length = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        self.seen(number)
        self.descriptors[number] = _anonymous()
        os.ftruncate(self.descriptors[number], length)
        return mmap.mmap(self.descriptors[number], length)

    def seen(self, number: int) -> None:
        """The other side has this block: its file is not needed here any more."""
        descriptor = self.descriptors.pop(number, None)
        if descriptor is not None:
            os.close(descriptor)

    def _dropped(self, array: int) -> None:
        """Nobody has this array any more: if it was not sent, its block is free."""
        number = self._filling.pop(array, None)
        if number is not None:
            self._free.append(number)

    def holds(self, part: Frame) -> bool:
        """Whether these bytes are in a block that was not sent yet."""
        return isinstance(part, memoryview) and id(part.obj) in self._filling

    def lent(self, part: Frame) -> int | None:
        """The block that these bytes are in, if they are in one of ours; from now on it is the other side's."""
        return self._filling.pop(id(part.obj), None) if isinstance(part, memoryview) else None

    def returned(self, numbers: Sequence[int]) -> None:
        """These blocks may be filled again."""
        if not all(number < len(self.maps) for number in numbers):
            raise FrameError(f"out of step: blocks {list(numbers)[:3]} of {len(self.maps)} were given back.")
        self._free += numbers

    def close(self) -> None:
        for number in list(self.descriptors):
            self.seen(number)


class _Borrower:
    """The other side's blocks."""

    def __init__(self) -> None:
        self.maps: dict[int, mmap.mmap] = {}
        self.read: list[int] = []  # to give back

    def add(self, number: int, descriptor: int) -> None:
        self.maps[number] = mmap.mmap(descriptor, 0)
        os.close(descriptor)

    def bytes_in(self, number: int, size: int) -> memoryview:
        """What was written into a block; it is given back when nobody has these bytes, or a part of them, any more."""
        place = self.maps.get(number)
        if place is None or size > len(place):
            there = "none" if place is None else f"{len(place)} bytes"
            raise FrameError(f"out of step: {size} bytes in block {number}, where there are {there}.")
        array = np.frombuffer(place, np.uint8, size)
        weakref.finalize(array, self.read.append, number).atexit = False
        return memoryview(cast(Any, array))


class Pipe:
    """Whole records in order over a stream socket of this machine. Only records: nothing is ever executed by receiving.

    Long bytes inside a record do not go through the socket, where each side would wait for the other, but through
    blocks of shared memory, as long as there is room. What was packed into :meth:`room` is not copied at all, and who
    receives it may keep it, and write into it.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._lender, self._borrower = _Lender(), _Borrower()

    def room(self, size: int) -> bytearray | memoryview:
        """Memory for bytes that will be sent."""
        block = self._lender.take(size) if _LONG <= size <= _APART else None
        return bytearray(size) if block is None else memoryview(cast(Any, block[1]))

    def send(self, message: Any) -> None:
        """Send one record. Long frames inside it follow it and are not copied into another one."""
        self._send(*self._ready(message))

    def send_ahead(self, message: Any) -> bool:
        """Send one record to a side that is busy, unless that would mean waiting for it; whether it was sent."""
        frame, after = self._ready(message)
        room = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) // 4
        if len(frame) > min(_AT_ONCE, room) or not all(self._lender.holds(part) for part in after):
            return False
        self._send(frame, after)
        return True

    def _ready(self, message: Any) -> tuple[bytes, list[Frame]]:
        """The frame, and what follows it, in blocks where there are some."""
        after: list[Frame] = []
        frame = pack(_lifted(message, after), compact=True)
        for place, part in enumerate(after):
            block = self._lender.take(len(part)) if not self._lender.holds(part) and len(part) <= _APART else None
            if block is not None:
                block[1][:] = np.frombuffer(part, np.uint8)
                after[place] = memoryview(cast(Any, block[1]))
        return frame, after

    def _send(self, frame: bytes, after: list[Frame]) -> None:
        parts, fresh = [], []
        for part in after:
            place = self._lender.lent(part)
            new = place is not None and place in self._lender.descriptors
            parts += [_SOCKET if place is None else place, new, len(part)]
            fresh.append(new)
        read = [self._borrower.read.pop() for _ in range(len(self._borrower.read))]
        numbers = (*(parts[:3] or _NO_PART), *read, *parts[3:])
        head = struct.pack(f"<{3 + len(numbers)}q", len(frame), len(after), len(read), *numbers)
        self.sock.sendall(head + frame)
        for place, new, part in zip(parts[::3], fresh, after, strict=True):
            if place == _SOCKET:
                self.sock.sendall(part)
            elif new:
                self.send_descriptor(self._lender.descriptors[place])
                self._lender.seen(place)

    def receive(self) -> Any:
        """The next record; EOFError when the other side is gone."""
        length, count, read, *first = _HEAD.unpack(self._exactly(_HEAD.size))
        if not 0 <= count <= _MOST or not 0 <= read <= _MOST or length < 0:
            raise FrameError(f"out of step: a message of {count} parts.")
        more = read + 3 * max(count - 1, 0)
        body = self._exactly(8 * more + length)
        numbers = struct.unpack_from(f"<{more}q", body)
        self._lender.returned(numbers[:read])
        parts = [*first, *numbers[read:]] if count else []
        after: list[Frame] = []
        for place, new, size in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
            if new:
                self._borrower.add(place, self.receive_descriptor())
            after.append(self._exactly(size) if place == _SOCKET else self._borrower.bytes_in(place, size))
        message = unpack(body[8 * more :])
        return _lowered(message, after) if after else message

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
        self._lender.close()


def _lifted(value: Any, after: list[Frame]) -> Any:
    """The same tree with its long bytes set aside."""
    if type(value) in _SCALARS:
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        if len(value) < _LONG:
            return value
        after.append(value)
        return Following(len(after) - 1, not isinstance(value, bytes))
    return _through(value, _lifted, after)


def _lowered(value: Any, after: list[Frame]) -> Any:
    """The same tree with its long bytes back in their places."""
    if type(value) in _SCALARS:
        return value
    if isinstance(value, Following):
        found = after[value.place]
        return found if value.taken or isinstance(found, bytes) else bytes(found)
    return _through(value, _lowered, after)


def _through(value: Any, change: Callable[[Any, list[Frame]], Any], after: list[Frame]) -> Any:
    """A tree with its parts changed; what has none is itself."""
    if is_dataclass(value) and not isinstance(value, type):
        changed = {}
        for name in names(type(value)):
            part = getattr(value, name)
            new = change(part, after)
            if new is not part:
                changed[name] = new
        return replace(value, **changed) if changed else value
    if isinstance(value, tuple | list):
        changed_items = [change(part, after) for part in value]
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
