"""A site joins a federation: a SuperNode with this site's own data."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NoReturn

from fedquilt.core.tree import unused
from fedquilt.deploy.flower_command import (
    Address,
    environment,
    free_port,
    keep_output,
    last_words,
    program,
    refuse_plain_text,
)
from fedquilt.deploy.keys import check_date, check_node_key
from fedquilt.deploy.processes import held
from fedquilt.deploy.site import SiteSettings, is_function
from fedquilt.deploy.told import SITE, told
from fedquilt.engines.flower.resident import PLACE
from fedquilt.engines.process import end_with_parent
from fedquilt.errors import InputError


@dataclass(frozen=True)
class Membership:
    """How a site reaches the server, and by what it is known there.

    Args:
        superlink: Where the server is.
        settings: The site's own settings.
        ca: The certificate by which the server is known; None only with plain text, on loopback.
        key: The node's private key.
        port: Where this node's own processes talk to each other, on 127.0.0.1; None takes a free one.
    """

    superlink: Address
    settings: SiteSettings
    ca: Path | None = None
    key: Path | None = None
    port: int | None = None

    def __post_init__(self) -> None:
        refuse_plain_text(self.ca is None, self.superlink)
        for path, what in ((self.ca, "certificate of the server's CA"), (self.key, "private key of the node")):
            if path is not None and not path.is_file():
                raise InputError(f"There is no '{path}', the {what}. Ask who runs the server for it.")
        if self.ca is not None:
            check_date(self.ca)
        if self.key is not None:
            check_node_key(self.key)
        if self.port is not None and Address("127.0.0.1", self.port).answers():
            raise InputError(f"Something listens at 127.0.0.1:{self.port} already. Choose another --port, or none.")
        data = self.settings.data
        if not is_function(data) and not Path(data).exists():
            raise InputError(
                f"There is no '{data}'. Give this site's rows with --data: a .npz, .csv or .parquet file, a folder of "
                "images, file.py:function, or package.module:function."
            )

    @property
    def state(self) -> Path:
        """The site's own folder."""
        return Path(self.settings.state)

    def command(self) -> list[str]:
        """How the node is started."""
        file = self.state / "site.toml"
        words = [program("flower-supernode"), "--superlink", str(self.superlink)]
        words += ["--port", str(self.port or free_port()), "--node-config", f'site="{file.absolute()}"']
        if self.ca is None:
            return [*words, "--insecure"]
        words += ["--root-certificates", str(self.ca)]
        return [*words, *(["--auth-supernode-private-key", str(self.key)] if self.key is not None else [])]

    @property
    def log(self) -> Path:
        """What happened at this site."""
        return self.state / SITE

    @property
    def flower_log(self) -> Path:
        """What Flower's own programs say."""
        return self.state / "flower.log"

    @property
    def name(self) -> str:
        """What this site is called where it is spoken of."""
        return f"site {self.settings.name!r}" if self.settings.name is not None else "this site"

    def run(self, note: Callable[[str], None]) -> NoReturn:
        """Be a node until stopped: a resident with the data, and Flower's SuperNode, which is started again when it
        ends, for example because the server does not know its key yet. SIGTERM and Ctrl-C stop it, with exit code 0
        and 130."""
        with self.alone():
            say = partial(told, self.log, note)
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
            if devices := unused("A site knows no other place yet."):
                say(f"note: {devices}")
            try:
                self._stay(say)
            except (SystemExit, KeyboardInterrupt) as end:
                by = "Ctrl-C" if isinstance(end, KeyboardInterrupt) else "SIGTERM"
                say(f"{self.name} stopped, by {by}; clients' states are kept in {self.state}")
                raise

    def _stay(self, note: Callable[[str], None]) -> NoReturn:
        command = self.command()
        surroundings = environment(self.state / "flower")
        resident = self._settle(surroundings)
        note(f"{self.name} has loaded its data and joins {self.superlink}; what Flower says is in {self.flower_log}")
        pause = 2.0
        while True:
            began = time.monotonic()
            node = subprocess.Popen(
                command,
                env=surroundings,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                preexec_fn=_follow,
            )
            before = self.flower_log.stat().st_size if self.flower_log.exists() else 0
            output = keep_output(node, self.flower_log)
            try:
                while (code := node.poll()) is None:
                    if resident.poll() is not None:
                        note("The process that holds the data ended; it is started again.")
                        resident = self._settle(surroundings)
                    time.sleep(0.5)
            finally:
                _end(node)
            pause = 2.0 if time.monotonic() - began > 60 else min(pause * 1.5, 30.0)
            output.join(2.0)
            said = last_words(_since(self.flower_log, before)).replace("\n", " | ")
            soon = f"it is started again in {pause:.0f} seconds"
            note(f"The node ended with exit code {code}; {soon}. Flower said: {said}")
            time.sleep(pause)

    def alone(self) -> AbstractContextManager[None]:
        """Hold the state folder: two nodes with one would take each other's place."""
        taken = f"Another node uses '{self.state}'. Stop it, or give this one another --state."
        return held(self.state / ".lock", taken)

    def _settle(self, surroundings: dict[str, str]) -> subprocess.Popen[bytes]:
        """Start the resident and wait until it has loaded the data."""
        file, place = self.state / "site.toml", self.state / PLACE
        self.settings.write(file)
        file.chmod(0o600)
        place.unlink(missing_ok=True)
        words = [sys.executable, "-m", "fedquilt.deploy.resident", str(file), str(os.getpid())]
        resident = subprocess.Popen(words, env=surroundings, stdin=subprocess.DEVNULL)
        while not place.exists():
            if resident.poll() is not None:
                raise InputError("The site's data could not be loaded; the reason is above.")
            time.sleep(0.05)
        return resident


def _since(log: Path, place: int) -> str:
    """What a log has gained."""
    content = log.read_bytes() if log.exists() else b""
    return content[place if place <= len(content) else 0 :].decode(errors="replace")


def _follow() -> None:
    end_with_parent(signal.SIGKILL)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
