"""The process that stays at a site: garbage, crowds, repeats, and the end of its parent."""

from __future__ import annotations

import os
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("flwr")

from fedquilt.deploy.apps import answering, client_app
from fedquilt.deploy.site import SiteSettings
from fedquilt.engines.flower.jobs import Here, NodeJobs
from fedquilt.engines.flower.mark import Mark
from fedquilt.engines.flower.resident import PLACE, ask, stay
from fedquilt.errors import FrameError, InputError
from fedquilt.records.record import pack, unpack


@pytest.fixture
def resident(tmp_path):
    """Start a resident in this process."""

    def start(answer):
        threading.Thread(target=stay, args=(tmp_path, answer, os.getppid()), daemon=True).start()
        while not (tmp_path / PLACE).exists():
            time.sleep(0.005)
        return tmp_path

    return start


def echo(kind, frames):
    if kind == "fail":
        raise KeyError("patient 4711")
    if kind == "refuse":
        raise InputError("not like this")
    return {**frames, "kind": kind.encode()}


def test_frames_come_back_and_the_socket_is_the_owners(resident):
    folder = resident(echo)
    assert ask(folder, "x", {"a": b"", "b": bytes(10**6)}) == {"a": b"", "b": bytes(10**6), "kind": b"x"}
    where = Path((folder / PLACE).read_text())
    assert stat.S_IMODE(where.stat().st_mode) == 0o600
    assert stat.S_IMODE(where.parent.stat().st_mode) == 0o700


def test_failures_tell_their_kind_and_no_data(resident):
    folder = resident(echo)
    with pytest.raises(FrameError, match=r"^failed \(KeyError\)$"):
        ask(folder, "fail", {})
    with pytest.raises(FrameError, match=r"^not like this$"):
        ask(folder, "refuse", {})


GARBAGE = [
    b"",
    b"x",
    b"GET / HTTP/1.1\r\n\r\n",
    struct.pack("<Q", 2**63) + b"x",
    struct.pack("<Q", 4) + b"{]!!",
    struct.pack("<Q", 2) + b"[]",
    struct.pack("<Q", 2) + b"{}",
    struct.pack("<Q", 100) + b"short",
    struct.pack("<Q", 32) + b'{"kind":"x","parts":[["a",1e99]]}'[:32],
    struct.pack("<Q", 2**24) + b"{",
    struct.pack("<Q", 46) + b'{"kind": "x", "parts": [["a", 99999999999999999999]]}'[:46],
    struct.pack("<Q", 34) + b'{"kind": "x", "parts": [["a", -1]]}'[:34],
    struct.pack("<Q", 4) + b"\xff\xfe\xfd\xfc",
]


def test_garbage_is_let_go_and_the_next_message_answered(resident, capfd):
    folder = resident(echo)
    for garbage in GARBAGE:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect((folder / PLACE).read_text())
            connection.sendall(garbage)
            connection.shutdown(socket.SHUT_WR)
            connection.settimeout(5)
            with suppress(ConnectionResetError):  # it was closed before all was read
                assert connection.recv(10) == b""
        assert ask(folder, "x", {}) == {"kind": b"x"}
    assert "Traceback" not in capfd.readouterr().err


def test_many_at_once(resident):
    folder = resident(echo)
    found: dict[int, object] = {}

    def one(number: int) -> None:
        found[number] = ask(folder, "x", {"n": bytes([number]) * 1000})

    threads = [threading.Thread(target=one, args=(n,)) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {n: {"n": bytes([n]) * 1000, "kind": b"x"} for n in range(20)}


def test_no_resident_or_a_stale_place_gives_none(tmp_path):
    assert ask(tmp_path, "x", {}) is None
    (tmp_path / PLACE).write_text(str(tmp_path / "gone"))
    assert ask(tmp_path, "x", {}) is None


def test_the_same_batch_is_done_once(monkeypatch):
    from fedquilt.engines.flower.jobs import Parcel
    from fedquilt.engines.flower.keep import InMemory, Keep
    from fedquilt.engines.flower.node import Node
    from helpers.toy import points

    node = Node(points(4), lambda run: Keep(InMemory({})))
    done: list[str] = []

    def work(frames):
        number = unpack(frames["jobs"]).number
        done.append(number)
        assert unpack(node.answer("query.busy", {"number": pack(number, compact=True)}, {})["busy"]) is True
        assert unpack(node.answer("query.busy", {"number": pack("another", compact=True)}, {})["busy"]) is False
        time.sleep(0.05)
        return Parcel().head("answer", len(done))

    monkeypatch.setattr(node, "work", work)
    answers: list[object] = []

    def bring() -> None:
        answers.append(unpack(node.answer("train.x", {"jobs": pack(NodeJobs("7", [], 0), compact=True)}, {})["answer"]))

    threads = [threading.Thread(target=bring) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (done, answers) == (["7"], [1] * 4)
    assert unpack(node.answer("query.busy", {"number": pack("7", compact=True)}, {})["busy"]) is False


def test_another_process_sees_the_mark_while_its_holder_lives(tmp_path):
    mark = Mark(tmp_path / "state" / "working")
    assert not mark.shows("7")
    with mark.set("7"):
        assert mark.shows("7")
        assert not mark.shows("8")
    assert not mark.shows("7")
    hold = "from fedquilt.engines.flower.mark import Mark; from pathlib import Path\n"
    hold += f"held = Mark(Path({str(mark.file)!r})).set('9'); held.__enter__(); print('held', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"held\n"
        assert mark.shows("9")
        holder.kill()
        holder.wait()
    assert not mark.shows("9")


def written(tmp_path: Path) -> Path:
    x = np.random.default_rng(0).normal(size=(20, 2)).astype("float32")
    np.savez(tmp_path / "rows.npz", x=x, y=np.arange(20) % 2)
    file = tmp_path / "state" / "site.toml"
    SiteSettings(data=str(tmp_path / "rows.npz"), name="oslo", state=str(file.parent)).write(file)
    return file


def test_without_a_resident_the_app_answers_itself(tmp_path):
    file = written(tmp_path)
    serve = client_app().serve
    frames = serve("query.here", {"run": pack("run1", compact=True)}, SimpleNamespace(node_config={"site": str(file)}))
    here: Here = unpack(frames["here"])
    assert list(here.clients) == ["oslo"]
    assert here.prepare == "the columns 0, 1"
    assert frames.keys() == answering(file)("query.here", {"run": pack("run1", compact=True)}).keys()
    with pytest.raises(InputError, match="whose data"):
        serve("query.here", {}, SimpleNamespace(node_config={}))


def test_the_resident_ends_with_its_parent(tmp_path):
    """The parent starts a resident, waits until it is there, tells its number and is gone."""
    child = "from fedquilt.engines.flower.resident import stay; from pathlib import Path; import sys\n"
    child += "stay(Path(sys.argv[1]), lambda kind, frames: frames, int(sys.argv[2]))"
    parent = f"""
import os, subprocess, sys, time
from pathlib import Path
child = subprocess.Popen([sys.executable, "-c", {child!r}, {str(tmp_path)!r}, str(os.getpid())])
while not Path({str(tmp_path / PLACE)!r}).exists() and child.poll() is None:
    time.sleep(0.02)
print(child.pid, flush=True)
os._exit(0)
"""
    done = subprocess.run([sys.executable, "-c", parent], capture_output=True, text=True, timeout=60)
    assert int(done.stdout)  # its output is at an end only when the resident, which shares it, has ended too
    assert (tmp_path / PLACE).exists()
    assert ask(tmp_path, "x", {}) is None
