"""The door of a server: TLS on the outside, and behind it only that part of Flower's SuperLink which nodes need.

A SuperLink answers everybody on one port: nodes, whose keys it checks, and also whoever registers nodes or submits
programs to run, whom it believes. So it listens on this machine alone, and from outside only the calls of nodes reach
it. Each is read whole and written anew, so that nothing else can hide in it.
"""

from __future__ import annotations

import asyncio
import re
import socket
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

from fedquilt.deploy.flower_command import Address, FlowerError
from fedquilt.deploy.keys import Keys
from fedquilt.errors import InputError

_NODES = re.compile(rb"/v1/fleet/[a-z-]{1,64}")
_MOST = 2**25  # bytes of a call; Flower cuts what is longer than 5 MB
_HELD = 2**30  # bytes of all calls that are being read
_PASSED = (b"content-type", b"accept", b"user-agent")  # and Flower's own, by which nodes say who they are
_SECONDS = 120.0
Send = Callable[[dict[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[dict[str, Any]]]


class Front:
    """Listens at ``address`` with the server's certificate, and passes on to ``link`` what nodes say."""

    def __init__(self, address: Address, link: Address, keys: Keys) -> None:
        self.address, self.link, self.keys = address, link, keys
        self._server: Any = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Listen, in a thread of its own."""
        import uvicorn

        certificate, key = self.keys.server
        options: dict[str, Any] = {"ssl_certfile": str(certificate), "ssl_keyfile": str(key), "log_config": None}
        options |= {"log_level": "critical", "access_log": False, "lifespan": "off", "ws": "none"}
        options |= {"server_header": False, "timeout_graceful_shutdown": 1}
        app = _App(self.link, self.keys)
        server = self._server = uvicorn.Server(uvicorn.Config(app, **options))
        door = self._door()

        async def serve() -> None:
            try:
                await server.serve(sockets=[door])
            finally:
                for open_one in list(server.server_state.connections):  # a node that does not say good-bye
                    open_one.transport.abort()
                await app.close()
                await asyncio.sleep(0.05)  # what was ended is let go of by the loop itself

        self._thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True, name="fedquilt-front")
        self._thread.start()
        while not server.started:
            if not self._thread.is_alive():
                door.close()
                raise FlowerError(f"The server could not listen at {self.address} with '{certificate}'.")
            time.sleep(0.01)

    def _door(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self.address.host else socket.AF_INET
        try:
            return socket.create_server((self.address.host, self.address.port), family=family, backlog=1024)
        except OSError as error:
            raise InputError(
                f"The server cannot listen at {self.address}: {error.strerror}. Choose another."
            ) from error

    def stop(self) -> None:
        """Close the door."""
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            self._thread.join(timeout=10)
        self._server = self._thread = None


class _App:
    """An ASGI application that passes calls on."""

    def __init__(self, link: Address, keys: Keys) -> None:
        self.link, self.keys = link, keys
        self._client: Any = None
        self._held = 0

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path = scope.get("raw_path") or b""
        if scope["method"] != "POST" or not _NODES.fullmatch(path) or scope["query_string"]:
            return await _answer(send, 404, b"Here are only nodes of a federation served.\n")
        body = bytearray()
        try:
            refused = await self._read(receive, body)
            if refused is not None:
                return await _answer(send, *refused)
            await self._pass_on(path.decode(), [h for h in scope["headers"] if _may_pass(h[0])], bytes(body), send)
        finally:
            self._held -= len(body)

    async def _read(self, receive: Receive, body: bytearray) -> tuple[int, bytes] | None:
        """All of a call; or what to answer, if that is too much."""
        while True:
            part = await receive()
            if part["type"] == "http.disconnect":
                raise asyncio.CancelledError
            body += part.get("body", b"")
            self._held += len(part.get("body", b""))
            if len(body) > _MOST:
                return 413, b"That is too long.\n"
            if self._held > _HELD:  # nodes ask again after this answer
                return 503, b"Too much is going on at the moment.\n"
            if not part.get("more_body", False):
                return None

    async def _pass_on(self, path: str, headers: list[tuple[bytes, bytes]], body: bytes, send: Send) -> None:
        import httpx

        try:
            found = await self._to_link().post(path, content=body, headers=headers)
        except httpx.TransportError:  # nodes ask again after this answer
            return await _answer(send, 502, b"Flower's SuperLink does not answer at the moment.\n")
        kept = [(k, v) for k, v in found.headers.raw if _may_pass(k.lower())]
        await _answer(send, found.status_code, found.content, kept)

    async def close(self) -> None:
        """Hang up."""
        if self._client is not None:
            await self._client.aclose()

    def _to_link(self) -> Any:
        if self._client is None:
            import ssl

            import httpx

            trust = ssl.create_default_context(cafile=str(self.keys.ca))
            many = httpx.Limits(max_connections=None, max_keepalive_connections=64)
            self._client = httpx.AsyncClient(
                base_url=f"https://{self.link}", verify=trust, limits=many, timeout=_SECONDS, trust_env=False
            )
        return self._client


def _may_pass(name: bytes) -> bool:
    return name in _PASSED or name.startswith(b"flwr-")


async def _answer(send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]] | None = None) -> None:
    told = headers if headers is not None else [(b"content-type", b"text/plain")]
    told = [*told, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": told})
    await send({"type": "http.response.body", "body": body})
