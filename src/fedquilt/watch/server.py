"""The page's server: on this machine only, for whoever knows the secret in the address.

There are two fixed routes, the page and its data. Runs are named by keys of a table; no path ever comes from outside.
"""

from __future__ import annotations

import errno
import html
import secrets
import sys
import webbrowser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import fedquilt
from fedquilt.errors import InputError
from fedquilt.report.page import SHARED, asset, document, policy
from fedquilt.storage.files import to_json
from fedquilt.terminal import say
from fedquilt.watch.board import Board

HOST = "127.0.0.1"
HEADER = "X-Fedquilt-Token"


class WatchServer(ThreadingHTTPServer):
    """Serves the page of the runs below a folder. Port 0: any that is free."""

    daemon_threads = True

    def __init__(self, top: Path, port: int = 0) -> None:
        self.board, self.token = Board(top), secrets.token_urlsafe(24)
        self.html, self.policy = page(top.resolve().name)
        try:
            super().__init__((HOST, port), _PageHandler)
        except OverflowError as error:
            raise InputError(f"--port {port}: a port is a number from 1 to 65535, or 0 for any.") from error
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
            why = "is taken" if error.errno == errno.EADDRINUSE else "is not for everyone to use"
            raise InputError(f"Port {port} {why}. Choose another --port, or leave it out for a free one.") from error

    def server_bind(self) -> None:
        """Bind without asking any name server."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = HOST, int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that went away is no news; anything else is."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        """The address of the page, with its secret."""
        return f"http://{HOST}:{self.server_port}/?token={self.token}"


class _PageHandler(BaseHTTPRequestHandler):
    server: WatchServer
    server_version, sys_version = "fedquilt", ""
    timeout = 60

    def do_GET(self) -> None:
        """The page, or its data."""
        asked = urlsplit(self.path)
        query = {name: values[-1] for name, values in parse_qs(asked.query).items()}
        data = asked.path == "/data"
        if not self._known_host():
            self._answer(403, "Use the address that 'fedquilt watch' printed.")
        elif not self._allowed(self.headers.get(HEADER, "") if data else query.get("token", "")):
            self._answer(403, "Open the address that 'fedquilt watch' printed, with its token.")
        elif data:
            self._data(query)
        elif asked.path == "/":
            self._answer(200, self.server.html, "text/html")
        else:
            self._answer(404, "There is nothing here.")

    def _known_host(self) -> bool:
        """Whether we were asked by our own name: a foreign name that leads here is another site's trick."""
        port = self.server.server_port
        return self.headers.get_all("Host") in ([f"{HOST}:{port}"], [f"localhost:{port}"])

    def _allowed(self, token: str) -> bool:
        return secrets.compare_digest(token.encode("utf-8", "replace"), self.server.token.encode())

    def _data(self, query: dict[str, str]) -> None:
        try:
            since, have = (max(0, int(query.get(name, "0"))) for name in ("since", "have"))
        except ValueError:
            self._answer(400, "since and have are numbers.")
            return
        found = self.server.board.told(since, query.get("run"), have)
        self._answer(200, to_json(found), "application/json")

    def _answer(self, code: int, text: str, kind: str = "text/plain") -> None:
        content = text.encode()
        self.send_response(code)
        for name, value in (
            ("Content-Type", f"{kind}; charset=utf-8"),
            ("Content-Length", str(len(content))),
            ("Content-Security-Policy", self.server.policy),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
            ("X-Frame-Options", "DENY"),
            ("Referrer-Policy", "no-referrer"),
            ("Cross-Origin-Opener-Policy", "same-origin"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is logged: addresses hold the secret."""


ROOM = "fedquilt.watch"
OWN = ("words.js", "list.js", "close.js", "watch.js")


def page(title: str) -> tuple[str, str]:
    """The page for a folder of this name, and the policy it is sent with: its own scripts, and its own server."""
    scripts = [asset(name) for name in SHARED] + [asset(name, ROOM) for name in OWN]
    body = BODY.format(title=html.escape(title), version=html.escape(fedquilt.__version__))
    text = document(f"{title}: fedquilt watch", asset("report.css") + asset("watch.css", ROOM), body, scripts)
    return text, f"{policy(scripts)}; connect-src 'self'; frame-ancestors 'none'"


BODY = """<header>
<div class="brand"><span class="quilt" aria-hidden="true"></span>
<div><h1>{title}</h1><p class="subtitle" id="subtitle">asking …</p></div></div>
<div class="tools"><button type="button" id="theme">Dark</button></div>
</header>
<main id="main" tabindex="-1">
<div id="trouble" class="warning" role="alert" hidden></div>
<noscript><p>This page needs JavaScript; without it, 'fedquilt watch --once' prints the same.</p></noscript>
</main>
<footer>fedquilt {version} · <span id="when"></span></footer>
<div id="live" class="unseen" role="status" aria-live="polite"></div>
"""


def follow(top: Path, port: int, open_page: bool, begun: bool, as_json: bool) -> None:
    """Serve the page until Ctrl-C."""
    with WatchServer(top, port) as server:
        if as_json:
            say(to_json({"url": server.url, "port": server.server_port, "folder": str(top)}))
        else:
            say(f"watching {top}: open this address in a browser on this machine (Ctrl-C to stop)")
            if not begun:
                say("There are no runs yet; they will appear on the page when they start.")
            say(server.url)
        if open_page:
            webbrowser.open(server.url)
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            if not as_json:
                say("\nThe page has ended; runs continue.")
