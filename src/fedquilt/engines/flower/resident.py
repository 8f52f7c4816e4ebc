"""A process that stays at a site and holds its data, while Flower starts a new process for every message.

The client app only hands frames over a Unix socket that no one but the site's owner can open; so torch and the data
are loaded once, and a message costs what Flower costs. This module loads neither.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import socketserver
import struct
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from fedquilt.errors import FedquiltError, FrameError

Frames = dict[str, bytes]
Answer = Callable[[str, Frames], Frames]
_LENGTH = struct.Struct("<Q")
_LONGEST_HEAD = 2**24
PLACE = "socket"  # the file of the state folder that says where the socket is; paths of sockets must be short


def ask(folder: Path, kind: str, frames: Frames) -> Frames | None:
    """What the resident of a site answers; None if there is none."""
    try:
        where = (folder / PLACE).read_text(encoding="utf-8")
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(where)
            _send(connection, kind, frames)
            said, answer = _receive(connection)
    except (OSError, EOFError):
        return None
    if said == "refused":
        raise FrameError(answer["reason"].decode())
    return answer


def _send(connection: socket.socket, kind: str, frames: Frames) -> None:
    head = json.dumps({"kind": kind, "parts": [[name, len(frame)] for name, frame in frames.items()]}).encode()
    connection.sendall(_LENGTH.pack(len(head)) + head)
    for frame in frames.values():
        connection.sendall(frame)


def _receive(connection: socket.socket) -> tuple[str, Frames]:
    length = _LENGTH.unpack(_read(connection, _LENGTH.size))[0]
    if length > _LONGEST_HEAD:
        raise EOFError("not one of our messages")
    head = _read(connection, length)
    try:
        parts = json.loads(head)
        return str(parts["kind"]), {str(name): _read(connection, size) for name, size in parts["parts"]}
    except (ValueError, TypeError, LookupError, MemoryError, OverflowError) as error:
        raise EOFError("not one of our messages") from error


def _read(connection: socket.socket, size: int) -> bytes:
    whole, got = bytearray(size), 0
    while got < size:
        count = connection.recv_into(memoryview(whole)[got:], size - got)
        if not count:
            raise EOFError("the other side is gone")
        got += count
    return bytes(whole)


class _JobHandler(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        answer: Answer = self.server.answer  # type: ignore[attr-defined]
        with contextlib.suppress(OSError, EOFError):
            kind, frames = _receive(self.request)
            try:
                _send(self.request, "done", answer(kind, frames))
            except FedquiltError as error:
                _send(self.request, "refused", {"reason": str(error).encode()})
            except Exception as error:  # the text may quote data, so only its kind leaves
                _send(self.request, "refused", {"reason": f"failed ({type(error).__name__})".encode()})


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True


def stay(folder: Path, answer: Answer, parent: int) -> None:
    """Answer until the process that started this one is gone."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(prefix="fedquilt-") as place:
        where = str(Path(place) / "site")
        with _Server(where, _JobHandler) as server:
            os.chmod(where, 0o600)
            server.answer = answer  # type: ignore[attr-defined]
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.2}, daemon=True).start()
            note = folder / f"{PLACE}.part"
            note.write_text(where, encoding="utf-8")
            note.replace(folder / PLACE)
            while os.getppid() == parent:
                time.sleep(0.5)
            server.shutdown()
