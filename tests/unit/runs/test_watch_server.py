"""The page's server: nothing without the token, nothing by another name, nothing but two routes."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fedquilt as package
from fedquilt.errors import InputError
from fedquilt.watch.server import HEADER, WatchServer
from helpers.command import fedquilt
from helpers.made_runs import made_comparison


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchServer]:
    top = made_comparison(tmp_path_factory.mktemp("watch") / "compare-<b>", clients=3, rounds=4, seeds=1)
    with WatchServer(top) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def asked(server: WatchServer, path: str, method: str = "GET", **headers: str) -> tuple[int, str, Any]:
    """The answer to a request that is sent as it is: no client tidies its path."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    try:
        connection.putrequest(method, path, skip_host="Host" in headers)
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), answer.headers
    finally:
        connection.close()


def data(server: WatchServer, query: str = "", token: str | None = None) -> tuple[int, str, Any]:
    return asked(server, f"/data{query}", **{HEADER: server.token if token is None else token})


def test_the_page_has_the_token_in_its_address(server: WatchServer) -> None:
    code, text, headers = asked(server, server.url.removeprefix(f"http://127.0.0.1:{server.server_port}"))
    assert code == 200
    assert "<h1>compare-&lt;b&gt;</h1>" in text  # names are text
    assert server.token not in text
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'")
    assert "connect-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "script-src 'sha256-" in policy
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize("path", ["/", "/?token=", "/?token=wrong", "/?token=wrong&token=", "/?a=1", "/report.html"])
def test_no_page_without_the_token(server: WatchServer, path: str) -> None:
    code, text, _ = asked(server, path)
    assert code == 403
    assert "fedquilt watch" in text


@pytest.mark.parametrize("token", ["", "wrong", "\xe4", "Bearer x"])
def test_no_data_without_the_token(server: WatchServer, token: str) -> None:
    assert data(server, token=token)[0] == 403
    assert data(server, token=server.token[:-1])[0] == 403
    assert asked(server, "/data")[0] == 403
    assert asked(server, f"/data?token={server.token}")[0] == 403  # in the header, which other sites cannot send


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "", "[::1]:1"])
def test_no_answer_by_another_name(server: WatchServer, host: str) -> None:
    host = host.format(port=server.server_port)
    assert asked(server, "/data", **{"Host": host, HEADER: server.token})[0] == 403
    assert asked(server, f"/?token={server.token}", Host=host)[0] == 403


def test_this_machine_has_two_names(server: WatchServer) -> None:
    assert asked(server, f"/?token={server.token}", Host=f"localhost:{server.server_port}")[0] == 200


@pytest.mark.parametrize(
    "path",
    [
        "/comparison.json",
        "/../comparison.json",
        "/data/../comparison.json",
        "/%2e%2e/%2e%2e/etc/passwd",
        "//etc/passwd",
        "/..%2f..%2fetc%2fpasswd",
        "/data/",
        "/assets/watch.js",
        "/fedavg-seed0/config.toml",
        "/\\..\\x",
    ],
)
def test_there_are_no_other_routes(server: WatchServer, path: str) -> None:
    code, text, _ = asked(server, f"{path}?token={server.token}", **{HEADER: server.token})
    assert (code, text) == (404, "There is nothing here.")


@pytest.mark.parametrize("run", ["../fedavg-seed0", "%2e%2e", "/etc", "fedavg-seed0", "0", "", "a" * 2000])
def test_runs_are_looked_up_in_a_table(server: WatchServer, run: str) -> None:
    code, text, _ = data(server, f"?since=0&run={run}")
    assert code == 200
    assert "run" not in json.loads(text)


def test_data(server: WatchServer) -> None:
    code, text, headers = data(server)
    found = json.loads(text)
    assert (code, headers["Content-Type"]) == (200, "application/json; charset=utf-8")
    assert len(found["runs"]) == len(found["curves"]) == 6
    key = found["runs"][3]["id"]
    found = json.loads(data(server, f"?since={found['look']}&run={key}&have=0")[1])
    assert found["curves"] == {}
    assert len(found["run"]["clients"]["rows"]) == 3
    assert data(server, "?since=x")[0] == 400
    assert asked(server, "/data", "POST", **{HEADER: server.token})[0] == 501
    assert asked(server, "/data", "OPTIONS", Origin="http://evil.example")[0] == 501  # so other sites cannot ask


def test_a_port_that_is_taken(server: WatchServer) -> None:
    with pytest.raises(InputError, match=f"Port {server.server_port} is taken. Choose another --port"):
        WatchServer(Path("."), server.server_port)
    with pytest.raises(InputError, match="1 to 65535"):
        WatchServer(Path("."), 70000)


def test_only_this_machine_is_served(server: WatchServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    other = WatchServer(Path("."))
    other.server_close()
    assert other.token != server.token
    assert len(server.token) >= 32


def test_the_command_refuses_what_holds_no_runs(tmp_path: Path, server: WatchServer) -> None:
    said = fedquilt("watch", tmp_path / "nowhere")
    assert (said.code, said.out) == (2, "")
    assert "does not exist" in said.err
    metrics = server.board.top / "fedavg-seed0" / "metrics"
    assert "is not the folder of a run" in fedquilt("watch", metrics).err
    said = fedquilt("watch", server.board.top, "--port", server.server_port)
    assert (said.code, "is taken" in said.err) == (2, True)


def test_once(server: WatchServer) -> None:
    said = fedquilt("watch", server.board.top, "--once", "--json")
    assert [line["state"] for line in said.json] == ["done"] * 6
    said = fedquilt("watch", server.board.top, "--once")
    assert said.code == 0
    assert re.search(r"Ditto, seed 0 +│ done +│ 4/4 ", said.out)


def test_the_command_serves_until_it_is_interrupted(tmp_path: Path) -> None:
    """Of an empty folder: it waits, and says so."""
    source = str(Path(package.__file__).parents[1])
    watch = subprocess.Popen(
        [sys.executable, "-m", "fedquilt", "watch", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": source},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert watch.stdout is not None
    words = [watch.stdout.readline() for _ in range(3)]
    assert "There are no runs yet" in words[1]
    port, token = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/\?token=(.+)\n", words[2]).groups()  # type: ignore[union-attr]
    connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=10)
    connection.request("GET", "/data", headers={HEADER: token})
    assert json.loads(connection.getresponse().read())["runs"] == []
    connection.close()
    watch.send_signal(signal.SIGINT)
    out, err = watch.communicate(timeout=20)
    assert (watch.returncode, err) == (0, "")
    assert "runs continue" in out
