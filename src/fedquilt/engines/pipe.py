"""Messages between a process and its workers: records over a socket, and file descriptors beside them."""

from __future__ import annotations

import mmap
import os
import socket
import tempfile
from typing import Any

import torch
from torch import Tensor

from fedquilt.core.record import pack, unpack

_ALIGN = 64


class Pipe:
    """Whole records in order over a stream socket. Only records: nothing is ever executed by receiving."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def send(self, message: Any) -> None:
        """Send one record."""
        frame = pack(message)
        self.sock.sendall(len(frame).to_bytes(8, "little"))
        self.sock.sendall(frame)

    def receive(self) -> Any:
        """The next record; EOFError when the other side is gone."""
        length = int.from_bytes(self._exactly(8), "little")
        return unpack(self._exactly(length))

    def _exactly(self, count: int) -> bytearray:
        buffer = bytearray(count)
        view, have = memoryview(buffer), 0
        while have < count:
            got = self.sock.recv_into(view[have:])
            if got == 0:
                raise EOFError("the other process is gone")
            have += got
        return buffer

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
