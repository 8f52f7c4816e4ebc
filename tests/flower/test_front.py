"""The door of a server: nodes' calls reach the SuperLink as they are, and nothing else does."""

from __future__ import annotations

import gc
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from fedquilt.deploy import serve
from fedquilt.deploy.flower_command import Address, free_port
from fedquilt.deploy.front import Front
from fedquilt.deploy.keys import Keys, make
from fedquilt.deploy.serve import FederationServer
from fedquilt.errors import InputError

Calls = list[tuple[str, str, dict[str, str], bytes]]


class Link:
    """Stands for a SuperLink: answers every call and remembers it."""

    def __init__(self, keys: Keys) -> None:
        self.calls: Calls = []
        calls = self.calls

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                calls.append((self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body))
                self.send_response(401 if "unknown" in self.path else 200)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body[::-1])

            do_GET = do_POST = do_PUT = answer

            def log_message(self, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*map(str, keys.server))
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02})
        self.thread.start()
        self.address = Address("127.0.0.1", self.server.server_port)

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    folder = tmp_path_factory.mktemp("front") / "keys"
    make(folder, ["localhost"], [])
    return Keys(folder)


@pytest.fixture
def link(keys: Keys) -> Iterator[Link]:
    made = Link(keys)
    yield made
    made.close()


@pytest.fixture
def front(link: Link, keys: Keys) -> Iterator[Front]:
    made = Front(Address("127.0.0.1", free_port()), link.address, keys)
    made.start()
    yield made
    made.stop()


@pytest.fixture
def outside(front: Front, keys: Keys) -> Iterator[httpx.Client]:
    trust = ssl.create_default_context(cafile=str(keys.ca))
    with httpx.Client(base_url=f"https://{front.address}", verify=trust, trust_env=False) as client:
        yield client


@pytest.mark.parametrize("size", [0, 10, 6_000_000])
def test_a_node_is_passed_on(outside: httpx.Client, link: Link, size: int) -> None:
    body = bytes(range(256)) * (size // 256) + b"end"
    told = outside.post("/v1/fleet/push-object", content=body, headers={"flwr-signature": "abc", "cookie": "x"})
    assert told.status_code == 200
    assert told.content == body[::-1]
    assert told.headers["content-type"] == "application/x-protobuf"
    ((method, path, headers, heard),) = link.calls
    assert (method, path, heard, headers["flwr-signature"]) == ("POST", "/v1/fleet/push-object", body, "abc")
    assert "cookie" not in headers


def test_what_the_superlink_refuses_stays_refused(outside: httpx.Client) -> None:
    assert outside.post("/v1/fleet/unknown", content=b"x").status_code == 401


@pytest.mark.parametrize(
    "path",
    [
        "/v1/control/start-run",
        "/v1/control/register-node",
        "/v1/runtime/acquire-task",
        "/",
        "/docs",
        "/openapi.json",
        "/v1/fleet/",
        "/v1/fleet/../control/start-run",
        "/v1/fleet/%2e%2e/control/start-run",
        "//v1/control/start-run",
        "/v1/fleet/a/../../control/start-run",
        "/v1/fleet/pull-messages?x=/v1/control/start-run",
        "/v1/fleet/pull-messages/../../control/start-run",
        "/V1/control/start-run",
        "/v1/fleet/..%2fcontrol%2fstart-run",
    ],
)
def test_nobody_else_is(front: Front, keys: Keys, link: Link, path: str) -> None:
    assert said(front, keys, f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n") == b"404"
    assert link.calls == []


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS", "CONNECT"])
def test_nodes_only_post(front: Front, keys: Keys, link: Link, method: str) -> None:
    assert said(front, keys, f"{method} /v1/fleet/pull-messages HTTP/1.1\r\nhost: x\r\n\r\n") in (b"404", b"400")
    assert link.calls == []


def test_a_second_call_inside_the_first_is_not_a_call(front: Front, keys: Keys, link: Link) -> None:
    hidden = "POST /v1/control/start-run HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"
    lengths = f"content-length: {len(hidden)}\r\n"
    said(front, keys, f"POST /v1/fleet/pull-messages HTTP/1.1\r\nhost: x\r\n{lengths}\r\n{hidden}")
    twice = "content-length: 0\r\ntransfer-encoding: chunked\r\n"
    said(front, keys, f"POST /v1/fleet/pull-messages HTTP/1.1\r\nhost: x\r\n{twice}\r\n0\r\n\r\n{hidden}")
    assert all(path == "/v1/fleet/pull-messages" for _, path, _, _ in link.calls)


def test_a_call_that_is_too_long_is_refused(outside: httpx.Client, link: Link) -> None:
    assert outside.post("/v1/fleet/push-object", content=bytes(2**25 + 1), timeout=60).status_code == 413
    assert link.calls == []


def test_many_long_calls_at_once_are_told_to_wait(
    outside: httpx.Client, link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedquilt.deploy.front._HELD", 1_000_000)
    assert outside.post("/v1/fleet/push-object", content=bytes(2_000_000)).status_code == 503
    assert outside.post("/v1/fleet/push-object", content=bytes(900_000)).status_code == 200  # nothing is held any more
    assert len(link.calls) == 1


def test_a_superlink_that_is_away_comes_back(keys: Keys) -> None:
    away = Address("127.0.0.1", free_port())
    front = Front(Address("127.0.0.1", free_port()), away, keys)
    front.start()
    trust = ssl.create_default_context(cafile=str(keys.ca))
    told = httpx.post(f"https://{front.address}/v1/fleet/pull-messages", content=b"x", verify=trust, trust_env=False)
    front.stop()
    assert told.status_code == 502  # which Flower's nodes take for 'ask again'


def test_plain_text_gets_no_answer(front: Front) -> None:
    with socket.create_connection((front.address.host, front.address.port), timeout=5) as line:
        line.sendall(b"POST /v1/fleet/pull-messages HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n")
        assert not line.recv(100).startswith(b"HTTP")


def test_nodes_that_do_not_say_good_bye_are_let_go_of(link: Link, keys: Keys) -> None:
    """Their connections are closed when the front is, not when Python happens to find them (which is an error here)."""
    front = Front(Address("127.0.0.1", free_port()), link.address, keys)
    front.start()
    trust = ssl.create_default_context(cafile=str(keys.ca))
    address = (front.address.host, front.address.port)
    with ExitStack() as held:
        nodes = []
        for _ in range(3):
            raw = held.enter_context(socket.create_connection(address))
            nodes.append(held.enter_context(trust.wrap_socket(raw, server_hostname="localhost")))
        nodes[0].sendall(b"POST /v1/fleet/pull-messages HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n")
        assert nodes[0].recv(12) == b"HTTP/1.1 200"
        nodes[1].sendall(b"POST /v1/fleet/pull-messages HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nhalf")
        front.stop()
    gc.collect()


def test_a_taken_port_is_named(front: Front, link: Link, keys: Keys) -> None:
    with pytest.raises(InputError, match=f"cannot listen at {front.address}: Address already in use"):
        Front(front.address, link.address, keys).start()


def said(front: Front, keys: Keys, text: str) -> bytes:
    """The status that raw bytes are answered with."""
    trust = ssl.create_default_context(cafile=str(keys.ca))
    with (
        socket.create_connection((front.address.host, front.address.port), timeout=5) as line,
        trust.wrap_socket(line, server_hostname="127.0.0.1") as safe,
    ):
        safe.sendall(text.encode())
        return safe.recv(100).split()[1]


def test_keys_must_be_valid_on_this_machine_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedquilt.deploy import keys as module

    was = module._host
    monkeypatch.setattr(module, "_host", lambda c, host: was(c, "10.0.0.5" if host == "127.0.0.1" else host))
    make(tmp_path / "keys", ["server.example.org"], [])
    keys, address = Keys(tmp_path / "keys"), Address("127.0.0.1", 8000)
    with pytest.raises(InputError, match="must also be valid for the address"):
        FederationServer(tmp_path / "run", address, keys)
    FederationServer(tmp_path / "run", address, keys, attach=True)  # a SuperLink of others is where they say


def test_a_front_that_cannot_listen_leaves_no_superlink(
    front: Front, keys: Keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: Any) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(["sleep", "60"], start_new_session=True))
        return started[0]

    monkeypatch.setattr(serve, "start", start)
    monkeypatch.setattr(serve, "wait_for", lambda *arguments: None)
    server = FederationServer(tmp_path / "run", front.address, keys)
    with pytest.raises(InputError, match="cannot listen"), server._superlink():
        pass
    assert started[0].poll() is not None
