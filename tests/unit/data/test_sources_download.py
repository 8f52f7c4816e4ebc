"""Downloads against a server on this machine: what is right arrives whole, what is wrong leaves nothing behind."""

from __future__ import annotations

import hashlib
import io
import socket
import sys
import threading
import types
import zipfile
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from rich.console import Console

from fedquilt.data import Federation, File, fetch, read, verify
from fedquilt.data.sources import sources
from fedquilt.data.sources.catalogue import Hub
from fedquilt.data.sources.download import check
from fedquilt.errors import DownloadError, InputError
from fedquilt.show import models as shown
from helpers.command import fedquilt
from helpers.plugged import PICTURES, picture_bytes


def archive():
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as packed:
        packed.writestr(zipfile.ZipInfo("official/pictures.bin"), picture_bytes())
    return out.getvalue()


BODY = archive()
SHA, MD5 = hashlib.sha256(BODY).hexdigest(), hashlib.md5(BODY).hexdigest()


class Answers(BaseHTTPRequestHandler):
    """/whole, /moved (to /whole), /cut (half a body), /nosize (no length), anything else: 404."""

    def do_GET(self):
        self.server.asked.append(self.path)
        if self.path == "/moved":
            self.send_response(302)
            self.send_header("Location", "/whole")
            self.end_headers()
        elif self.path in ("/whole", "/cut", "/nosize"):
            self.send_response(200)
            if self.path != "/nosize":
                self.send_header("Content-Length", str(len(BODY)))
            self.end_headers()
            self.wfile.write(BODY[: len(BODY) // 2] if self.path == "/cut" else BODY)
        else:
            self.send_error(404)

    def log_message(self, *words):
        del words


@pytest.fixture(scope="module")
def server():
    made = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    made.asked = []
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


@pytest.fixture
def offer(server, tmp_path, monkeypatch):
    """Make 'pictures' a known data set with one file at these addresses of the server; returns its folder."""
    monkeypatch.setenv("FEDQUILT_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))  # never the cache of who runs the tests
    for name in ("FEDQUILT_CACHE", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)

    def make(*paths, **facts):
        urls = tuple(p if "://" in p else f"http://127.0.0.1:{server.server_port}{p}" for p in paths)
        monkeypatch.setitem(sources.KNOWN, "pictures", replace(PICTURES, files=(File("pictures.zip", urls, **facts),)))
        server.asked.clear()
        return tmp_path / "pictures"

    return make


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.parametrize("path", ["/whole", "/moved", "/nosize"])
@pytest.mark.parametrize("checksum", ["", f"sha256:{SHA}", f"md5:{MD5}"])
def test_a_file_arrives_whole_and_can_be_read(offer, path, checksum):
    folder = offer(path, size=len(BODY), checksum=checksum)
    told = []
    assert fetch("pictures", report=lambda *words: told.append(words)) == [folder / "pictures.zip"]
    assert (folder / "pictures.zip").read_bytes() == BODY
    assert told[-1] == ("pictures.zip", len(BODY), len(BODY))
    assert [p.name for p in folder.iterdir()] == ["pictures.zip"]
    assert read("pictures").y.tolist() == [0, 1, 2, 0, 1, 2]
    assert len(Federation.from_source("pictures", natural=True, test=0, valid=0).ids) == 2


def test_what_is_here_and_whole_is_not_downloaded_again(offer, server):
    folder = offer("/whole", size=len(BODY), checksum=f"sha256:{SHA}")
    fetch("pictures")
    fetch("pictures")
    assert server.asked == ["/whole"]
    (folder / "pictures.zip").write_bytes(b"x" * len(BODY))
    fetch("pictures")
    assert server.asked == ["/whole", "/whole"]
    assert (folder / "pictures.zip").read_bytes() == BODY


@pytest.mark.parametrize(
    ("path", "facts", "said"),
    [
        ("/cut", {}, rf"the body ended after {len(BODY) // 2} of {len(BODY)} bytes"),
        ("/whole", {"checksum": "sha256:" + "0" * 64}, f"wrong: sha256 {SHA}, published is 0000.*thrown away"),
        ("/whole", {"checksum": "md5:" + "0" * 32}, f"wrong: md5 {MD5}"),
        ("/whole", {"size": 7}, f"wrong: {len(BODY)} bytes, published are 7"),
        ("/nosize", {"size": len(BODY) + 1}, "the body ended after"),
        ("/none", {}, "the server answers 404"),
        ("ftp://127.0.0.1/x", {}, "only http and https"),
    ],
)
def test_what_is_wrong_leaves_nothing_behind(offer, path, facts, said):
    folder = offer(path, **facts)
    with pytest.raises(DownloadError, match=f"(?s){said}.*download manually. Put these into {folder}:") as info:
        fetch("pictures")
    assert "pictures.zip of pictures could not be downloaded" in str(info.value)
    assert list(folder.iterdir()) == []


def test_a_failed_download_keeps_the_file_that_was_there(offer):
    folder = offer("/cut", checksum="sha256:" + "1" * 64)
    folder.mkdir()
    (folder / "pictures.zip").write_bytes(b"older")
    with pytest.raises(DownloadError):
        fetch("pictures")
    assert (folder / "pictures.zip").read_bytes() == b"older"


def test_offline_it_says_what_and_where(offer):
    url = f"http://127.0.0.1:{free_port()}/pictures.zip"
    folder = offer(url)
    with pytest.raises(DownloadError) as info:
        fetch("pictures")
    said = str(info.value)
    assert f"{url}: Connection refused" in said
    assert f"Put these into {folder}:\n  pictures.zip from {url}" in said


def test_the_next_address_is_tried(offer, server):
    offer(f"http://127.0.0.1:{free_port()}/x", "/none", "/cut", "/whole", checksum=f"md5:{MD5}")
    fetch("pictures")
    assert server.asked == ["/none", "/cut", "/whole"]


def test_check(tmp_path):
    (tmp_path / "a.bin").write_bytes(b"abc")
    # RFC 1321, A.5: MD5 ("abc") = 900150983cd24fb0d6963f7d28e17f72
    right = "md5:900150983cd24fb0d6963f7d28e17f72"
    assert check(tmp_path, File("a.bin", size=3, checksum=right)).ok is True
    assert check(tmp_path, File("a.bin", size=4, checksum=right)).state == "wrong: 3 bytes, published are 4"
    assert check(tmp_path, File("a.bin", checksum=right.replace("9", "8"))).ok is False
    assert check(tmp_path, File("a.bin", size=3)).state == "size as published, checksum not known"
    assert check(tmp_path, File("*.bin")).state == "size and checksum not known"
    assert check(tmp_path, File("b.bin")).state == "not here"


def test_what_cannot_be_downloaded(tmp_path, monkeypatch):
    monkeypatch.delenv("FEDQUILT_DATA", raising=False)
    with pytest.raises(InputError, match="Set FEDQUILT_DATA"):
        fetch("mnist")
    monkeypatch.setenv("FEDQUILT_DATA", str(tmp_path))
    with pytest.raises(InputError, match="comes with a package"):
        fetch("digits")
    with pytest.raises(InputError, match=r"cannot be downloaded by a program\. LEAF makes these files"):
        fetch("femnist")
    with pytest.raises(InputError, match=r"no data set called 'mnits'.*Did you mean 'mnist'"):
        fetch("mnits")
    with pytest.raises(InputError, match="via is 'official' or 'hf', got 'ftp'"):
        fetch("mnist", via="ftp")
    with pytest.raises(InputError, match="nothing to check: digits has no official files"):
        verify("digits")


def test_a_folder_that_cannot_be_made(offer):
    folder = offer("/whole")
    folder.write_text("in the way")
    with pytest.raises(DownloadError, match="Cannot make the folder"):
        fetch("pictures")


def test_the_command_downloads_and_verifies(offer):
    folder = offer("/whole", size=len(BODY), checksum=f"sha256:{SHA}")
    said = fedquilt("datasets", "--verify", "pictures", "--json")
    assert (said.code, said.json[0]["state"]) == (2, "not here")
    said = fedquilt("datasets", "--download", "pictures", "--json")
    assert (said.code, said.json) == (0, [{"file": str(folder / "pictures.zip"), "bytes": len(BODY)}])
    said = fedquilt("datasets", "--verify", "pictures", "--json")
    assert (said.code, said.json[0]["state"]) == (0, "sha256 as published")
    assert 'source = "pictures"' in fedquilt("datasets", "--download", "pictures").out
    (folder / "pictures.zip").write_bytes(BODY[:-1])
    said = fedquilt("datasets", "--verify", "pictures")
    assert said.code == 2
    assert "wrong" in said.out


def test_a_terminal_sees_a_bar(offer, monkeypatch):
    offer("/whole", size=len(BODY))
    screen = Console(file=io.StringIO(), force_terminal=True, width=80)
    monkeypatch.setattr(shown, "console", screen)
    assert shown.downloaded("pictures", "official", quiet=False)[0]["bytes"] == len(BODY)
    seen = screen.file.getvalue()
    assert "pictures.zip" in seen
    assert f"{len(BODY)}/{len(BODY)} bytes" in seen


def test_the_command_fails_with_its_own_code(offer):
    offer(f"http://127.0.0.1:{free_port()}/pictures.zip")
    said = fedquilt("datasets", "--download", "pictures")
    assert said.code == 6
    assert "Connection refused" in said.err
    assert fedquilt("datasets", "--download", "pictures", "--json").json["exit_code"] == 6


def test_the_command_tells_about_one_and_clears(offer):
    folder = offer("/whole")
    fetch("pictures")
    read("pictures")
    assert fedquilt("datasets", "pictures", "--json").json["present"] is True
    assert f"here     {folder}" in fedquilt("datasets", "pictures").out
    assert "Did you mean 'pictures'" in fedquilt("datasets", "picture").err
    assert fedquilt("datasets", "--clear-cache", "--json").json[0]["folders"] == 1
    assert fedquilt("datasets", "--clear-cache", "--json").json[0]["folders"] == 0


class Picture:
    """As much of a Pillow image as is used."""

    size = (4, 4)

    def __init__(self, value):
        self.value = value

    def convert(self, mode):
        return np.full((4, 4, 3) if mode == "RGB" else (4, 4), self.value, np.uint8)


def test_from_the_hub_through_a_stand_in(offer, monkeypatch, tmp_path):
    """The package ``datasets`` is not asked here; a stand-in answers as it does: splits, columns, Pillow images."""
    offer("/whole")
    hub = Hub("someone/pictures", "small", image="img", label="fine", user="who", test="valid")
    monkeypatch.setitem(sources.KNOWN, "pictures", replace(PICTURES, hub=hub))
    rows = {"img": [Picture(5), Picture(6)], "fine": [1, 0], "who": ["a", "b"]}
    asked = []

    def load_dataset(*words):
        asked.append(words)
        return {"train": rows, "valid": rows}

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    assert fetch("pictures", via="hf") == [tmp_path / "pictures.npz"]
    assert asked == [("someone/pictures", "small")]
    found = read("pictures")
    assert found.x.shape == (2, 4, 4, 3)
    assert found.x[:, 0, 0, 0].tolist() == [5, 6]
    assert (found.y.tolist(), found.user.tolist(), found.y_test.tolist()) == ([1, 0], ["a", "b"], [1, 0])

    def offline(*words):
        raise ConnectionError("no route")

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=offline))
    with pytest.raises(DownloadError, match=r"huggingface\.co/datasets/someone/pictures: no route"):
        fetch("pictures", via="hf")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match=r'pip install "fedquilt\[hf\]"'):
        fetch("pictures", via="hf")
    with pytest.raises(InputError, match="is there as flwrlabs/shakespeare, but in another form"):
        fetch("shakespeare", via="hf")
