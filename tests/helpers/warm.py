"""The command ``fedquilt`` from a shell without its start-up: a process with the library loaded forks for each call.

What a shell finds under the name ``fedquilt`` is a short program that hands its arguments, folder, surroundings and
open files to that process. The command itself runs as always: a process of its own, with these arguments and files.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

CALLER = """#!{python} -SE
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as line:
    line.connect({address!r})
    told = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(line, [len(told).to_bytes(8, "big")], [0, 1, 2])
    line.sendall(told)
    code = line.recv(1)
sys.exit(code[0] if code else 70)
"""


class Warm:
    """The process, for as long as it is needed.

    Example:
        >>> with Warm(folder) as warm:  # doctest: +SKIP
        ...     warm.caller(folder / "bin" / "fedquilt")
    """

    def __init__(self, folder: Path, source: Path) -> None:
        self.address = str(folder / "warm")
        told = {**os.environ, "PYTHONPATH": os.pathsep.join([str(source), str(Path(__file__).parents[1])])}
        self.process = subprocess.Popen([sys.executable, "-m", "helpers.warm", self.address], env=told)

    def __enter__(self) -> Warm:
        deadline = time.monotonic() + 120
        while not Path(self.address).exists():
            assert self.process.poll() is None, "the process that answers commands ended"
            assert time.monotonic() < deadline, "the process that answers commands did not start"
            time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(30)

    def caller(self, path: Path) -> None:
        """Write the program that calls."""
        path.write_text(CALLER.format(python=sys.executable, address=self.address))
        path.chmod(0o755)


def serve(address: str) -> None:
    """Answer calls, each in a process of its own, until somebody ends this one."""
    import torch  # noqa: F401 - what takes long

    import fedquilt  # noqa: F401
    from fedquilt import cli

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(f"{address}.part")
        door.listen()
        os.rename(f"{address}.part", address)
        while True:
            line, _ = door.accept()
            if os.fork() == 0:
                door.close()
                answer(line, cli)
            line.close()


def answer(line: socket.socket, cli: object) -> None:
    """Run one command, say how it ended, and end."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    head, files, _, _ = socket.recv_fds(line, 8, 3)
    told, size = b"", int.from_bytes(head, "big")
    while len(told) < size:
        told += line.recv(size - len(told))
    arguments, folder, surroundings = json.loads(told)
    number = os.fork()
    if number == 0:
        line.close()
        for place, file in enumerate(files):
            os.dup2(file, place)
            os.close(file)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(surroundings)
        sys.argv = ["fedquilt", *arguments]
        os._exit(ended(cli))
    code = os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])
    line.sendall(bytes([code if code >= 0 else 128 - code]))
    os._exit(0)


def ended(cli: object) -> int:
    """The exit code of the command."""
    code: object = 0
    try:
        cli.main()  # type: ignore[attr-defined]
    except SystemExit as end:
        code = end.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    return code if isinstance(code, int) else 0 if code is None else 1


if __name__ == "__main__":
    serve(sys.argv[1])
