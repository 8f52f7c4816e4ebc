"""A pretended Windows, and the command ``fedquilt`` in it: lists of words in (JSON), what was said out (JSON).

It is Linux without what Windows has not: modules (fcntl, resource, ...), functions of ``os`` (fork, sysconf, pread...),
Unix sockets and most signals. And what Windows refuses is refused: to remove, replace or rename a file that is open, to
open a folder, to bring a file to the disk that was opened for reading, names with ``:`` or ``?``. A text file without
an encoding is an error, since that of Windows is not UTF-8, and the terminal knows 256 signs. What other libraries do
there is not pretended: they are imported before.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import socket
import stat
import sys
import traceback
import types
import warnings
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

MODULES = ("fcntl", "grp", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty")
OF_OS = (
    *("fork", "forkpty", "register_at_fork", "getuid", "geteuid", "getgid", "getpgid", "killpg", "setsid", "nice"),
    *("sysconf", "sched_getaffinity", "sched_setscheduler", "sched_param", "SCHED_BATCH", "statvfs", "getloadavg"),
    *("pread", "pwrite", "memfd_create", "mkfifo", "uname", "WNOHANG", "chown", "fchmod", "posix_fallocate"),
    *("O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "O_SYNC"),
)
OF_SOCKET = ("AF_UNIX", "send_fds", "recv_fds", "CMSG_LEN", "SCM_RIGHTS")
OF_SIGNAL = ("SIGKILL", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGCHLD", "SIGALRM", "SIGPIPE", "pthread_sigmask", "alarm")


def _third_party() -> None:
    """What has ways of its own on a real Windows."""
    import matplotlib.figure
    import sklearn.datasets
    import torch
    import torch.func
    import typer.testing  # noqa: F401

    sklearn.datasets.load_digits()
    torch.nn.Linear(2, 2)(torch.zeros(1, 2)).sum().backward()
    torch._dynamo  # noqa: B018
    matplotlib.figure.Figure().savefig(os.devnull, format="png")


def _msvcrt(fcntl: Any) -> types.ModuleType:
    """Locks of Windows, of whole files instead of bytes."""
    made = types.ModuleType("msvcrt")
    made.LK_NBLCK, made.LK_UNLCK = 2, 0  # type: ignore[attr-defined]

    def locking(number: int, mode: int, count: int) -> None:
        try:
            fcntl.flock(number, fcntl.LOCK_UN if mode == 0 else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PermissionError(13, "Permission denied") from None

    made.locking = locking  # type: ignore[attr-defined]
    return made


def _open_files() -> set[str]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            continue
    return found


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if event in ("os.remove", "os.rename", "os.rmdir"):
        places = arguments[: 2 if event == "os.rename" else 1]
        held = _open_files()
        for place in places:
            if os.path.realpath(os.fsdecode(place)) in held:
                raise PermissionError(13, "The process cannot access the file: it is being used", os.fsdecode(place))
    elif event in ("open", "os.mkdir") and isinstance(arguments[0], str):
        path, mode = arguments[0], arguments[1]
        if any(sign in os.path.basename(path) for sign in '<>:"|?*'):
            raise OSError(22, "Invalid argument", path)
        if event == "open" and mode is None and os.path.isdir(path):
            raise PermissionError(13, "Permission denied", path)


def _fsync(number: int, fsync: Any = os.fsync) -> None:
    flags = Path(f"/proc/self/fdinfo/{number}").read_text(encoding="ascii").split("flags:")[1].split()[0]
    if int(flags, 8) & os.O_ACCMODE == os.O_RDONLY or stat.S_ISDIR(os.fstat(number).st_mode):
        raise OSError(9, "Bad file descriptor")
    fsync(number)


def pretend() -> None:
    """From now on this process is on Windows, as far as that goes."""
    import fcntl

    _third_party()
    sys.modules["msvcrt"] = _msvcrt(fcntl)
    for name in MODULES:
        sys.modules[name] = None  # type: ignore[assignment]
    for module, names in ((os, OF_OS), (socket, OF_SOCKET), (signal, OF_SIGNAL)):
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    os.fsync = _fsync
    shutil._use_fd_functions = False  # trees are removed without descriptors of folders there
    sys.addaudithook(_watch)
    warnings.filterwarnings("error", category=EncodingWarning, module="fedquilt")


def said(words: list[str]) -> tuple[int, str, str]:
    """How a command ends, and what it says."""
    from fedquilt.cli import main

    out, err = (io.TextIOWrapper(io.BytesIO(), "cp1252", write_through=True) for _ in range(2))
    code: Any = 0
    sys.argv = ["fedquilt", *words]
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
        except Exception:
            code = 1
            traceback.print_exc()
    return code, *(stream.buffer.getvalue().decode("cp1252") for stream in (out, err))


if __name__ == "__main__":
    commands = json.load(sys.stdin)
    pretend()
    json.dump([said(words) for words in commands], sys.stdout)
