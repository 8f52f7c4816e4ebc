"""The server of a federation: a SuperLink, a run on it, and somebody who follows both and starts them again."""

from __future__ import annotations

import hashlib
import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedquilt.config.config import Config
from fedquilt.deploy.app_folder import export
from fedquilt.deploy.flower_command import (
    Address,
    FlowerError,
    call,
    free_port,
    refuse_plain_text,
    start,
    stop,
    wait_for,
)
from fedquilt.deploy.front import Front
from fedquilt.deploy.keys import Keys, check_loopback
from fedquilt.deploy.processes import alive, clear, held, wait_gone, write_down
from fedquilt.deploy.told import NODES, told
from fedquilt.errors import FedquiltError, InputError
from fedquilt.storage.files import write_atomic
from fedquilt.storage.finished import result_of
from fedquilt.storage.journal import Journal
from fedquilt.storage.logs import ROUNDS, read
from fedquilt.watch.tail import Tail

CONNECTION = "fedquilt"
_START = 600.0  # seconds for a server app to start
_ANSWER = 60.0  # seconds for an answer to such a question
_ASK = 15.0  # seconds between questions what became of an app that has not started
Hear = Callable[[int, dict[str, Any]], None]
Note = Callable[[str], None]


@dataclass(frozen=True)
class FederationServer:
    """Where and how a run is served.

    Args:
        folder: The run's folder.
        address: Where nodes reach the server. With keys, a front listens there, and the SuperLink on loopback alone.
        keys: The key folder; None means plain text, which only loopback gets.
        attach: Use the SuperLink that runs there, instead of starting one.
        restarts: How often a run that was killed before it had played another round is started again.
        inside: The port of our own SuperLink behind the front.
    """

    folder: Path
    address: Address
    keys: Keys | None = None
    attach: bool = False
    restarts: int = 5
    inside: int = field(default_factory=free_port)

    def __post_init__(self) -> None:
        refuse_plain_text(self.keys is None, self.address)
        if self.keys is not None:
            self.keys.check_server()
            if self.fronted:
                check_loopback(self.keys.server[0])

    @property
    def fronted(self) -> bool:
        """Whether nodes reach the SuperLink through a front of ours."""
        return self.keys is not None and not self.attach

    @property
    def link(self) -> Address:
        """Where the SuperLink itself listens."""
        return Address("127.0.0.1", self.inside) if self.fronted else self.address

    @property
    def home(self) -> Path:
        """Flower's own files."""
        return self.folder / "flower"

    @property
    def link_process(self) -> Path:
        """Names the process of our own SuperLink."""
        return self.home / "superlink.pid"

    @property
    def server_process(self) -> Path:
        """Names the process of the server app, which writes it when it starts."""
        return self.folder / "server.pid"

    def follow(self, config: Config, hear: Hear, note: Note) -> dict[str, Any]:
        """Play the run to its end and return its result; whatever dies on the way is started again."""
        taken = f"Another 'fedquilt serve' plays the run in '{self.folder}'. Stop it first, or wait for it."
        with held(self.home / ".lock", taken):
            self._make_way(note)
            try:
                return self._follow(config, hear, note)
            except (KeyboardInterrupt, SystemExit) as end:
                self._stopped("Ctrl-C" if isinstance(end, KeyboardInterrupt) else "SIGTERM", note)
                raise

    def _stopped(self, by: str, note: Note) -> None:
        """Write down that the run was stopped, where people look: its messages, its log of nodes, the terminal."""
        if self.attach and alive(self.server_process):
            note(f"stopped by {by}; the run continues at the SuperLink {self.address}, which others run")
            return
        wait_gone(self.server_process)
        done = max((row["round"] for row in self._rows()), default=0)
        Journal(self.folder).say("stopped", done, f"by {by}")
        told(self.folder / NODES, note, f"stopped by {by} after round {done}; the same command goes on from there")

    def _follow(self, config: Config, hear: Hear, note: Note) -> dict[str, Any]:
        app = self.folder / "flower" / "app"
        export(config, app, self.folder)
        self._connection()
        heard, tries, submitted = 0, 0, ""
        log = self.folder / NODES
        nodes = Tail(log, reach=0 if log.exists() else None, sound=_line)  # what is new, not what was said before
        nodes.read()

        def look() -> None:
            for row in nodes.read()[1]:
                note(row["text"])

        with self._superlink() as link:
            while True:
                if not alive(self.server_process):  # a server that was killed may have left it to a SuperLink of others
                    submitted = self._submit(app)
                for number, metrics in self._watch(link, submitted, look):
                    if number > heard:
                        heard, tries = number, 0
                        hear(number, metrics)
                result = result_of(self.folder)
                if result is not None:
                    return result
                self._failed()
                tries += 1
                if tries > self.restarts:
                    raise FlowerError(
                        f"The server ended {tries} times after round {heard} without completing another. "
                        f"See {self.home}/superlink.log."
                    )
                note("the server was stopped; it continues from the last snapshot")
                link.revive()

    def _make_way(self, note: Note) -> None:
        """End what an earlier server of this run has left behind, if that was killed; and see that the port is free."""
        if self.attach:
            return
        for place, what in ((self.link_process, "SuperLink"), (self.server_process, "server app")):
            if clear(place):
                note(f"the {what} of an earlier 'serve' was still there; it was ended")
        if self.address.answers():
            raise InputError(
                f"Something listens at {self.address} already. Choose another --port, or use it: --superlink "
                f"{self.address}."
            )

    def _failed(self) -> None:
        """Raise what the run itself said when it ended; a run that was killed said nothing."""
        try:
            failure = json.loads((self.folder / "failure.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return
        error = FedquiltError(failure["error"])
        error.exit_code = int(failure["exit_code"])
        raise error

    def _connection(self) -> None:
        """How Flower's own command finds the SuperLink."""
        lines = [f"[superlink.{CONNECTION}]", f'address = "{self.link}"']
        if self.keys is None:
            lines.append("insecure = true")
        else:
            lines.append(f'root-certificates = "{self.keys.ca.absolute()}"')
        write_atomic(self.home / "config.toml", ("\n".join(lines) + "\n").encode())

    @contextmanager
    def _superlink(self) -> Iterator[_Link]:
        link = _Link(self)
        try:
            link.revive()
            yield link
        finally:
            link.end()

    def command(self) -> list[str]:
        """How the SuperLink is started."""
        words = ["flower-superlink", "--host", self.link.host, "--port", str(self.link.port)]
        words += ["--disable-runtime-dependency-installation", "--database", str(self.home / "superlink.db")]
        if self.keys is None:
            return [*words, "--insecure"]
        certificate, key = self.keys.server
        words += ["--ssl-ca-certfile", str(self.keys.ca), "--ssl-certfile", str(certificate)]
        return [*words, "--ssl-keyfile", str(key), "--enable-supernode-auth"]

    def register(self) -> None:
        """Tell the SuperLink which nodes may come; it remembers them."""
        known = self.home / "registered"
        for public in [] if self.keys is None else self.keys.public:
            mark = known / hashlib.sha256(public.read_bytes()).hexdigest()[:32]
            if self.attach or not mark.exists():
                self._register(public)
                write_atomic(mark, public.name.encode())

    def _register(self, public: Path) -> None:
        try:
            call(["flwr", "supernode", "register", str(public.absolute()), CONNECTION], self.home)
        except FlowerError as error:
            if "already" not in str(error).lower():
                raise

    def _submit(self, app: Path) -> str:
        """Submit the run; its number at the SuperLink."""
        for place in (self.server_process, self.folder / "failure.json"):
            place.unlink(missing_ok=True)
        told = call(["flwr", "run", str(app.absolute()), CONNECTION, "--format", "json"], self.home)
        return str(_answer(told).get("run-id") or "")

    def _gave_up(self, submitted: str) -> bool:
        """Whether the SuperLink has ended a run whose app never started: on a busy machine its token may expire."""
        if not submitted:
            return False
        try:
            told = call(["flwr", "list", CONNECTION, "--run-id", submitted, "--format", "json"], self.home, _ANSWER)
        except FlowerError:
            return False  # it is busy, or gone, which others see
        runs = _answer(told).get("runs") or [{}]
        return str(runs[0].get("status")).startswith("finished")

    def _watch(
        self, link: _Link, submitted: str, look: Callable[[], object] = lambda: None
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """The rounds as they are played, until the server app is gone."""
        began, seen = time.monotonic(), 0
        asked = began
        while True:
            running = alive(self.server_process)
            look()  # who came, went and failed
            for row in self._rows()[seen:]:
                seen += 1
                yield int(row["round"]), row
            if result_of(self.folder) is not None and not running:
                return
            if running is None:
                self._check_start(began)
                if time.monotonic() - asked > _ASK:
                    if self._gave_up(submitted) and alive(self.server_process) is None:
                        return
                    asked = time.monotonic()
            if running is False or not link.alive():
                wait_gone(self.server_process)
                return
            time.sleep(0.3)

    def _check_start(self, began: float) -> None:
        if time.monotonic() - began > _START:
            raise FlowerError(
                f"The server app did not start within {_START:.0f} seconds. See {self.home}/superlink.log; a "
                "SuperLink that others run must be on this machine, and use the same installation of fedquilt."
            )

    def _rows(self) -> list[dict[str, Any]]:
        return read(self.folder, ROUNDS)


def _line(line: bytes) -> dict[str, Any] | None:
    """A line of the log of nodes."""
    text = line.decode(errors="replace").strip()
    return {"text": text} if text else None


def _answer(told: str) -> dict[str, Any]:
    """What Flower's command said, as JSON; nothing if it said something else."""
    try:
        found = json.loads(told)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


class _Link:
    """The SuperLink, ours or one that runs already."""

    def __init__(self, server: FederationServer) -> None:
        self.server = server
        self.process: subprocess.Popen[bytes] | None = None
        self.front: Front | None = None

    def revive(self) -> None:
        """Start it, or start it again; nodes that were known are known again."""
        log = self.server.home / "superlink.log"
        if not self.server.attach and not self.alive():
            self._stop()
            self.process = start(self.server.command(), self.server.home, log)
            write_down(self.server.link_process, self.process.pid)
        wait_for(self.server.link, self.process, log)
        self.server.register()
        if self.server.keys is not None and self.server.fronted and self.front is None:
            self.front = Front(self.server.address, self.server.link, self.server.keys)
            self.front.start()

    def alive(self) -> bool:
        """Whether it runs; one that is not ours is believed to."""
        return self.server.attach or (self.process is not None and self.process.poll() is None)

    def end(self) -> None:
        """Stop it, if it is ours."""
        if self.front is not None:
            self.front.stop()
            self.front = None
        self._stop()

    def _stop(self) -> None:
        if self.process is not None:
            stop(self.process)
            self.process = None
