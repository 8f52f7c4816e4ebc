"""Flower's own programs: how they are called, with which environment, and what they said when they failed."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedquilt.engines.process import end_with_parent
from fedquilt.errors import FedquiltError, InputError

_NAME = re.compile(r"(?=.{1,253}$)[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_-]+)*\.?")


_CODES = re.compile(rb"\x1b(\[[0-9;?]*[ -/]*[@-~]|[@-Z\\^_])")
_LONGEST_LOG = 2**24  # bytes; a longer log is put aside when a program starts


class FlowerError(FedquiltError):
    """One of Flower's programs failed."""

    exit_code = 5


@dataclass(frozen=True)
class Address:
    """A host and a port."""

    host: str
    port: int

    def __post_init__(self) -> None:
        if not is_host(self.host) or not 0 < self.port < 65536:
            raise InputError(
                f"The address must be HOST:PORT, for example server.example.org:8000, got {self.host}:{self.port}."
            )

    @classmethod
    def of(cls, text: str) -> Address:
        """From 'host:port'."""
        host, _, port = text.rpartition(":")
        if not re.fullmatch(r"[0-9]{1,5}", port):
            raise InputError(f"The address must be HOST:PORT, for example server.example.org:8000, got {text!r}.")
        return cls(host.strip("[]"), int(port))

    @property
    def is_loopback(self) -> bool:
        """Whether it cannot be reached from elsewhere."""
        number = _number(self.host)
        return self.host == "localhost" if number is None else number.is_loopback

    def answers(self) -> bool:
        """Whether something listens there."""
        with contextlib.suppress(OSError), socket.create_connection((self.host, self.port), timeout=1):
            return True
        return False

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _number(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def is_host(text: str) -> bool:
    """Whether this can be the name or the address of a machine."""
    return _number(text) is not None or _NAME.fullmatch(text) is not None


def refuse_plain_text(insecure: bool, address: Address) -> None:
    """Plain text is for tests on one machine."""
    if insecure and not address.is_loopback:
        raise InputError(
            f"--insecure sends everything in plain text, so it is refused for {address}, which other machines can "
            "reach. Make keys (fedquilt keys) and leave --insecure out; it is meant for 127.0.0.1."
        )


def program(name: str) -> str:
    """The path of one of Flower's programs."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise InputError(f'{name} is not here. Install the extra "flower": pip install "fedquilt[flower]".')
    return found


def environment(home: Path) -> dict[str, str]:
    """Flower's programs find each other, keep to a folder of their own, and report to nobody unless told to."""
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {**quiet, **os.environ, "PATH": path, "FLWR_HOME": str(home)}


def call(arguments: Sequence[str], home: Path, timeout: float = 300.0) -> str:
    """What a program prints; its complaint as an error if it fails."""
    command = [program(arguments[0]), *arguments[1:]]
    try:
        done = subprocess.run(
            command, env=environment(home), capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired as error:
        raise FlowerError(f"'{' '.join(arguments[:3])}' did not end within {timeout:.0f} seconds.") from error
    if done.returncode:
        raise FlowerError(f"'{' '.join(arguments[:3])}' failed: {last_words(done.stdout + done.stderr)}")
    return done.stdout


def last_words(text: str, lines: int = 12) -> str:
    said = [line.rstrip() for line in text.splitlines() if line.strip()]
    return "\n".join(said[-lines:]) or "it said nothing"


def start(arguments: Sequence[str], home: Path, log: Path) -> subprocess.Popen[bytes]:
    """Start a program that stays, in a session of its own, with its output in a file. It ends when this one does."""
    process = subprocess.Popen(
        [program(arguments[0]), *arguments[1:]],
        env=environment(home),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=end_with_parent,
    )
    keep_output(process, log)
    return process


def keep_output(process: subprocess.Popen[bytes], log: Path) -> threading.Thread:
    """Write what a program says into a file, without the codes that colour a terminal; until it says no more."""
    log.parent.mkdir(parents=True, exist_ok=True)
    if log.exists() and log.stat().st_size > _LONGEST_LOG:
        log.replace(log.with_name(f"{log.name}.old"))

    said = process.stdout
    if said is None:
        raise ValueError("the program must have been started with stdout=subprocess.PIPE")

    def copy() -> None:
        with said, log.open("ab") as file:
            for line in said:
                with contextlib.suppress(OSError):  # a full disk must not stop the program
                    file.write(_CODES.sub(b"", line))
                    file.flush()

    thread = threading.Thread(target=copy, name=f"log of {log.name}", daemon=True)
    thread.start()
    return thread


def stop(process: subprocess.Popen[bytes], grace: float = 10.0) -> None:
    """End a program that we started, and what it started in its session."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(grace)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, 9)
    process.wait()


def wait_for(address: Address, process: subprocess.Popen[bytes] | None, log: Path, seconds: float = 60.0) -> None:
    """Wait until something listens at an address."""
    end = time.monotonic() + seconds
    while not address.answers():
        if process is not None and process.poll() is not None:
            time.sleep(0.3)  # for its last words to be written
            raise FlowerError(f"Flower's SuperLink ended at once: {last_words(_text(log))}")
        if time.monotonic() > end:
            said = f"Flower's SuperLink said: {last_words(_text(log), 4)}" if process is not None else "Is it started?"
            raise FlowerError(f"Nothing answers at {address} after {seconds:.0f} seconds. {said}")
        time.sleep(0.1)


def _text(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""


def free_port() -> int:
    """A port that nobody uses at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
